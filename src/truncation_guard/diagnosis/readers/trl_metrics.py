"""The metrics of one log entry, as TRL and the guard name them, into a `LogEntry`.

A metric means what TRL computes, not what its name says.
"""

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from truncation_guard.diagnosis.run import LogEntry

_PRINTED_IN_FULL = 10_000
"""transformers 5 prints four significant digits; a length from here on may have lost some."""
_WRAPPED = re.compile(r"\(([^(),]*)[^()]*\)$")
_STEPS = ("step", "global_step", "train/global_step")
_WHEN = ("step", "epoch")
_FUNCTION_MEAN = re.compile(r"rewards/(.+?)(?:/mean)?$")
_PENALTY = re.compile(r"penal|punish", re.IGNORECASE)
"""Such a function gives 0 at most, not at least."""
_LARGEST = 1e100
"""No measurement is larger, and the squares of two larger ones overflow."""
_ONE = 1 + 1e-6
_LONGEST = 1e15
_MOST = {
    **dict.fromkeys(("truncated", "cause/context", "cause/tool", "stopped", "ratio"), _ONE),
    **dict.fromkeys(("silent_groups", "guard_silent"), _ONE),
    **dict.fromkeys(("mean_length", "min_length", "max_length"), _LONGEST),
    **dict.fromkeys(("logged_limit", "step"), _LONGEST),
}
"""Upper bounds, beside 0 as the lower one: of shares, up to rounding, and of lengths."""
_OLDER = ("completion_length",)
"""TRL's name up to 0.16; Unsloth goes on logging it beside the newer one."""
_FIELDS = {
    "completion_length": "mean_length",
    "completions/mean_length": "mean_length",
    "completions/min_length": "min_length",
    "completions/max_length": "max_length",
    "completions/clipped_ratio": "ratio",
    "reward": "reward",
    "reward_std": "reward_std",
    "frac_reward_zero_std": "silent_groups",
    "tools/call_frequency": "tools",
    "truncation_guard/truncated_share": "truncated",
    "truncation_guard/cause/context": "cause/context",
    "truncation_guard/cause/tool": "cause/tool",
    "truncation_guard/stopped_share": "stopped",
    "truncation_guard/groups_without_signal": "guard_silent",
    "truncation_guard/reward": "guard_reward",
    "truncation_guard/limit": "logged_limit",
}


def to_entry(
    metrics: Mapping[str, Any], *, printed: bool = False
) -> tuple[bool, LogEntry, bool] | None:
    """A log entry as the trainer made it.

    Args:
        metrics: name -> value; numbers, or text as transformers 5 prints it. The names are TRL's of
            0.14 to 1.16, or these as Weights & Biases has them (`train/`, `eval/`).
        printed: whether numbers may have been cut to four significant digits.

    Returns:
        Whether it is of a training, its figures, and whether tools were called; None for an entry
        that is not about rollouts.
    """
    found: dict[tuple[bool, str], float | None] = {}
    functions: list[float] = []
    for name, value in metrics.items():
        place = _place(name)
        if place is None:
            continue
        figure, most = number(value), _MOST.get(place[1])
        if place[1] == "function":
            functions += [] if figure is None or not place[0] else [figure]
        elif place not in found or name not in _OLDER:
            is_possible = figure is None or most is None or 0 <= figure <= most
            found[place] = figure if is_possible else None
    known = (place for place, value in found.items() if value is not None)
    splits = {training for training, key in known if key not in _WHEN}
    if not splits:
        return None
    training = True in splits
    figures = {key: value for (split, key), value in found.items() if split == training}
    figures |= {key: found.get((True, key)) for key in _WHEN}
    called = (figures.pop("tools", None) or 0) > 0
    cuts = [figures.pop(f"cause/{cause}", None) for cause in ("context", "tool")]
    if None not in cuts:
        figures["elsewhere"] = sum(cut for cut in cuts if cut is not None)
    for guards, trls in (("guard_reward", "reward"), ("guard_silent", "silent_groups")):
        value = figures.pop(guards, None)
        figures[trls] = figures.get(trls) if value is None else value
    entry = LogEntry(**figures)  # type: ignore[arg-type]  # the names are those of _FIELDS
    if functions and training:
        entry.function_means = min(functions), max(functions)
    if printed:
        entry.max_length = _in_full(entry.max_length)
        entry.logged_limit = _in_full(entry.logged_limit)
    return training, entry, called


def number(value: Any) -> float | None:
    """A finite number, in whatever form it was printed; None for all else, and beyond 1e100."""
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        wrapped = _WRAPPED.search(value) if isinstance(value, str) else None
        return None if wrapped is None else number(wrapped[1])  # np.float64(0.5), tensor(0.5)
    return found if abs(found) < _LARGEST and value is not True and value is not False else None


@lru_cache(maxsize=4096)
def _place(name: str) -> tuple[bool, str] | None:
    """Whether a metric is of a training, and the figure that it is; None for all others."""
    if name in _STEPS:
        return True, "step"
    if name in ("epoch", "train/epoch"):
        return True, "epoch"
    bare = name.removeprefix("train/")
    training = not bare.startswith(("eval_", "eval/"))
    if not training:
        bare = bare[len("eval_") :]
        if bare not in _FIELDS:  # of one of several evaluation sets, eval_math_reward
            bare = next((name for name in _FIELDS if bare.endswith(f"_{name}")), bare)
    field_name = _FIELDS.get(bare)
    if field_name is None and (function := _FUNCTION_MEAN.fullmatch(bare)):
        name = function[1]
        return None if name.endswith("/std") or _PENALTY.search(name) else (training, "function")
    return None if field_name is None else (training, field_name)


def _in_full(length: float | None) -> float | None:
    """A printed length with the digits that it lost, if a round number tells them."""
    if length is None or length < _PRINTED_IN_FULL:
        return length
    half = 10 ** (math.floor(math.log10(length)) - 3) / 2
    unit = 64 if half < 32 else 1024  # no two multiples of it print the same
    nearest = unit * round(length / unit)
    return float(nearest) if abs(nearest - length) <= half else length
