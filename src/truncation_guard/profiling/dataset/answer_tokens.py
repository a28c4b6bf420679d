"""How many tokens generation has to produce for each reference answer of a batch of rows.

An answer is tokenized on its own, since generation starts after the prompt's last token, and
counted up to its stop token; where it holds none, the stop token is one more.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from truncation_guard.profiling.dataset.answer_column import Kind, is_nothing, kind_of
from truncation_guard.profiling.dataset.chat_template import ChatRenderer, leaves_reasoning_out
from truncation_guard.profiling.dataset.conversations import Chat, chats_of_row
from truncation_guard.trainer.end_of_turn import end_of_turn_tokens


@dataclass(slots=True)
class AnswerCounts:
    """The counts of a batch of rows, or of many. Their size does not grow with the rows."""

    lengths: Counter[int] = field(default_factory=Counter)
    """Length in tokens, with the stop token -> number of answers."""
    rows: int = 0
    skipped: int = 0
    """Rows without an answer."""
    longest_prompt: int | None = None
    """In tokens; None where none was measured."""
    left_out: int = 0
    """Answers with reasoning in a field of its own that the chat template leaves out."""

    def add(self, other: "AnswerCounts") -> None:
        """Add the counts of another batch."""
        self.lengths.update(other.lengths)
        self.rows += other.rows
        self.skipped += other.skipped
        self.left_out += other.left_out
        if other.longest_prompt is not None:
            self.longest_prompt = max(self.longest_prompt or 0, other.longest_prompt)


@dataclass(slots=True)
class _Answers:
    """The answers of a batch of rows."""

    texts: list[str] = field(default_factory=list)
    prompts: list[tuple[int, str]] = field(default_factory=list)
    """(row, prompt) of texts."""
    chats: list[Chat] = field(default_factory=list)
    skipped: int = 0


class AnswerCounter:
    """Counts the tokens of one column's answers, batch by batch.

    Args:
        column: where the answers are.
        processing_class: the model's tokenizer, or its processor.
        chat_template_kwargs: further arguments for the chat template.
        context_window: tokens that a prompt must be below; None: prompts are not measured.

    Raises:
        ValueError: where no stop token is known.
    """

    def __init__(
        self,
        column: str,
        processing_class: Any,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        context_window: int | None = None,
    ) -> None:
        self.column = column
        tokenizer = getattr(processing_class, "tokenizer", processing_class)
        self._is_processor = tokenizer is not processing_class
        self._tokens = TokenCounter(tokenizer)
        self._context_window = context_window
        self._kind: Kind | None = None
        self._renderer = ChatRenderer(
            processing_class,
            dict(chat_template_kwargs or {}),
            sorted({*self._tokens.ends_of_turns, *tokenizer.all_special_tokens}),
            prefers_blocks=self._is_processor,  # TRL gives it blocks
        )

    def count(self, batch: Mapping[str, Sequence[Any]], rows: Sequence[int]) -> AnswerCounts:
        """Count a batch.

        Args:
            batch: the values of `column`, and of `prompt` and `tools` where there are.
            rows: the rows' numbers, for error texts.

        Raises:
            TypeError: for a value that is no answer; names the row.
            ValueError: for a row that the template refuses, and for a prompt that leaves no room
                in the context window; names the row.
        """
        found = self._collect(batch, rows)
        tokens = self._tokens.of_answers(found.texts, self._tokens.ends_of_texts)
        # To texts the tokenizer adds special tokens; a chat template writes them itself.
        prompts = self._prompt_tokens(found.prompts, add_special_tokens=True)
        left_out = 0
        if found.chats:
            self.check_template()
            rendered = self._renderer.render(found.chats)
            answers = [answer for _, answer in rendered]
            tokens += self._tokens.of_answers(answers, self._tokens.ends_of_turns)
            left_out = sum(map(leaves_reasoning_out, found.chats, answers))
            known = [
                (chat.row, prompt)
                for chat, (prompt, _) in zip(found.chats, rendered, strict=True)
                if chat.has_prompt
            ]
            prompts += self._prompt_tokens(known, add_special_tokens=False)
        return AnswerCounts(
            lengths=Counter(tokens),
            rows=len(rows),
            skipped=found.skipped,
            left_out=left_out,
            longest_prompt=max(prompts, default=None),
        )

    def _collect(self, batch: Mapping[str, Sequence[Any]], rows: Sequence[int]) -> _Answers:
        found = _Answers()
        nothing = [None] * len(rows)
        values = (batch[self.column], batch.get("prompt", nothing), batch.get("tools", nothing))
        for row, answer, prompt, tools in zip(rows, *values, strict=True):
            if is_nothing(answer):
                found.skipped += 1
                continue
            kind = self.check_kind(row, answer)
            prompt_kind = None if is_nothing(prompt) else kind_of(prompt)
            if kind == "text" and prompt_kind != "messages":
                found.texts.append(answer)
                if prompt_kind is not None:
                    found.prompts.append((row, prompt))
                continue
            messages = answer if kind == "messages" else [{"role": "assistant", "content": answer}]
            # Outside of `completion` a conversation that begins with a question is a whole one.
            is_whole = self.column != "completion" and messages[0]["role"] != "assistant"
            before = None if is_whole or prompt_kind is None else prompt
            chats = [
                *chats_of_row(
                    row, messages, before, tools, takes_blocks=self._renderer.takes_blocks
                )
            ]
            found.skipped += not chats
            found.chats += chats
        return found

    def _prompt_tokens(
        self, prompts: Sequence[tuple[int, str]], *, add_special_tokens: bool
    ) -> list[int]:
        if self._context_window is None:
            return []
        tokens = self._tokens.of_texts([text for _, text in prompts], add_special_tokens)
        for (row, _), n in zip(prompts, tokens, strict=True):
            if n >= self._context_window:
                raise ValueError(
                    f"The prompt of row {row} has {n} tokens, which leaves no room for an answer "
                    f"in `context_window={self._context_window}`. Filter out such rows, or pass a "
                    "longer window if the model has one."
                )
        return tokens

    def check_kind(self, row: int, value: Any) -> Kind:
        """The kind of an answer, which must be that of the first one.

        Raises:
            TypeError: names the row.
        """
        kind = kind_of(value)
        if kind is None or (self._kind is not None and kind != self._kind):
            wanted = {"text": "text", "messages": "messages", None: "text or messages"}[self._kind]
            shown = repr(value)
            shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
            remedy = "Name another column with `column`, or convert it."
            if (
                isinstance(value, list)
                and value
                and isinstance(value[0], dict)
                and "from" in value[0]
            ):
                remedy = "Convert it to messages with `role` (user, assistant) and `content`."
            raise TypeError(
                f"Column `{self.column}` must hold {wanted}, but row {row} holds {shown} "
                f"({type(value).__name__}). {remedy}"
            )
        self._kind = kind
        return kind

    def check_template(self) -> None:
        """Refuse messages that cannot be rendered.

        Raises:
            ValueError: where there is no chat template.
        """
        if not self._renderer.has_template:
            raise ValueError(
                f"Column `{self.column}` is conversational, but the "
                f"{'processor' if self._is_processor else 'tokenizer'} has no chat template. "
                "Pass the one of an instruct model, or set its `chat_template`."
            )


class TokenCounter:
    """Counts with a model's tokenizer, which it leaves as it is.

    Args:
        tokenizer: a tokenizer of transformers.

    Raises:
        ValueError: where no stop token is known.
    """

    def __init__(self, tokenizer: Any) -> None:
        eos = {tokenizer.eos_token} if tokenizer.eos_token else set()
        names = eos | {name for _, name in end_of_turn_tokens(tokenizer)}
        if not names:
            # Every length would be off by one, and a limit of that length would cut the end off.
            raise ValueError(
                "The tokenizer has no `eos_token`, so what ends an answer is not known. Set it to "
                "the token that the model ends its answers with."
            )
        self.ends_of_turns = tuple(sorted(names, key=lambda name: (-len(name), name)))
        """The tokens that may end a chat template's turn, as texts, the longest first."""
        self.ends_of_texts = tuple(eos) or self.ends_of_turns
        """The token that ends a text without a template."""
        self._tokenizer = tokenizer

    def of_texts(self, texts: Sequence[str], add_special_tokens: bool) -> list[int]:
        """Tokens of each text."""
        if not texts:
            return []
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:
            encoded = self._tokenizer(list(texts), add_special_tokens=add_special_tokens)
            return [len(ids) for ids in encoded["input_ids"]]
        # Without lists of ids in Python, which take as long again as the tokenizing.
        with _neither_cut_nor_padded(backend):
            encodings = backend.encode_batch_fast(
                list(texts), add_special_tokens=add_special_tokens
            )
        return [len(encoding) for encoding in encodings]

    def of_answers(self, texts: Sequence[str], stops: tuple[str, ...]) -> list[int]:
        """Tokens of each answer, with the stop token.

        Args:
            texts: each with its stop token, or without.
            stops: `ends_of_turns` or `ends_of_texts`.
        """
        ended = [_up_to_stop(text, stops) for text in texts]
        tokens = self.of_texts([text for text, _ in ended], add_special_tokens=False)
        return [n + (not has_stop) for n, (_, has_stop) in zip(tokens, ended, strict=True)]


def _up_to_stop(text: str, stops: tuple[str, ...]) -> tuple[str, bool]:
    """The text up to the stop token that generation ends with, and whether there is one.

    After it may come what a template puts between turns: spaces, and further stop tokens.
    """
    end, rest = None, text.rstrip()
    while rest.endswith(stops):
        end = len(rest)
        stop = next(stop for stop in stops if rest.endswith(stop))
        rest = rest[: -len(stop)].rstrip()
    return (text, False) if end is None else (text[:end], True)


@contextmanager
def _neither_cut_nor_padded(backend: Any) -> Iterator[None]:
    """Some `tokenizer.json` come with a maximal length, which transformers resets in its calls."""
    truncation, padding = backend.truncation, backend.padding
    if truncation is not None:
        backend.no_truncation()
    if padding is not None:
        backend.no_padding()
    try:
        yield
    finally:
        if truncation is not None:
            backend.enable_truncation(**truncation)
        if padding is not None:
            backend.enable_padding(**padding)
