"""Unsloth's compiled trainers, told by their class. Read in Unsloth and unsloth_zoo of 2026."""

import inspect
from typing import Any


def rebuilds_loss_mask(trainer: Any) -> bool:
    """Whether this is Unsloth's trainer in a version whose loss ignores `tool_mask`.

    Such a loss builds its mask from the token ids and reapplies only the rows that
    `mask_truncated_completions` zeroed. Newer versions apply `tool_mask` again.
    """
    names = (f"{base.__module__}.{base.__name__}" for base in type(trainer).__mro__)
    if not any("unsloth" in name.lower() for name in names):
        return False
    loss = inspect.unwrap(type(trainer).compute_loss)
    return "tool_mask" not in loss.__code__.co_varnames
