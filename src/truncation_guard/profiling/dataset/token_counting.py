"""Counts tokens, fast, and those of an answer with the stop token that ends it.

The one idea: an answer is tokenized on its own, since generation starts after the prompt's last
token, and counted up to its stop token; where it holds none, the stop token is one more.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from truncation_guard.trainer.end_of_turn import end_of_turn_tokens


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
