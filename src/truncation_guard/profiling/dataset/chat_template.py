"""The text that generation has to produce for an answer, as the chat template renders it.

It begins where the prompt with its generation prompt ends. Where the template writes something else
before an answer than before generation (an empty thinking block, say), a probe in the answer's
place shows where the answer begins, so that an answer which looks like what the template wrote
loses nothing. `trl.apply_chat_template` (1.16) would take such characters for the prompt's, leave
out thinking that a template drops, and continue a prompt that ends with an assistant's message,
none of which GRPOTrainer does.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from itertools import takewhile
from typing import Any

from truncation_guard.profiling.dataset.conversations import (
    REASONING,
    Chat,
    Message,
)

_PROBE = "truncation-guard-probe"
_END_OF_THINKING = "</think>"


class ChatRenderer:
    """Renders chats as TRL's trainer and the model's chat template do.

    Args:
        processing_class: the tokenizer, or the processor.
        template_kwargs: further arguments for the template, as `GRPOConfig.chat_template_kwargs`.
        special_tokens: what may stand between two parts of a template.
        prefers_blocks: whether content is given as a list of blocks rather than as a text where the
            template takes both.
    """

    def __init__(
        self,
        processing_class: Any,
        template_kwargs: dict[str, Any],
        special_tokens: Sequence[str],
        *,
        prefers_blocks: bool,
    ) -> None:
        self._processing_class = processing_class
        self._template_kwargs = template_kwargs
        self._prefers_blocks = prefers_blocks
        self._special_tokens = special_tokens

    def render(self, chats: Sequence[Chat]) -> list[tuple[str, str]]:
        """(prompt with generation prompt, answer with whatever ends it) of each chat.

        Raises:
            ValueError: where the template refuses a row.
        """
        prompts = self._render_all(chats, [chat.prompt for chat in chats], True)
        wholes = self._render_all(chats, [chat.prompt + chat.completion for chat in chats], False)
        return [
            (prompt, self._answer(chat, prompt, whole))
            for chat, prompt, whole in zip(chats, prompts, wholes, strict=True)
        ]

    @property
    def has_template(self) -> bool:
        """Whether there is a template to render with."""
        own = getattr(self._processing_class, "chat_template", None)
        return bool(own or self._template_kwargs.get("chat_template"))

    @cached_property
    def takes_blocks(self) -> bool:
        """Whether content goes in as a list of blocks.

        Some templates print what they do not take as Python does, and some (SmolVLM's, Qwen3's)
        leave it out: nothing is raised, and an answer would have no length.
        """
        for as_blocks in (self._prefers_blocks, not self._prefers_blocks):
            chat = [{"role": role, "content": _probe(as_blocks)} for role in ("user", "assistant")]
            with suppress(Exception):
                (text,) = self._apply([chat], None, False)
                quoted = any(quote + _PROBE in text for quote in "\"'")
                if text.count(_PROBE) == len(chat) and not quoted:
                    return as_blocks
        return self._prefers_blocks

    def _render_all(
        self, chats: Sequence[Chat], conversations: list[list[Message]], generate: bool
    ) -> list[str]:
        if not any(chat.tools for chat in chats):  # in one call, which takes half the time
            # Which row a template refuses is found out one by one, below.
            with suppress(Exception):
                return self._apply(conversations, None, generate)
        return [
            self._render_one(chat, conversation, generate)
            for chat, conversation in zip(chats, conversations, strict=True)
        ]

    def _render_one(self, chat: Chat, conversation: list[Message], generate: bool) -> str:
        try:
            return self._apply([conversation], chat.tools, generate)[0]
        except Exception as error:  # a template can raise anything: Jinja's, its own, Python's
            raise ValueError(
                f"The chat template cannot render row {chat.row}: {error}. Filter out such rows, "
                "or pass what the template needs in `chat_template_kwargs`."
            ) from error

    def _apply(
        self, conversations: list[list[Message]], tools: list[Any] | None, generate: bool
    ) -> list[str]:
        texts: list[str] = self._processing_class.apply_chat_template(
            conversations,
            tools=tools,
            add_generation_prompt=generate,
            tokenize=False,
            **self._template_kwargs,
        )
        return texts

    def _answer(self, chat: Chat, prompt: str, whole: str) -> str:
        thinking_is_lost = _loses_thinking(chat, whole.removeprefix(prompt))
        if whole.startswith(prompt) and not thinking_is_lost:
            return whole[len(prompt) :]
        probe = {"role": "assistant", "content": _probe(self.takes_blocks)}
        head, found, tail = self._render_one(chat, [*chat.prompt, probe], False).partition(_PROBE)
        if not found:
            return whole[self._shared_parts(prompt, whole) :]
        if thinking_is_lost:
            whole = head + _content(chat.completion[0]).strip() + tail
            if whole.startswith(prompt):
                return whole[len(prompt) :]
        start = self._start(chat, prompt, head)
        if whole.startswith(start):
            return whole[len(start) :]
        return whole[self._shared_parts(start, whole) :]

    def _start(self, chat: Chat, prompt: str, head: str) -> str:
        """The text before any answer that is not generated."""
        shared = _shared(prompt, head)
        alone = self._render_one(chat, chat.prompt, False)
        # Else the prompt itself is written differently once there is an answer.
        return shared if len(shared) >= len(_shared(prompt, alone)) else head

    def _shared_parts(self, start: str, whole: str) -> int:
        """Characters that both begin with, back to the end of a line or of a special token."""
        shared = _shared(start, whole)
        parts = [part for part in ("\n", *self._special_tokens) if part in shared]
        return max((shared.rfind(part) + len(part) for part in parts), default=0)


def leaves_reasoning_out(chat: Chat, answer: str) -> bool:
    """Whether a message has reasoning in a field of its own that its rendering does not show."""
    return any(
        text.strip() not in answer
        for message in chat.completion
        for key in REASONING
        if isinstance(text := message.get(key), str)
    )


def _shared(left: str, right: str) -> str:
    """The text that both begin with."""
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False))
    return "".join(character for character, _ in pairs)


def _loses_thinking(chat: Chat, answer: str) -> bool:
    """Whether the template drops the thinking, as DeepSeek's do: they take it for a past turn's.

    It has to be generated all the same.
    """
    return (
        len(chat.completion) == 1
        and _END_OF_THINKING in _content(chat.completion[0])
        and _END_OF_THINKING not in answer
    )


def _probe(as_blocks: bool) -> Any:
    return [{"type": "text", "text": _PROBE}] if as_blocks else _PROBE


def _content(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(block.get("text", "") for block in content)
    return content or ""
