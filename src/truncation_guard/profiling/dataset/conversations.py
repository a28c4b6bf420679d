"""The completions of a conversation, each with its prompt.

A completion is a run of assistant messages, with the results of the tools they call, as in TRL's
tool loop; everything before it is its prompt.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]

_NO_PROMPT: Message = {"role": "user", "content": "."}
"""Chat templates want a turn before the answer; what it says does not count."""
REASONING = ("reasoning_content", "reasoning", "thinking")
"""The keys under which data sets keep a message's reasoning apart from its content."""
_SAID = ("content", "tool_calls", *REASONING)
"""The keys under which an assistant message says something."""


@dataclass(frozen=True, slots=True)
class Chat:
    """A completion within its conversation."""

    row: int
    """Where it is from."""
    prompt: list[Message]
    completion: list[Message]
    """Begins and ends with an assistant message."""
    tools: list[Any] | None
    has_prompt: bool = True
    """False where `prompt` is made up."""


def chats_of_row(
    row: int,
    messages: Sequence[Mapping[str, Any]],
    prompt: str | Sequence[Mapping[str, Any]] | None,
    tools: object,
    *,
    takes_blocks: bool,
) -> Iterator[Chat]:
    """The completions of one conversation.

    Args:
        row: its number, for error texts.
        messages: the answer, or the whole conversation.
        prompt: what stands before the messages: a list of messages, or a text that the user said,
            which is ignored where `messages` has a prompt of its own; None: nothing.
        tools: a list of tools or its JSON, as TRL allows.
        takes_blocks: whether the chat template is given content as a list of blocks, as TRL does
            with a processor, rather than as a text.

    Raises:
        TypeError: for content that a text template cannot hold.
        ValueError: for tools that are no JSON.
    """
    if isinstance(prompt, str):
        is_asked = messages[0]["role"] == "assistant"
        before: Sequence[Mapping[str, Any]] = (
            [{"role": "user", "content": prompt}] if is_asked else ()
        )
    else:
        before = prompt or ()
    whole = [_clean(message, row, takes_blocks) for message in [*before, *messages]]
    schemas = _schemas(tools, row)
    for start, end in _runs(whole, len(before)):
        made_up = [] if start else [_clean(_NO_PROMPT, row, takes_blocks)]
        yield Chat(row, [*whole[:start], *made_up], whole[start:end], schemas, not made_up)


def _runs(messages: Sequence[Message], first: int) -> Iterator[tuple[int, int]]:
    """(start, end) of each run of assistant and tool messages that says something.

    It begins with an assistant message, at `first` or later, and ends with one: generation would
    not write a tool's result that nothing follows.
    """
    start = end = None
    for i, message in enumerate([*messages[first:], {"role": "user"}], first):
        if message["role"] == "assistant":
            start = i if start is None else start
            end = i + 1 if end is None or _says_something(message) else end
        elif message["role"] != "tool" and start is not None and end is not None:
            if any(_says_something(said) for said in messages[start:end]):
                yield start, end
            start = end = None


def _says_something(message: Message) -> bool:
    values = (message.get(key) for key in _SAID if message["role"] == "assistant")
    return any(_text_of(value).strip() for value in values)


def _text_of(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "".join(
            str(item.get("text", item)) if isinstance(item, Mapping) else str(item)
            for item in value
        )
    return "" if value is None else str(value)


def _clean(message: Mapping[str, Any], row: int, takes_blocks: bool) -> Message:
    # Arrow fills the keys that a struct lacks with None, which `trl.trainer.utils` has
    # `remove_none_values` for. Content stays: it is None beside tool calls, and templates ask.
    cleaned: Message = {
        key: _without_none(value)
        for key, value in message.items()
        if value is not None or key == "content"
    }
    content = cleaned.get("content")
    if takes_blocks and isinstance(content, str):
        cleaned["content"] = [{"type": "text", "text": content}]
    elif not takes_blocks and isinstance(content, (list, tuple)):
        cleaned["content"] = "".join(_block_text(block, row) for block in content)
    return cleaned


def _schemas(tools: Any, row: int) -> list[Any] | None:
    if isinstance(tools, str) and tools.strip():
        try:
            tools = json.loads(tools)
        except ValueError as error:
            raise ValueError(
                f"The `tools` of row {row} are no JSON: {error}. Pass a list of tool schemas, or "
                "the JSON of one."
            ) from error
    # An empty list makes some templates write about tools, which is why TRL passes None too.
    return _without_none(list(tools)) if isinstance(tools, (list, tuple)) and tools else None


def _block_text(block: Any, row: int) -> str:
    # A template for texts would print a list as Python does, and count its brackets.
    if isinstance(block, str):
        return block
    if isinstance(block, Mapping) and isinstance(block.get("text"), str):
        return str(block["text"])
    kind = block.get("type") if isinstance(block, Mapping) else type(block).__name__
    raise TypeError(
        f"Row {row} holds content of type {kind!r}, which a tokenizer cannot render. "
        "Pass the model's processor in place of its tokenizer."
    )


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_without_none(item) for item in value]
    return value
