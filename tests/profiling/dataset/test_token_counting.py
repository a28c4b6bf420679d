from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import tiny
from support.chats import tokenizer, units
from transformers import PreTrainedTokenizerBase

from truncation_guard.profiling.dataset.answer_tokens import TokenCounter

BYTES = tokenizer()


def of_turns(made: Any, texts: list[str]) -> list[int]:
    counter = TokenCounter(made)
    return counter.of_answers(texts, counter.ends_of_turns)


def of_texts(made: Any, texts: list[str]) -> list[int]:
    counter = TokenCounter(made)
    return counter.of_answers(texts, counter.ends_of_texts)


class Slow:
    """Like a tokenizer that is not backed by Rust."""

    eos_token = "</s>"
    added_tokens_decoder: dict[int, Any] = {}  # noqa: RUF012
    all_special_tokens = ("</s>",)

    def __call__(self, texts: list[str], *, add_special_tokens: bool) -> dict[str, Any]:
        words = [text.replace("</s>", " </s>").split() for text in texts]
        return {"input_ids": [[0] * add_special_tokens + [1 for _ in row] for row in words]}


@pytest.mark.parametrize("tokens", [1, 2, 256])
def test_the_stop_token_counts_as_in_case_7(tokens: int) -> None:
    text = " ".join(["w5"] * tokens)
    assert of_texts(tiny.tokenizer(), [text, f"{text} <eos>"]) == [tokens + 1] * 2
    assert of_turns(tiny.tokenizer(), [text, f"{text} <eos>"]) == [tokens + 1] * 2


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("abc", 4),
        ("abc<|im_end|>", 4),
        ("abc<|im_end|>\n", 4),
        ("abc\n<|im_end|>\n \n", 5),
        ("abc<|im_end|>\n<|endoftext|>", 4),
        ("abc<|im_end|>\n<|endoftext|>\n", 4),
        ("a<|im_end|>b", 4),
        ("abc\n", 5),
        ("<|im_end|>", 1),
        ("abc<|im_start|>", 5),
        ("abc</s>", 4),
        ("é", 3),
    ],
)
def test_a_turn_is_counted_up_to_its_stop_token(text: str, tokens: int) -> None:
    assert of_turns(BYTES, [text]) == [tokens]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("abc", 4),
        ("abc<|im_end|>", 4),
        ("abc<|im_end|>\n", 4),
        # Generation goes on after them: without a template, nothing says that it ends there.
        ("abc</s>", 5),
        ("abc<|im_end|><|endoftext|>", 6),
    ],
)
def test_without_a_template_eos_alone_is_the_end(text: str, tokens: int) -> None:
    assert of_texts(BYTES, [text]) == [tokens]


def test_no_texts_are_no_counts() -> None:
    assert of_turns(BYTES, []) == []
    assert TokenCounter(BYTES).of_texts([], add_special_tokens=True) == []


def test_texts_are_counted_as_the_tokenizer_itself_does() -> None:
    from tokenizers.processors import TemplateProcessing

    made = tokenizer()
    made.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", made.convert_tokens_to_ids("<s>"))]
    )
    texts = ["a", "bc<|im_end|>"]
    for add_special_tokens, expected in ((True, [2, 4]), (False, [1, 3])):
        ids = made(texts, add_special_tokens=add_special_tokens)["input_ids"]
        assert [len(row) for row in ids] == expected
        assert TokenCounter(made).of_texts(texts, add_special_tokens) == expected


@settings(deadline=None)
@given(
    texts=st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<")), max_size=5
    )
)
def test_any_text_has_its_bytes_and_a_stop_token(texts: list[str]) -> None:
    assert of_texts(BYTES, texts) == [units(text) + 1 for text in texts]


def test_a_maximal_length_or_padding_in_the_tokenizers_file_changes_nothing_and_stays() -> None:
    made = tokenizer()
    made.backend_tokenizer.enable_truncation(max_length=4)
    made.backend_tokenizer.enable_padding(length=9)
    before = made.backend_tokenizer.truncation, made.backend_tokenizer.padding
    assert of_texts(made, ["abcdefgh", "a"]) == [9, 2]
    assert (made.backend_tokenizer.truncation, made.backend_tokenizer.padding) == before


def test_a_tokenizer_without_a_fast_backend_counts_the_same() -> None:
    assert of_texts(Slow(), ["one two", "one two</s>\n"]) == [3, 3]
    assert TokenCounter(Slow()).of_texts(["one two"], add_special_tokens=True) == [3]


def test_a_tokenizer_that_knows_no_end_is_refused() -> None:
    made = tiny.tokenizer(eos_token=None, additional_special_tokens=["w4"])
    with pytest.raises(ValueError, match=r".") as error:
        TokenCounter(made)
    assert str(error.value) == (
        "The tokenizer has no `eos_token`, so what ends an answer is not known. Set it to the "
        "token that the model ends its answers with."
    )


def test_an_end_of_turn_token_is_enough() -> None:
    made: PreTrainedTokenizerBase = tokenizer(eos_token=None)
    assert of_turns(made, ["abc<|im_end|>\n", "abc"]) == [4, 4]
    assert of_texts(made, ["abc<|im_end|>\n", "abc"]) == [4, 4]


def test_the_longest_stop_token_is_looked_for_first() -> None:
    stops = TokenCounter(BYTES).ends_of_turns
    assert "<|im_end|>" in stops
    assert "</s>" in stops
    assert "<|im_start|>" not in stops
    assert sorted(stops, key=len, reverse=True) == list(stops)
