"""The tokens by which models end a turn or a text, told by their names.

The one idea: a tokenizer names one end, and a chat template may use another. Read in transformers
5.24.
"""

import re
from typing import Any

_END_OF_TURN = re.compile(
    r"im_end|eo[stm](_id)?|end|/s|return|turn|"
    r"end_?of_?(text|turn|sentence|message|utterance)(_token)?",
    re.IGNORECASE,
)
"""Names, without their brackets, of the tokens by which models end a turn or a text."""
_BRACKETS = "<>[]|\uff5c"
_SPACES = "\u2581"
"""DeepSeek writes its special tokens with a full-width bar and a block for the space."""
_START_OF_TURN = "<|turn>"
"""Gemma 4 ends a turn with the same name and the bar on the other side."""


def end_of_turn_tokens(tokenizer: Any) -> list[tuple[int, str]]:
    """(id, name) of each special token that looks like one, in the order of the ids."""
    try:
        added_tokens = sorted(tokenizer.added_tokens_decoder.items())
    except (AttributeError, NotImplementedError):  # Mistral's own tokenizers know none
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
