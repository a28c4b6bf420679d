from __future__ import annotations

import json
from typing import Any

import pytest
from support.chats import assistant, call, tool, user
from trl.trainer.utils import remove_none_values

from truncation_guard.profiling.dataset.conversations import (
    Chat,
    chats_of_row,
)

SYSTEM = {"role": "system", "content": "Be nice."}


def chats(
    messages: list[dict[str, Any]],
    prompt: Any = None,
    tools: Any = None,
    *,
    takes_blocks: bool = False,
) -> list[Chat]:
    return list(chats_of_row(7, messages, prompt, tools, takes_blocks=takes_blocks))


# --- which messages are a completion ------------------------------------------------------------


def test_each_assistant_turn_is_a_completion_with_all_before_as_its_prompt() -> None:
    messages = [SYSTEM, user("1"), assistant("a"), user("2"), assistant("b")]
    assert chats(messages) == [
        Chat(7, messages[:2], [messages[2]], None),
        Chat(7, messages[:4], [messages[4]], None),
    ]


def test_a_tool_loop_is_one_completion_up_to_its_last_assistant_message() -> None:
    messages = [
        user("1"),
        assistant(None, tool_calls=call(a=1)),
        tool("2"),
        tool("3"),
        assistant("5"),
        tool("unanswered"),
        user("2"),
    ]
    assert chats(messages) == [Chat(7, messages[:1], messages[1:5], None)]


def test_assistant_messages_in_a_row_are_one_completion() -> None:
    messages = [user("1"), assistant("a"), assistant("b")]
    assert chats(messages) == [Chat(7, messages[:1], messages[1:], None)]


def test_messages_after_a_prompt_are_cut_nowhere_else() -> None:
    prompt = [user("1"), assistant("The answer is")]
    assert chats([assistant(" 3")], prompt) == [Chat(7, prompt, [assistant(" 3")], None)]


def test_a_tool_result_that_the_completion_begins_with_belongs_to_the_prompt() -> None:
    messages = [user("1"), tool("2"), assistant("a")]
    assert chats(messages) == [Chat(7, messages[:2], messages[2:], None)]


def test_a_prompt_in_text_is_what_the_user_said() -> None:
    assert chats([assistant("a")], "q") == [Chat(7, [user("q")], [assistant("a")], None)]


def test_a_prompt_in_text_is_ignored_before_a_whole_conversation() -> None:
    messages = [user("1"), assistant("a")]
    assert chats(messages, "1") == [Chat(7, messages[:1], messages[1:], None)]


def test_without_a_prompt_one_is_made_up_and_marked() -> None:
    (chat,) = chats([assistant("a")])
    assert [message["role"] for message in chat.prompt] == ["user"]
    assert chat.completion == [assistant("a")]
    assert not chat.has_prompt


@pytest.mark.parametrize("content", [None, "", " \n", [], [{"type": "text", "text": ""}]])
def test_an_answer_that_says_nothing_is_none(content: Any) -> None:
    assert chats([user("1"), assistant(content)]) == []
    said = chats([user("1"), assistant(content), user("2"), assistant("b")])
    assert [chat.completion for chat in said] == [[assistant("b")]]


def test_nothing_after_what_was_said_counts() -> None:
    assert chats([user("1"), assistant("a"), assistant("")]) == [
        Chat(7, [user("1")], [assistant("a")], None)
    ]


@pytest.mark.parametrize("more", [{"tool_calls": call(a=1)}, {"reasoning_content": "hm"}])
def test_a_call_or_a_thought_is_something_said(more: dict[str, Any]) -> None:
    messages = [user("1"), assistant("", **more)]
    assert chats(messages) == [Chat(7, messages[:1], messages[1:], None)]


def test_a_conversation_of_questions_alone_holds_no_completion() -> None:
    assert chats([SYSTEM, user("1")]) == []


# --- what arrow and users make of messages ------------------------------------------------------


def test_the_none_that_arrow_fills_in_is_taken_out_as_trl_does() -> None:
    filled = assistant(
        "a", name=None, tool_calls=[{"function": {"arguments": {"a": 1, "b": None}}}]
    )
    tools = [{"type": "function", "function": {"name": "add", "strict": None}}]
    (chat,) = chats([user("1"), filled], tools=tools)
    assert chat.completion == [remove_none_values(filled)]
    assert chat.tools == remove_none_values(tools)


def test_the_content_beside_a_tool_call_stays_none() -> None:
    messages = [user("1"), assistant(None, tool_calls=call(a=1), name=None)]
    assert chats(messages)[0].completion == [assistant(None, tool_calls=call(a=1))]


def test_blocks_of_text_become_one_text_for_a_tokenizer() -> None:
    blocks = [{"type": "text", "text": "a"}, "b", {"text": "c", "type": None}]
    assert chats([user(blocks), assistant(blocks)]) == [
        Chat(7, [user("abc")], [assistant("abc")], None)
    ]


@pytest.mark.parametrize(
    ("block", "name"), [({"type": "image"}, "'image'"), (3, "'int'"), ({"text": 3}, "None")]
)
def test_other_blocks_need_a_processor(block: Any, name: str) -> None:
    with pytest.raises(TypeError) as error:
        chats([user([block]), assistant("a")])
    assert str(error.value) == (
        f"Row 7 holds content of type {name}, which a tokenizer cannot render. "
        "Pass the model's processor in place of its tokenizer."
    )


def test_a_processor_gets_blocks_as_from_trl() -> None:
    messages = [user([{"type": "image"}]), user("1"), assistant("a")]
    (chat,) = chats(messages, takes_blocks=True)
    assert chat.prompt == [messages[0], user([{"type": "text", "text": "1"}])]
    assert chat.completion == [assistant([{"type": "text", "text": "a"}])]
    assert chats([assistant("a")], takes_blocks=True)[0].prompt[0]["content"][0]["type"] == "text"


@pytest.mark.parametrize("tools", [None, "", "  ", [], "[]"])
def test_no_tools_are_none_as_in_trl(tools: Any) -> None:
    assert chats([user("1"), assistant("a")], tools=tools)[0].tools is None


def test_tools_may_be_json() -> None:
    tools = [{"type": "function", "function": {"name": "add"}}]
    assert chats([user("1"), assistant("a")], tools=json.dumps(tools))[0].tools == tools


def test_tools_that_are_no_json_are_refused() -> None:
    with pytest.raises(ValueError, match=r".") as error:
        chats([user("1"), assistant("a")], tools="add")
    assert str(error.value) == (
        "The `tools` of row 7 are no JSON: Expecting value: line 1 column 1 (char 0). "
        "Pass a list of tool schemas, or the JSON of one."
    )
