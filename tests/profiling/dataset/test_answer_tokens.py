from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import chats
from support.chats import assistant, tool, units, user

from truncation_guard.profiling.dataset.answer_tokens import AnswerCounter, AnswerCounts

QUESTION = [user("Is it?")]


class Processor:
    """Wraps a tokenizer and takes content in blocks, as those of vision models do."""

    chat_template = chats.CHATML.replace("m['content']", "m['content'][0]['text']")

    def __init__(self) -> None:
        self.tokenizer = chats.tokenizer(None)

    def apply_chat_template(self, *args: Any, **kwargs: Any) -> Any:
        template = kwargs.pop("chat_template", self.chat_template)
        return self.tokenizer.apply_chat_template(*args, chat_template=template, **kwargs)


def count(
    values: list[Any],
    column: str = "answer",
    processing_class: Any = None,
    *,
    chat_template_kwargs: dict[str, Any] | None = None,
    context_window: int | None = None,
    **others: list[Any],
) -> AnswerCounts:
    counter = AnswerCounter(
        column,
        processing_class or chats.tokenizer(),
        chat_template_kwargs=chat_template_kwargs,
        context_window=context_window,
    )
    return counter.count({column: values, **others}, range(10, 10 + len(values)))


def lengths(*args: Any, **kwargs: Any) -> list[int]:
    return sorted(count(*args, **kwargs).lengths.elements())


# --- every format -------------------------------------------------------------------------------


def test_texts_have_their_tokens_and_a_stop_token() -> None:
    assert lengths(["abc", "a", "abcd<|im_end|>"]) == [2, 4, 5]


def test_a_text_after_a_prompt_in_text_is_still_a_text() -> None:
    assert lengths(["abc"], "completion", prompt=["Is it?"]) == [4]


def test_a_text_after_messages_is_rendered_as_the_assistants_turn() -> None:
    stripping = chats.tokenizer(chats.STRIPS)
    assert lengths([" abc "], processing_class=stripping) == [6]
    assert lengths([" abc "], processing_class=stripping, prompt=[QUESTION]) == [4]


def test_a_conversational_completion_follows_its_prompt() -> None:
    assert lengths([[assistant("abc")]], "completion", prompt=[QUESTION]) == [4]
    assert lengths([[assistant("abc")]], "completion") == [4]


def test_messages_hold_a_completion_for_each_turn_whatever_the_prompt_column_says() -> None:
    messages = [*QUESTION, assistant("ab"), user("Why?"), assistant("abcd")]
    assert lengths([messages], "messages") == [3, 5]
    assert lengths([messages], "messages", prompt=["Is it?"]) == [3, 5]
    assert lengths([messages], "messages", prompt=[QUESTION]) == [3, 5]
    assert lengths([messages], "conversation", prompt=[QUESTION]) == [3, 5]


def test_messages_that_begin_with_the_answer_follow_the_prompt_column() -> None:
    counts = count([[assistant("ab")]], "reply", prompt=[QUESTION], context_window=99)
    prompt = f"<|im_start|>user\nIs it?<|im_end|>\n{'<|im_start|>assistant'}\n"
    assert counts.lengths == Counter([3])
    assert counts.longest_prompt == units(prompt)


def test_a_tool_loop_counts_its_results() -> None:
    messages = [*QUESTION, assistant("ab"), tool("c"), assistant("d"), tool("unanswered")]
    text = "ab<|im_end|>\n<|im_start|>tool\nc<|im_end|>\n<|im_start|>assistant\nd<|im_end|>"
    assert lengths([messages], "messages") == [units(text)]


def test_tools_and_template_arguments_reach_the_template() -> None:
    template = chats.CHATML.replace("m['content']", "m['content'] + tools[0]['name'] + style")
    assert lengths(
        [[*QUESTION, assistant("ab")]],
        "messages",
        chats.tokenizer(template),
        tools=['[{"name": "xyz"}]'],
        chat_template_kwargs={"style": "--"},
    ) == [3 + 3 + 2]


