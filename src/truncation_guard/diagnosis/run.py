"""What is known of a run: the same for every source.

The one idea: a metric of TRL means what TRL computes, not what its name says, so the numbers of a
log window are put right here, once, and what cannot be put right is None.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from truncation_guard.lengths.sample import LengthSample

SourceKind = Literal["record", "trainer_state", "tables", "log"]
Standing = Literal["at", "open", "alone", "between", "doubtful"]
"""What is known of the limit that an entry was written under.

`at`: the limit. `open`: none is recorded, and none shows in the lengths of the entries around it.
`alone`: likewise, of a single entry. `between`: it changed within this entry or next to it.
`doubtful`: all completions have one short length, which may be the limit or not.
"""

_PRINTED_IN_FULL = 10_000
"""transformers 5 prints four significant digits; a length from here on may have lost some."""
_TOO_FEW_TERMINATED = 0.95
"""Above it, four printed digits of the mean length do not tell the length of the few others."""
_WRAPPED = re.compile(r"\(([^(),]*)[^()]*\)$")
_STEPS = ("step", "global_step", "train/global_step")
_WHEN = ("step", "epoch")
_FUNCTION_MEAN = re.compile(r"rewards/(.+?)(?:/mean)?$")
_PENALTY = re.compile(r"penal|punish", re.IGNORECASE)
"""Of such a function 0 is the most that can be had, not the least."""
_LARGEST = 1e100
"""Beyond it no measurement lies, and the squares of two of them are no number."""
_ONE = 1 + 1e-6
_LONGEST = 1e15
_MOST = {
    **dict.fromkeys(("truncated", "cause/context", "cause/tool", "stopped", "ratio"), _ONE),
    **dict.fromkeys(("silent_groups", "guard_silent"), _ONE),
    **dict.fromkeys(("mean_length", "min_length", "max_length"), _LONGEST),
    **dict.fromkeys(("logged_limit", "step"), _LONGEST),
}
"""Of these nothing is below 0 or above this: shares, up to rounding, and lengths in tokens."""
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
    "truncation_guard/reward_terminated": "reward_terminated",
    "truncation_guard/reward_truncated": "reward_truncated",
    "truncation_guard/limit": "logged_limit",
}


@dataclass(frozen=True, slots=True)
class Under:
    """The limit of an entry, as far as it is known."""

    tokens: int | None
    how: Standing
    assumed: bool = False
    """Whether only the lengths hint at it."""
    reached: bool = True
    """Whether a fifth of the entries under it have a completion of its length."""
    least: float | None = None
    """The longest of the entries around, where the limit is not known: it is no shorter."""


@dataclass(slots=True)
class Window:
    """One entry of a log, or one generation batch of the guard's record.

    Figures of a log entry are means over the generation batches since the entry before; None where
    nothing was measured.
    """

    step: float | None = None
    """Finished optimizer steps."""
    epoch: float | None = None
    completions: int | None = None
    """How many there were; only the record knows."""
    truncated: float | None = None
    """Share that a limit cut, by the guard."""
    elsewhere: float | None = None
    """Share cut by the context window or the tool loop, by the guard; part of `truncated`."""
    stopped: float | None = None
    """Share that ended below every limit without a stop token, by the guard."""
    ratio: float | None = None
    """TRL's `completions/clipped_ratio`: share whose last token is no stop token that TRL knows."""
    mean_length: float | None = None
    min_length: float | None = None
    """The mean of the batches' shortest."""
    max_length: float | None = None
    """The mean of the batches' longest."""
    ended_length: float | None = None
    """Mean length of those that ended by themselves; only the record knows it."""
    reward: float | None = None
    """As the reward functions gave it, where the guard says; else as TRL logs it."""
    reward_std: float | None = None
    silent_groups: float | None = None
    """Share of groups whose advantages are all 0, or whose rewards are all equal."""
    reward_terminated: float | None = None
    reward_truncated: float | None = None
    function_means: tuple[float, float] | None = None
    """The lowest and the highest mean of a reward function, penalties aside."""
    limit: int | None = None
    """In tokens; where it was recorded, and was one all along."""
    logged_limit: float | None = None
    """The guard's metric: the mean of the batches' limits."""
    under: Under | None = None
    """The limit that it was written under; `phases` finds it out."""

    @property
    def longest(self) -> float | None:
        """The longest length that is known: before TRL 0.17 only the mean is."""
        return self.mean_length if self.max_length is None else self.max_length

    @property
    def unfinished(self) -> float | None:
        """Share truncated: the guard's where there is one, else TRL's ratio."""
        return self.ratio if self.truncated is None else self.truncated

    def terminated_length(self, limit: int | None) -> float | None:
        """Mean length in tokens of the completions that terminated, put right.

        TRL counts 0 for a batch without any. Where every truncated completion stands at the limit,
        the total is known, so the mean is too: (mean - ratio * limit) / (1 - ratio).

        Args:
            limit: what the truncated ones were cut at.

        Returns:
            None where none terminated, and where it cannot be known.
        """
        if self.ended_length is not None:
            return self.ended_length
        share, mean = self.unfinished, self.mean_length
        if share is None or mean is None or share == 1.0:
            return None
        if share == 0.0:
            return mean
        if limit is None or self.stopped or self.elsewhere or share > _TOO_FEW_TERMINATED:
            return None
        length = (mean - share * limit) / (1 - share)
        return length if 1 <= length <= limit else None


