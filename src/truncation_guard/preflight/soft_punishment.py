"""TRL's soft overlong punishment among the reward functions, and whether it fits a limit.

The names of its two numbers identify it. DAPO (arXiv:2503.14476) sets `max_completion_len` to the
limit; the punishment grows from 0 at `soft_punish_cache` tokens below that to -1.
"""

import functools
import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SoftPunishment:
    """The arguments of `trl.rewards.get_soft_overlong_punishment`, in tokens."""

    max_completion_len: int
    """Above it the punishment is -1."""
    soft_punish_cache: int
    """How far below it the punishment begins."""

    @property
    def begins_above(self) -> int:
        """The longest completion that is not punished."""
        return self.max_completion_len - self.soft_punish_cache


def soft_punishments(reward_funcs: Iterable[Any]) -> list[SoftPunishment]:
    """Every soft punishment among the reward functions.

    Since TRL 1.16 it is an object with its numbers as attributes; a `functools.partial` may hold
    them too.
    """
    found = []
    for function in reward_funcs:
        numbers = [_held(function, name) for name in ("max_completion_len", "soft_punish_cache")]
        if all(isinstance(number, int) for number in numbers):
            found.append(SoftPunishment(*numbers))
    return found


def misfit(punishment: SoftPunishment, limit: int, name: str) -> str | None:
    """The fact for a WARN line; None where the punishment begins between 0 and the limit.

    A punishment that has not grown to -1 at the limit is weaker than meant, which is no mistake.

    Args:
        punishment: its numbers.
        limit: in tokens.
        name: of the setting that the limit comes from.
    """
    numbers = f"{punishment.max_completion_len}, {punishment.soft_punish_cache}"
    what = f"get_soft_overlong_punishment({numbers})"
    if punishment.begins_above >= limit:
        return f"{what} begins above {punishment.begins_above} tokens: under {name}={limit} never"
    if punishment.begins_above < 0:
        return (
            f"{what} punishes every completion, however short: its soft_punish_cache is larger "
            "than its max_completion_len"
        )
    if punishment.max_completion_len < limit:
        return (
            f"{what} is at its full -1 above {punishment.max_completion_len} tokens, below "
            f"{name}={limit}: a completion that needs more and finishes is punished like one that "
            "is cut off"
        )
    return None


def _held(function: Any, name: str) -> Any:
    """The bound argument or attribute of this name; None without one."""
    while isinstance(function, functools.partial):
        if name in function.keywords:
            return function.keywords[name]
        function = function.func
    return getattr(inspect.unwrap(function), name, None)
