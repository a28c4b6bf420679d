from __future__ import annotations

import logging
import random
import sys
from typing import Any

import numpy as np
import pytest
from datasets import Dataset, DatasetDict
from hypothesis import given, settings
from hypothesis import strategies as st
from support import chats, tiny
from support.chats import assistant, units, user
from transformers import ProcessorMixin

from truncation_guard.profiling.dataset import profile_dataset as profiling
from truncation_guard.profiling.dataset.profile_dataset import profile_dataset
from truncation_guard.profiling.length_profile import LengthProfile

BYTES = chats.tokenizer()
LONG = "x" * 20
REFERENCE_NOTE = (
    "Reference answers are shorter than what a model writes: measure its own completions with "
    "truncation_guard.profile_rollouts before you settle on a limit."
)


def profile(dataset: Any, tokenizer: Any = BYTES, **options: Any) -> LengthProfile:
    return profile_dataset(dataset, tokenizer, **({"progress": False} | options))


def lengths(*args: Any, **options: Any) -> dict[int, int]:
    ended, cut = profile(*args, **options).sample.histograms
    assert not cut
    return ended


# --- the profile --------------------------------------------------------------------------------


def test_it_says_what_it_was_taken_from() -> None:
    table = Dataset.from_dict({"question": ["q"] * 3, "answer": [LONG, None, LONG + "y"]})
    made = profile(table)
    assert made.sample.histograms == ({21: 1, 22: 1}, {})
    assert (made.source, made.column, made.skipped) == ("reference", "answer", 1)
    assert (made.limit, made.longest_prompt, made.context_window) == (None, None, None)
    assert made.notes == (
        "Column `answer` was taken, by its first rows the first of `completion`, `messages`, "
        "`solution`, `answer`, `response`, `output`, `text` that holds answers; name another "
        "one with `column`.",
        REFERENCE_NOTE,
    )


def test_a_column_that_was_named_or_is_the_only_one_needs_no_note() -> None:
    table = Dataset.from_dict({"question": ["q"], "answer": [LONG]})
    assert profile(table, column="answer").notes == (REFERENCE_NOTE,)
    assert profile([LONG]).notes == (REFERENCE_NOTE,)


def test_a_column_of_questions_alone_is_passed_over_for_one_of_answers() -> None:
    rows = [{"messages": [user("Is it?")], "solution": LONG}] * 2
    for dataset in (rows, Dataset.from_list(rows)):
        made = profile(dataset)
        assert made.column == "solution"
        assert made.sample.histograms == ({21: 2}, {})


def test_the_column_that_was_picked_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "truncation_guard")
    profile(Dataset.from_dict({"question": ["q"], "answer": [LONG]}))
    profile(Dataset.from_dict({"question": ["q"], "answer": [LONG]}), column="answer")
    profile([LONG])
    assert [record.getMessage() for record in caplog.records] == [
        "[truncation-guard] reference answers are taken from column `answer`"
    ]


def test_the_limit_for_a_reference_of_256_tokens_is_320_as_in_case_7() -> None:
    made = profile([" ".join(["w5"] * 256)], tiny.tokenizer())
    assert made.sample.longest == 257
    assert made.recommend(coverage=1.0, multiple_of=1).max_completion_length == 257
    assert made.recommend(coverage=1.0).max_completion_length == 320