def test_a_tokenizer_is_given_blocks_as_one_text() -> None:
    blocks = [{"type": "text", "text": "ab"}, {"type": "text", "text": "cd"}]
    assert lengths([[user(blocks), assistant(blocks)]], "messages") == [5]


@pytest.mark.parametrize("content", ["abcd", [{"type": "text", "text": "abcd"}]])
def test_a_processor_is_given_texts_as_blocks(content: Any) -> None:
    messages = [user(content), assistant(content)]
    assert lengths([messages], "messages", Processor()) == [5]
    assert lengths(["abcd"], "answer", Processor(), prompt=[QUESTION]) == [5]


@pytest.mark.parametrize("name", ["smolvlm", "llava_next"])
def test_a_tokenizer_whose_template_takes_blocks_alone_is_given_them(name: str) -> None:
    made = chats.tokenizer(chats.template_of_trl(name), eos_token="</s>")
    messages = [*QUESTION, assistant("abcd")]
    end = {"smolvlm": "<end_of_utterance>", "llava_next": ""}[name]  # no token of this tokenizer
    assert lengths([messages], "messages", made) == [
        units(f" abcd{end}") + (1 if not end else 2)  # the template's line break, and eos
    ]


# --- what is left out, and what is measured besides ---------------------------------------------


def test_rows_without_an_answer_are_skipped_and_counted() -> None:
    counts = count([None, "", " \n", "ab", "c"])
    assert (counts.rows, counts.skipped, counts.lengths) == (5, 3, Counter([3, 2]))
    counts = count([[], QUESTION, [*QUESTION, assistant("")], [*QUESTION, assistant("a")]], "x")
    assert (counts.rows, counts.skipped, counts.lengths) == (4, 3, Counter([2]))


def test_prompts_are_measured_as_trl_tokenizes_them() -> None:
    from tokenizers.processors import TemplateProcessing

    made = chats.tokenizer()
    made.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", made.convert_tokens_to_ids("<s>"))]
    )
    prompts = ["Is", "Is it"]
    counts = count(["a", "b"], "answer", made, prompt=prompts, context_window=100)
    assert counts.longest_prompt == max(len(ids) for ids in made(text=prompts)["input_ids"]) == 6
    counts = count(["a"], "answer", made, prompt=[QUESTION], context_window=100)
    rendered = made.apply_chat_template(QUESTION, add_generation_prompt=True, tokenize=True)
    assert counts.longest_prompt == len(rendered["input_ids"])


def test_prompts_are_not_measured_without_a_window_or_where_there_are_none() -> None:
    assert count(["a"], prompt=["Is it?"]).longest_prompt is None
    assert count(["a"], context_window=100).longest_prompt is None
    assert count(["a"], prompt=[""], context_window=100).longest_prompt is None
    assert count([[assistant("a")]], "completion", context_window=100).longest_prompt is None


def test_the_prompts_of_rows_without_an_answer_are_not_measured() -> None:
    counts = count(["a", None], prompt=["Is", "Is it?"], context_window=100)
    assert counts.longest_prompt == 2


@pytest.mark.parametrize("window", [5, 6])
def test_a_prompt_that_fills_the_window_is_refused_as_in_case_9(window: int) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        count(["a", "b"], prompt=["Is", "Is it?"], context_window=window)
    assert str(error.value) == (
        f"The prompt of row 11 has 6 tokens, which leaves no room for an answer in "
        f"`context_window={window}`. Filter out such rows, or pass a longer window if the model "
        "has one."
    )
    assert count(["a", "b"], prompt=["Is", "Is it?"], context_window=7).longest_prompt == 6