@dataclass(slots=True)
class RunTrace:
    """A run, as far as one source or several know it."""

    source: SourceKind
    path: str
    """The file or folder that the windows are from."""
    training: list[Window] = field(default_factory=list)
    evaluation: list[Window] = field(default_factory=list)
    steps_known: bool = True
    """False: entries of a log are numbered, because it does not say its steps."""
    limit: int | None = None
    """The last limit in tokens that is recorded; None where none is."""
    mode: str | None = None
    """What the guard did about truncated completions; None where that is not recorded."""
    truncated_weight: float | None = None
    """By which the mode `downweight` multiplies; None where that is not recorded."""
    guarded: bool = False
    switched_off: float | None = None
    """The last step before the guard switched itself off by an error; None where it did not."""
    masked: bool | None = None
    """TRL's `mask_truncated_completions`; None where it is not recorded."""
    warned: Mapping[str, int] | None = None
    """Code -> WARN lines of the guard, or 1 where only that there were some is known; None where
    nothing of it is recorded."""
    sample: LengthSample | None = None
    """The lengths of the last part of the training."""
    with_tools: bool = False
    broken: bool = False
    """Whether the file breaks off."""
    notes: list[str] = field(default_factory=list)

    @property
    def limits(self) -> tuple[int, ...]:
        """All limits of the training that are recorded, in their order."""
        return tuple(dict.fromkeys(w.limit for w in self.training if w.limit is not None))


def to_window(
    metrics: Mapping[str, Any], *, printed: bool = False
) -> tuple[bool, Window, bool] | None:
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
        if place[1] == "function":
            mean = number(value)
            functions += [] if mean is None or not place[0] else [mean]
        elif place not in found or name not in _OLDER:
            figure, most = number(value), _MOST.get(place[1])
            is_possible = figure is None or most is None or 0 <= figure <= most
            found[place] = figure if is_possible else None
    splits = {
        training
        for (training, key), value in found.items()
        if key not in _WHEN and value is not None
    }
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
    window = Window(**figures)  # type: ignore[arg-type]  # the names are those of _FIELDS
    if functions and training:
        window.function_means = min(functions), max(functions)
    if printed:
        window.max_length = _in_full(window.max_length)
        window.logged_limit = _in_full(window.logged_limit)
    return training, window, called


def number(value: Any) -> float | None:
    """A finite number, from whatever was printed for it; None for all else, and beyond 1e100."""
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
