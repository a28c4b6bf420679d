from __future__ import annotations

from typing import Any

import pytest
from support.chats import assistant, user

from truncation_guard.profiling.dataset.answer_column import (
    ANSWER_COLUMNS,
    check_column,
    choose_column,
    columns_to_read,
    is_nothing,
    kind_of,
    listed,
)

CHAT = [user("hi"), assistant("ho")]


@pytest.mark.parametrize(
    ("columns", "chosen"),
    [
        (["prompt", "completion"], "completion"),
        (["text", "messages", "answer"], "messages"),
        (["question", "answer"], "answer"),
        (["problem", "answer", "solution"], "solution"),
        (["instruction", "input", "output"], "output"),
        (["text", "response"], "response"),
        (["text"], "text"),
    ],
)
def test_the_column_is_chosen_by_the_conventions(columns: list[str], chosen: str) -> None:
    first = {name: ["some text"] for name in columns if name in ANSWER_COLUMNS}
    assert choose_column(columns, first) == chosen


def test_preferences_are_not_answers_that_grpo_trains_on() -> None:
    with pytest.raises(ValueError, match=r"^No column holds answers by its name"):
        choose_column(["prompt", "chosen", "rejected"], {})


@pytest.mark.parametrize("unfit", [[3], [0.5], [["a", "b"]], [{"a": 1}], ["text", 3], [True]])
def test_a_column_that_holds_something_else_is_passed_over(unfit: list[Any]) -> None:
    first = {"solution": unfit, "answer": [None, "because"]}
    assert choose_column(["solution", "answer"], first) == "answer"


def test_a_column_whose_first_rows_are_empty_is_the_last_resort() -> None:
    first = {"completion": [None, ""], "text": [CHAT]}
    assert choose_column(["completion", "text"], first) == "text"
    assert choose_column(["completion"], first) == "completion"


def test_messages_without_an_answer_are_the_last_resort_too() -> None:
    first = {"messages": [[user("hi")], CHAT[:1], []], "solution": ["because"]}
    assert choose_column(["messages", "solution"], first) == "solution"
    assert choose_column(["messages"], first) == "messages"
    first["messages"].append(CHAT)
    assert choose_column(["messages", "solution"], first) == "messages"


def test_where_nothing_fits_the_columns_are_listed() -> None:
    with pytest.raises(ValueError, match=r".") as error:
        choose_column(["question", "answer", "level"], {"answer": [3]})
    assert str(error.value) == (
        "No column holds answers by its name (`completion`, `messages`, `solution`, "
        "`answer`, `response`, `output`, `text`) as text or messages. There are: `question`, "
        "`answer`, `level`. Name the right one with `column`."
    )


def test_a_single_conversation_is_recognised_by_its_columns() -> None:
    with pytest.raises(ValueError, match=r".") as error:
        choose_column(["role", "content"], {})
    assert str(error.value) == (
        "No column holds answers by its name (`completion`, `messages`, `solution`, "
        "`answer`, `response`, `output`, `text`) as text or messages. There are: `role`, "
        "`content`. A conversation is a list of messages: pass a list of conversations."
    )


def test_a_column_that_is_not_there_is_refused_with_those_that_are() -> None:
    check_column("a", ["a", "b"])
    with pytest.raises(ValueError, match=r".") as error:
        check_column("c", ["a", "b"])
    assert str(error.value) == "There is no column 'c'. There are: `a`, `b`."


@pytest.mark.parametrize(
    ("column", "first", "measure_prompts", "names"),
    [
        ("answer", {"answer": ["a"], "prompt": ["p"]}, False, ["answer", "tools"]),
        ("answer", {"answer": ["a"], "prompt": ["p"]}, True, ["answer", "tools", "prompt"]),
        ("answer", {"answer": ["a"], "prompt": [CHAT]}, False, ["answer", "tools", "prompt"]),
        ("answer", {"answer": [CHAT], "prompt": ["p"]}, False, ["answer", "tools", "prompt"]),
        # Nothing is known of what comes after the first rows.
        ("answer", {"answer": [None], "prompt": [None]}, False, ["answer", "tools", "prompt"]),
        ("prompt", {"prompt": ["p"]}, True, ["prompt", "tools"]),
    ],
)
def test_no_more_columns_are_read_than_the_count_depends_on(
    column: str, first: dict[str, list[Any]], measure_prompts: bool, names: list[str]
) -> None:
    columns = ["prompt", "answer", "tools", "image"]
    assert columns_to_read(column, columns, first, measure_prompts=measure_prompts) == names


def test_the_answers_may_be_all_there_is() -> None:
    assert columns_to_read("text", ["text"], {"text": ["a"]}, measure_prompts=True) == ["text"]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("", "text"),
        ("a", "text"),
        (CHAT, "messages"),
        (tuple(CHAT), "messages"),
        ([], None),
        (["a"], None),
        ([user("hi"), "ho"], None),
        ([{"from": "human", "value": "hi"}], None),
        (user("hi"), None),
        (3, None),
        (None, None),
    ],
)
def test_text_and_messages_are_told_from_the_rest(value: Any, kind: str | None) -> None:
    assert kind_of(value) == kind


@pytest.mark.parametrize(
    ("value", "nothing"),
    [
        *[(value, True) for value in (None, float("nan"), "", " \n", [], ())],
        *[(value, False) for value in ("a", 0, 0.0)],
    ],
)
def test_empty_texts_and_lists_are_nothing(value: Any, nothing: bool) -> None:
    assert is_nothing(value) is nothing


def test_names_are_listed_in_their_order() -> None:
    assert listed(["b", "a"]) == "`b`, `a`"
