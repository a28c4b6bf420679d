"""The tokens by which models end a turn or a text.

A tokenizer names one such token, and its chat template may use another. Read in TRL 1.16 and
transformers 5.24.
"""

import re
from typing import Any

_END_OF_TURN = re.compile(
    r"im_end|eo[stm](_id)?|end|/s|return|turn|"
    r"end_?of_?(text|turn|sentence|message|utterance)(_token)?",
    re.IGNORECASE,
)
"""Names, without their brackets, of the tokens by which models end a turn or a text."""
_PROBE = "truncation-guard-probe"
_BRACKETS = "<>[]|\uff5c"
_SPACES = "\u2581"
"""DeepSeek writes its special tokens with a full-width bar and a block for the space."""
_START_OF_TURN = "<|turn>"
"""Gemma 4 ends a turn with the same name and the bar on the other side."""


def end_of_turn_tokens(tokenizer: Any) -> list[tuple[int, str]]:
    """(id, name) of each special token that looks like an end of turn, by id."""
    try:
        added_tokens = sorted(tokenizer.added_tokens_decoder.items())
    except (AttributeError, NotImplementedError):  # as in Mistral's own tokenizers
        return []
    special = {added.content for _, added in added_tokens if added.special}
    special.update(tokenizer.all_special_tokens)
    # Harmony (gpt-oss) ends an answer with <|return|>; <|end|> stands between its channels.
    inner = {_START_OF_TURN} | ({"<|end|>"} if "<|return|>" in special else set())
    return [
        (token, added.content)
        for token, added in added_tokens
        if added.content in special - inner
        and _END_OF_TURN.fullmatch(added.content.strip(_BRACKETS).replace(_SPACES, "_"))
    ]


def template_ends(trainer: Any) -> list[tuple[int, str]]:
    """(id, name) of each special token that the chat template writes after an answer.

    Empty where it writes none, like GLM's, in which the next turn's first token ends an answer.
    """
    processor = trainer.processing_class
    tokenizer = getattr(processor, "tokenizer", processor)
    content: Any = _PROBE
    if tokenizer is not processor:  # TRL gives a processor blocks; many take nothing else
        content = [{"type": "text", "text": _PROBE}]
    text: str = processor.apply_chat_template(
        [{"role": role, "content": content} for role in ("user", "assistant")],
        tools=getattr(trainer, "tools", None) or None,
        chat_template=getattr(trainer, "chat_template", None),  # RLOO has none of its own
        tokenize=False,
        add_generation_prompt=False,
        **trainer.chat_template_kwargs,
    )
    _, found, tail = text.rpartition(_PROBE)
    if not found:
        return []
    special = {*tokenizer.all_special_ids}
    special |= {token for token, added in tokenizer.added_tokens_decoder.items() if added.special}
    ids = tokenizer(tail, add_special_tokens=False)["input_ids"]
    return [(token, tokenizer.convert_ids_to_tokens(token)) for token in ids if token in special]