@pytest.mark.parametrize(("tokens", "warns"), [(16, True), (17, False)])
def test_a_column_of_final_answers_alone_is_warned_about(
    tokens: int, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    texts = ["x" * (tokens - 1)] * 2 + ["x" * 500] * 2
    made = profile(Dataset.from_dict({"prompt": ["q"] * 4, "solution": texts}), column="solution")
    note = (
        f"Half of the answers in column `solution` have at most {tokens} tokens, as final "
        "answers have: they cannot size a limit."
    )
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert warnings == (
        [f"[truncation-guard] {note} Use truncation_guard.profile_rollouts."] if warns else []
    )
    assert made.notes == ((note, REFERENCE_NOTE) if warns else (REFERENCE_NOTE,))


# --- every source gives the same ----------------------------------------------------------------

ROWS = [
    {"prompt": [user("Is it?")], "answer": "x" * n, "level": n}
    for n in random.Random(1).choices(range(50), k=40)
]
EXPECTED = {
    n: count
    for n, count in sorted(
        {n + 1: sum(len(row["answer"]) == n for row in ROWS) for n in range(1, 50)}.items()
    )
    if count
}


@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        (Dataset.from_list(ROWS), {}),
        (Dataset.from_list(ROWS), {"batch_size": 1}),
        *[
            (Dataset.from_list(ROWS), {"progress": progress, "batch_size": size})
            for progress in (True, False)
            for size in (7, 40, 1000)
        ],
        (Dataset.from_list(ROWS).to_iterable_dataset(), {}),
        (Dataset.from_list(ROWS).to_iterable_dataset(), {"max_samples": 40}),
        (DatasetDict({"train": Dataset.from_list(ROWS)}), {}),
        (
            DatasetDict({"train": Dataset.from_list(ROWS), "test": Dataset.from_list(ROWS[:1])}),
            {"split": "train"},
        ),
        (ROWS, {}),
        (ROWS, {"max_samples": 40}),
        ([row["answer"] for row in ROWS], {}),
        ([[*row["prompt"], assistant(row["answer"])] for row in ROWS], {"batch_size": 7}),
    ],
)
def test_every_source_gives_the_same_lengths(dataset: Any, options: dict[str, Any]) -> None:
    made = profile(dataset, **options)
    assert made.sample.histograms == (EXPECTED, {})
    assert made.skipped == sum(not row["answer"] for row in ROWS)


def test_what_pandas_has_for_a_missing_text_is_no_answer() -> None:
    rows = [{"answer": "w5 w6"}, {"answer": float("nan")}]
    assert profile_dataset(rows, tiny.tokenizer()).skipped == 1


@settings(deadline=None, max_examples=25)
@given(data=st.data(), sizes=st.lists(st.integers(1, 60), min_size=1, max_size=30))
def test_the_order_of_the_rows_changes_nothing(data: st.DataObject, sizes: list[int]) -> None:
    shuffled = data.draw(st.permutations(sizes))
    made = profile(["x" * n for n in shuffled], batch_size=data.draw(st.integers(1, 9)))
    assert made.sample.histograms == profile(["x" * n for n in sizes]).sample.histograms
    for q in (0.5, 0.95):
        tokens = [n + 1 for n in sizes]
        assert made.sample.quantile(q) == np.quantile(tokens, q, method="inverted_cdf")


def test_what_arrow_fills_into_messages_and_tools_does_not_count() -> None:
    tool_schema = {"type": "function", "function": {"name": "add", "parameters": {"b": 1}}}
    other_schema = {"type": "function", "function": {"name": "sub", "strict": True}}
    rows = [
        {
            "messages": [
                user("1+2?"),
                assistant("", tool_calls=chats.call(a=1)),
                chats.tool("3"),
                assistant("three"),
            ],
            "tools": [tool_schema],
        },
        {
            "messages": [user("hi"), assistant("ho", tool_calls=chats.call(b="2"))],
            "tools": [other_schema],
        },
    ]
    table = Dataset.from_list(rows)
    assert table[0]["messages"][0]["tool_calls"] is None
    made = chats.tokenizer(chats.template_of_trl("qwen2_5"))
    first = (
        '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\nthree<|im_end|>"
    )
    second = 'ho\n<tool_call>\n{"name": "add", "arguments": {"b": "2"}}\n</tool_call><|im_end|>'
    longest = made.apply_chat_template(
        rows[0]["messages"][:1], tools=[tool_schema], add_generation_prompt=True
    )
    for dataset in (rows, table, table.to_iterable_dataset()):
        profiled = profile(dataset, made, context_window=2000)
        assert profiled.sample.histograms == ({units(first): 1, units(second): 1}, {})
        assert profiled.longest_prompt == len(longest["input_ids"])