def test_a_rendered_prompt_that_fills_the_window_is_refused() -> None:
    prompt = "<|im_start|>user\nIs it?<|im_end|>\n<|im_start|>assistant\n"
    with pytest.raises(ValueError, match=rf"^The prompt of row 10 has {units(prompt)} tokens"):
        count(["a"], prompt=[QUESTION], context_window=units(prompt))


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "error_text"),
    [
        (
            [None, 3],
            "Column `answer` must hold text or messages, but row 11 holds 3 (int). "
            "Name another column with `column`, or convert it.",
        ),
        (
            ["a", 0.5],
            "Column `answer` must hold text, but row 11 holds 0.5 (float). "
            "Name another column with `column`, or convert it.",
        ),
        (
            [[user("a"), assistant("b")], "a"],
            "Column `answer` must hold messages, but row 11 holds 'a' (str). "
            "Name another column with `column`, or convert it.",
        ),
        (
            [["a" * 100]],
            f"Column `answer` must hold text or messages, but row 10 holds ['{'a' * 55}... (list). "
            "Name another column with `column`, or convert it.",
        ),
    ],
)
def test_what_is_no_answer_is_refused_with_its_row(values: list[Any], error_text: str) -> None:
    with pytest.raises(TypeError) as error:
        count(values)
    assert str(error.value) == error_text


def test_sharegpts_messages_are_refused_with_what_they_should_be() -> None:
    turns = [{"from": "human", "value": "Is it?"}, {"from": "gpt", "value": "ab"}]
    with pytest.raises(TypeError) as error:
        count([turns], "conversations")
    assert str(error.value) == (
        "Column `conversations` must hold text or messages, but row 10 holds "
        "[{'from': 'human', 'value': 'Is it?'}, {'from': 'gpt', 'v... (list). "
        "Convert it to messages with `role` (user, assistant) and `content`."
    )


@pytest.mark.parametrize(
    ("processing_class", "name"),
    [
        (chats.tokenizer(None), "tokenizer"),
        (type("P", (Processor,), {"chat_template": None})(), "processor"),
    ],
)
def test_messages_without_a_chat_template_are_refused(processing_class: Any, name: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        count([[*QUESTION, assistant("a")]], "messages", processing_class)
    assert str(error.value) == (
        f"Column `messages` is conversational, but the {name} has no chat template. "
        "Pass the one of an instruct model, or set its `chat_template`."
    )
    assert lengths(["abcd"], "answer", processing_class) == [5]


def test_the_chat_template_may_be_passed() -> None:
    passed = {"chat_template": chats.CHATML}
    made = chats.tokenizer(None)
    messages = [*QUESTION, assistant("ab")]
    assert lengths([messages], "messages", made, chat_template_kwargs=passed) == [3]


# --- adding up ----------------------------------------------------------------------------------


def test_batches_add_up() -> None:
    total = AnswerCounts()
    for part in (
        AnswerCounts(Counter([3, 3]), 2, 0),
        AnswerCounts(Counter([3, 4]), 3, 1, 7),
        AnswerCounts(Counter(), 1, 1, 5),
    ):
        total.add(part)
    assert total == AnswerCounts(Counter([3, 3, 3, 4]), 6, 2, 7)


@settings(deadline=None, max_examples=25)
@given(
    texts=st.lists(st.text("ab \n<>\u00e9", max_size=8), min_size=1, max_size=12),
    data=st.data(),
)
def test_the_order_of_the_rows_and_their_batches_change_nothing(
    texts: list[str], data: st.DataObject
) -> None:
    counter = AnswerCounter("answer", chats.tokenizer())
    shuffled = data.draw(st.permutations(texts))
    size = data.draw(st.integers(1, len(texts)))
    total = AnswerCounts()
    for i in range(0, len(texts), size):
        batch = shuffled[i : i + size]
        total.add(counter.count({"answer": batch}, range(i, i + len(batch))))
    expected = [units(text) + 1 for text in texts if text.strip()]
    assert sorted(total.lengths.elements()) == sorted(expected)
    assert total.skipped == len(texts) - len(expected)
