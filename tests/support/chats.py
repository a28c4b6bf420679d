"""A tokenizer of bytes and chat templates of several families, small enough to count by hand.

Each byte of UTF-8 is a token, and so is each special token.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL = (
    "<pad>",
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|end|>",
    "<|assistant|>",
    "<|user|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<\uff5cUser\uff5c>",
    "<\uff5cAssistant\uff5c>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)
NOT_SPECIAL = ("<think>", "</think>")
"""Tokens of their own all the same, as in Qwen3 and DeepSeek-R1."""

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
DEFAULT_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nBe nice.<|im_end|>\n{% endif %}"
    + CHATML
)
STRIPS = CHATML.replace("m['content']", "m['content'] | trim")
NO_GENERATION_PROMPT = CHATML.partition("{% if add")[0]
NO_STOP = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
EMPTY_THINKING = CHATML.replace(
    "<|im_start|>assistant\n{% endif %}",
    "<|im_start|>assistant\n<think>\n\n</think>\n\n{% endif %}",
)
"""The generation prompt closes the thinking, and past turns show none: Gemma 4, GLM."""
OPEN_THINKING = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] == 'user' %}<\uff5cUser\uff5c>{{ m['content'] }}"
    "{% else %}<\uff5cAssistant\uff5c>{{ m['content'].split('</think>')[-1] }}"
    "<\uff5cend\u2581of\u2581sentence\uff5c>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<\uff5cAssistant\uff5c><think>\n{% endif %}"
)
"""The generation prompt opens the thinking, and past turns lose theirs: DeepSeek-R1."""


def tokenizer(
    chat_template: str | None = CHATML, eos_token: str | None = "<|im_end|>", **names: Any
) -> PreTrainedTokenizerFast:
    """One token for each byte and for each of `SPECIAL` and `NOT_SPECIAL`."""
    vocabulary = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([*SPECIAL])
    core.add_tokens([*NOT_SPECIAL])
    made = PreTrainedTokenizerFast(
        tokenizer_object=core,
        **({"pad_token": "<pad>", "bos_token": "<s>", "eos_token": eos_token} | names),
    )
    made.chat_template = chat_template
    return made


def units(text: str) -> int:
    """The tokens of a text, counted without a tokenizer."""
    pattern = "|".join(re.escape(token) for token in (*SPECIAL, *NOT_SPECIAL))
    return len(re.sub(pattern, "x", text).encode())


def template_of_trl(name: str) -> str:
    """A model family's own chat template, from TRL's collection."""
    return (files("trl") / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def tool(content: str, name: str = "add") -> dict[str, Any]:
    return {"role": "tool", "name": name, "content": content}


def call(**arguments: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "add", "arguments": arguments}}]