def test_a_processor_is_used_like_its_tokenizer() -> None:
    class Processor(ProcessorMixin):  # type: ignore[misc]
        tokenizer_class = "PreTrainedTokenizerFast"

        def __init__(self, tokenizer: Any, chat_template: str | None = None) -> None:
            super().__init__(tokenizer, chat_template=chat_template)

    template = chats.template_of_trl("gemma3")  # takes texts and blocks
    processor = Processor(chats.tokenizer(None), chat_template=template)
    blocks = [{"type": "text", "text": LONG}]
    for content in (LONG, blocks):
        chat = [[user([{"type": "image"}, {"type": "text", "text": "hi"}]), assistant(content)]]
        assert lengths(chat, processor) == {21: 1}
        assert lengths([[user("hi"), assistant(content)]], chats.tokenizer(template)) == {21: 1}


# --- samples ------------------------------------------------------------------------------------


def test_a_sample_is_noted_with_its_seed() -> None:
    texts = ["x" * n for n in range(20, 120)]
    made = profile(Dataset.from_dict({"text": texts}), max_samples=10, seed=3)
    assert len(made.sample) == 10
    assert made.notes == (REFERENCE_NOTE, "A random sample of 10 of 100 rows (seed 3).")
    assert made.sample.histograms == profile(texts, max_samples=10, seed=3).sample.histograms
    assert made.sample.histograms != profile(texts, max_samples=10, seed=4).sample.histograms


def test_more_samples_than_rows_are_all_rows_and_noted() -> None:
    for dataset in ([LONG] * 3, Dataset.from_dict({"text": [LONG] * 3}).to_iterable_dataset()):
        assert profile(dataset, max_samples=4).notes == (
            REFERENCE_NOTE,
            "`max_samples` (4) is more than the 3 rows there are: all count.",
        )
    assert profile([LONG] * 3, max_samples=3).notes == (REFERENCE_NOTE,)


def test_the_first_rows_of_a_stream_are_noted() -> None:
    rows = Dataset.from_dict({"text": ["x" * n for n in range(20, 120)]}).to_iterable_dataset()
    made = profile(rows, max_samples=3)
    assert made.sample.histograms == ({21: 1, 22: 1, 23: 1}, {})
    assert made.notes == (REFERENCE_NOTE, "The first 3 rows of a stream.")


# --- the bar ------------------------------------------------------------------------------------


def bar_output(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    dataset: Any,
    seconds: float = 0.0,
    is_terminal: bool = True,
) -> str:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    monkeypatch.setattr(profiling, "_SECONDS_WITHOUT_A_BAR", seconds)
    profile(dataset, column="text", progress=True, batch_size=50)
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_long_work_shows_a_bar_on_stderr_and_takes_it_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = bar_output(monkeypatch, capsys, [LONG] * 101)
    assert "counting tokens" in shown
    assert shown.endswith("\r")


def test_short_work_shows_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bar_output(monkeypatch, capsys, [LONG] * 101, seconds=60.0) == ""


def test_a_log_file_gets_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bar_output(monkeypatch, capsys, [LONG] * 101, is_terminal=False) == ""


