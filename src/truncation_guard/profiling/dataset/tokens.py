"""How many tokens generation has to produce for each reference answer of a batch of rows.

The one idea: whatever the row's format, it comes down to texts that follow a prompt; those are
counted, and of them only how often each length came up is kept.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from truncation_guard.profiling.dataset.columns import Kind, is_nothing, kind_of
from truncation_guard.profiling.dataset.messages import Chat, chats_of_row
from truncation_guard.profiling.dataset.rendering import ChatRenderer, leaves_reasoning_out
from truncation_guard.profiling.dataset.token_counting import TokenCounter


@dataclass(slots=True)
class AnswerCounts:
    """What a batch of rows, or many, amounts to. Its size does not grow with the rows."""

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
        """Take in what another batch amounts to."""
        self.lengths.update(other.lengths)
        self.rows += other.rows
        self.skipped += other.skipped
        self.left_out += other.left_out
        if other.longest_prompt is not None:
            self.longest_prompt = max(self.longest_prompt or 0, other.longest_prompt)


@dataclass(slots=True)
class _Answers:
    """What a batch of rows holds."""

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
        prompts, left_out = [], 0
        if found.chats:
            self.check_template()
            rendered = self._renderer.render(found.chats)
            answers = [answer for _, answer in rendered]
            tokens += self._tokens.of_answers(answers, self._tokens.ends_of_turns)
            left_out = sum(map(leaves_reasoning_out, found.chats, answers))
            prompts = [
                (chat.row, prompt)
                for chat, (prompt, _) in zip(found.chats, rendered, strict=True)
                if chat.has_prompt
            ]
        return AnswerCounts(
            lengths=Counter(tokens),
            rows=len(rows),
            skipped=found.skipped,
            left_out=left_out,
            longest_prompt=self._longest_prompt(found.prompts, prompts),
        )

    def _collect(self, batch: Mapping[str, Sequence[Any]], rows: Sequence[int]) -> "_Answers":
        found = _Answers()
        others = [batch.get(name) for name in ("prompt", "tools")]
        is_alone = all(values is None for values in others)
        for i, (row, value) in enumerate(zip(rows, batch[self.column], strict=True)):
            if is_nothing(value):
                found.skipped += 1
                continue
            self.check_kind(row, value)
            if is_alone and isinstance(value, str):
                found.texts.append(value)
                continue
            prompt, tools = (None if values is None else values[i] for values in others)
            before = self._prompt_of(value, prompt)
            if isinstance(value, str) and kind_of(before) != "messages":
                found.texts.append(value)
                if isinstance(before, str):
                    found.prompts.append((row, before))
                continue
            chats = list(self._chats(row, value, before, tools))
            found.skipped += not chats
            found.chats += chats
        return found

    def _prompt_of(self, value: Any, prompt: Any) -> Any:
        # Outside of `completion` a conversation that begins with a question is a whole one.
        is_whole = self.column != "completion" and _begins_with_question(value)
        return None if is_whole or is_nothing(prompt) else prompt

    def _chats(self, row: int, answer: Any, prompt: Any, tools: Any) -> Iterator[Chat]:
        if isinstance(answer, str):
            answer = [{"role": "assistant", "content": answer}]
        return chats_of_row(row, answer, prompt, tools, takes_blocks=self._renderer.takes_blocks)

    def _longest_prompt(
        self, texts: Sequence[tuple[int, str]], chats: Sequence[tuple[int, str]]
    ) -> int | None:
        longest: int | None = None
        if self._context_window is None:
            return None
        # A chat template writes the special tokens itself; to texts the tokenizer adds them.
        for prompts, add_special_tokens in ((texts, True), (chats, False)):
            tokens = self._tokens.of_texts([text for _, text in prompts], add_special_tokens)
            for (row, _), n in zip(prompts, tokens, strict=True):
                if n >= self._context_window:
                    raise ValueError(
                        f"The prompt of row {row} has {n} tokens, which leaves no room for an "
                        f"answer in `context_window={self._context_window}`. Filter out such rows, "
                        "or pass a longer window if the model has one."
                    )
                longest = max(longest or 0, n)
        return longest

    def check_kind(self, row: int, value: Any) -> None:
        """Refuse an answer of another kind than the first one.

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


def _begins_with_question(value: Any) -> bool:
    return not isinstance(value, str) and value[0]["role"] != "assistant"