def test_an_error_takes_the_bar_down(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [*[{"text": LONG}] * 100, {"text": 3}]
    with pytest.raises(TypeError, match=r"^Column `text` must hold text, but row 100 holds 3"):
        bar_output(monkeypatch, capsys, rows)
    assert capsys.readouterr().err.endswith("\r")


# --- prompts and the context window -------------------------------------------------------------


def test_the_longest_prompt_leaves_its_room_as_in_case_9() -> None:
    prompts = ["x" * 1024, "x"]
    table = Dataset.from_dict({"prompt": prompts, "completion": ["x" * 9999, LONG]})
    made = profile(table, context_window=4096)
    assert (made.longest_prompt, made.context_window) == (1024, 4096)
    assert made.recommend(coverage=1.0).max_completion_length == 3072


def test_a_prompt_that_fills_the_window_is_an_error_that_names_it_as_in_case_9() -> None:
    table = Dataset.from_dict({"prompt": ["x", "x" * 3353], "completion": [LONG, LONG]})
    with pytest.raises(ValueError, match=r".") as error:
        profile(table, context_window=2560)
    assert str(error.value) == (
        "The prompt of row 1 has 3353 tokens, which leaves no room for an answer in "
        "`context_window=2560`. Filter out such rows, or pass a longer window if the model "
        "has one."
    )


def test_a_window_without_prompts_is_noted() -> None:
    made = profile([LONG], context_window=64)
    assert made.longest_prompt is None
    assert made.notes == (
        REFERENCE_NOTE,
        "No prompt is known, so the context window is not taken into account.",
    )


def test_conversational_prompts_are_measured_with_the_generation_prompt() -> None:
    made = profile([[user("Is it?"), assistant(LONG)]], context_window=64)
    text = "<|im_start|>user\nIs it?<|im_end|>\n<|im_start|>assistant\n"
    assert made.longest_prompt == units(text)


def test_template_arguments_reach_the_template() -> None:
    made = chats.tokenizer(chats.CHATML + "{{ more }}")
    chat = [[user("Is it?"), assistant(LONG)]]
    assert lengths(chat, made) == {21: 1}
    # Where the generation prompt ends in it, and so does the answer.
    assert lengths(chat, made, chat_template_kwargs={"more": "<|im_end|>"}) == {21: 1}


# --- what is refused ----------------------------------------------------------------------------

ANOTHER = "Name another column with `column`, or convert it."
NOT_FOUND = (
    "No column holds answers by its name (`completion`, `messages`, `solution`, "
    "`answer`, `response`, `output`, `text`) as text or messages. There are: "
)
EMPTY = "`dataset` is empty. Pass one with at least one row."
TABLE = Dataset.from_dict({"question": ["q", "r"], "answer": [LONG, LONG], "level": [1, 2]})


@pytest.mark.parametrize(
    ("dataset", "options", "kind", "text"),
    [
        (
            TABLE,
            {"column": "solution"},
            ValueError,
            "There is no column 'solution'. There are: `question`, `answer`, `level`.",
        ),
        (
            TABLE,
            {"column": "level"},
            TypeError,
            f"Column `level` must hold text or messages, but row 0 holds 1 (int). {ANOTHER}",
        ),
        (
            [{"answer": "a"}, {"answer": None}, {"answer": 3}],
            {"column": "answer"},
            TypeError,
            f"Column `answer` must hold text, but row 2 holds 3 (int). {ANOTHER}",
        ),
        (
            TABLE.remove_columns("answer"),
            {},
            ValueError,
            f"{NOT_FOUND}`question`, `level`. Name the right one with `column`.",
        ),
        (
            [None, "", " "],
            {},
            ValueError,
            "Column `text` holds no answer: all 3 rows that were read are empty, or have no "
            "message of the role `assistant`. "
            "Name another one with `column`.",
        ),
        (
            Dataset.from_dict({"answer": ["", ""]}),
            {},
            ValueError,
            "Column `answer` holds no answer: all 2 rows that were read are empty, or have no "
            "message of the role `assistant`. "
            "Name another one with `column`.",
        ),
        ([], {}, ValueError, EMPTY),
        (
            TABLE.to_iterable_dataset().filter(lambda row: False),
            {},
            ValueError,
            EMPTY,
        ),
        (
            TABLE,
            {"batch_size": 0},
            ValueError,
            "`batch_size` must be an integer of at least 1, got 0. Pass a number of rows.",
        ),
        (
            TABLE,
            {"max_samples": 0},
            ValueError,
            "`max_samples` must be an integer of at least 1, got 0. Pass None for all rows.",
        ),
        (
            TABLE,
            {"max_samples": 2.5},
            ValueError,
            "`max_samples` must be an integer of at least 1, got 2.5. Pass None for all rows.",
        ),
        (
            TABLE,
            {"context_window": True},
            ValueError,
            "`context_window` must be an integer of at least 1, got True. "
            "Pass a number of tokens, or None.",
        ),
        (
            TABLE,
            {"seed": None},
            ValueError,
            "`seed` must be an integer, got None. Pass for example 0.",
        ),
        (
            TABLE,
            {"chat_template_kwargs": "a"},
            TypeError,
            "`chat_template_kwargs` must be a dict, got str. "
            "Pass for example {'enable_thinking': False}.",
        ),
        (
            [user("a"), assistant("b")],
            {},
            ValueError,
            f"{NOT_FOUND}`role`, `content`. A conversation is a list of messages: pass a list of "
            "conversations.",
        ),
    ],
)
def test_what_cannot_be_profiled_is_refused(
    dataset: Any, options: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind) as error:
        profile(dataset, **options)
    assert str(error.value) == text


@pytest.mark.parametrize(
    ("dataset", "tokenizer", "text"),
    [
        (
            [[user("a"), assistant("b")]],
            chats.tokenizer(None),
            "Column `messages` is conversational, but the tokenizer has no chat template. "
            "Pass the one of an instruct model, or set its `chat_template`.",
        ),
        (
            [{"prompt": [user("a")], "answer": "b"}],
            chats.tokenizer(None),
            "Column `answer` is conversational, but the tokenizer has no chat template. "
            "Pass the one of an instruct model, or set its `chat_template`.",
        ),
        (
            ["a"],
            tiny.tokenizer(eos_token=None, additional_special_tokens=["w4"]),
            "The tokenizer has no `eos_token`, so what ends an answer is not known. Set it to the "
            "token that the model ends its answers with.",
        ),
        (
            [[user("a"), assistant("b")]],
            chats.tokenizer("{{ raise_exception('no such role') }}"),
            "The chat template cannot render row 0: no such role. Filter out such rows, or pass "
            "what the template needs in `chat_template_kwargs`.",
        ),
    ],
)
def test_a_tokenizer_that_does_not_fit_is_refused(dataset: Any, tokenizer: Any, text: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        profile(dataset, tokenizer)
    assert str(error.value) == text


@pytest.mark.parametrize("tokenizer", [None, "gpt2"])
def test_a_name_is_no_tokenizer(tokenizer: Any) -> None:
    with pytest.raises(TypeError) as error:
        profile_dataset(["a"], tokenizer)
    assert str(error.value) == (
        "`tokenizer` must be a tokenizer or a processor of transformers, got "
        f"{tokenizer!r}. Pass AutoTokenizer.from_pretrained(...)."
    )


def test_rows_that_are_made_when_they_are_read_are_counted() -> None:
    made_up = Dataset.from_dict({"x": ["abc", "de"]}).with_transform(
        lambda rows: {"answer": [2 * text for text in rows["x"]]}
    )
    counted = profile(made_up, column="answer")
    assert counted.sample.histograms == ({7: 1, 5: 1}, {})


def test_reasoning_that_the_template_leaves_out_is_said_to_be_missing() -> None:
    answers = [
        {"role": "assistant", "content": "ok", "reasoning_content": "hm hm"},
        {"role": "assistant", "content": "ok", "reasoning_content": ""},
        {"role": "assistant", "content": "ok"},
    ]
    rows = [{"prompt": [user("q")], "completion": [answer]} for answer in answers]
    assert any(
        note.startswith("1 answers have reasoning in a field of its own")
        for note in profile(rows).notes
    )
    assert not any("reasoning" in note for note in profile(rows[1:]).notes)
