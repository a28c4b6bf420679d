"""Counts of generation batches in, at most one finding for each out.

A finding is data: the monitor knows neither a trainer nor a tensor nor the wording of a line. It
keeps a window of the last completions, and a cool-down for each code.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from truncation_guard.batch.counts import BatchCounts
from truncation_guard.lengths.histogram import LengthHistogram
from truncation_guard.lengths.recommendation import LimitAdvice, advise
from truncation_guard.options import ENOUGH_COMPLETIONS

Code = Literal[
    "limit-ignored",
    "stop-tokens",
    "context",
    "all-truncated",
    "truncated",
    "no-signal",
    "rising",
]
"""What a WARN line may be about, most urgent first: see the table of the README."""

Obstacle = Literal["limit-ignored", "stop-tokens", "context", "tool-iterations"]
"""What a longer limit does not help against."""

_EVALUATION_CODES: frozenset[Code] = frozenset(
    {"limit-ignored", "stop-tokens", "context", "truncated"}
)
"""The codes that do not speak of advantages."""

_AT_ONCE_SHARE = 0.25
_AT_ONCE_COMPLETIONS = 4
_GROUPS_SHARE = 0.25
_HELD_SHARE = 0.25
"""A model that samples such a token now and then is no wrong set-up."""
_ROUNDING = 1e-9
"""Shares are quotients: 0.15 - 0.1 is a little below 0.05."""
_RISE = 0.05 - _ROUNDING
_WORSE = 0.10 - _ROUNDING


@dataclass(frozen=True, slots=True)
class TruncationFinding:
    """One thing that is wrong in a training or an evaluation, with the figures that show it."""

    code: Code
    share: float
    """The figure by which "worse than last time" is told, in [0, 1]."""
    counts: BatchCounts
    window: LengthHistogram
    """The last completions; in an evaluation, all of it."""
    lowest_share: float | None
    """The lowest truncated share of an earlier full window; None where there was none."""
    over_window: bool
    """Whether it is the window, not this batch, that is over the threshold."""
    obstacle: Obstacle | None
    """Why a longer limit would not help; None where it would."""
    advice: LimitAdvice | None
    """What to do about the limit; None with an obstacle, or where there is no limit to obey."""


class _Said(NamedTuple):
    """When a code was last said."""

    step: int
    wait: int
    """Optimizer steps until it may be said again."""
    share: float
    """The highest that was said with it."""


class TruncationMonitor:
    """Decides what is worth a WARN line.

    Args:
        warn_above: truncated share above which it is; None: nothing is.
        window: completions that the share is taken over.
        cooldown: optimizer steps between two findings of one code; doubles each time.
        coverage: share of completions the recommended limit should cover.
        nothing_pushes_back: whether the mode takes the pressure to finish away.
    """

    def __init__(
        self,
        *,
        warn_above: float | None,
        window: int,
        cooldown: int,
        coverage: float,
        nothing_pushes_back: bool,
    ) -> None:
        self._warn_above = warn_above
        self._cooldown = cooldown
        self._coverage = coverage
        self._nothing_pushes_back = nothing_pushes_back
        self._size = window
        self._recent: deque[LengthHistogram] = deque()
        """The batches of the window, oldest first."""
        self._limit: int | None = None
        self._lowest_share: float | None = None
        self._said: dict[str, _Said] = {}

    def update(self, batch: BatchCounts) -> TruncationFinding | None:
        """Take a batch of training in.

        Returns:
            The first code that applies and is not cooling down.
        """
        if self._recent and batch.limit != self._limit:
            # What was seen under another limit says nothing of this one.
            self._recent, self._lowest_share, self._said = deque(), None, {}
        self._limit = batch.limit
        earlier_lowest = self._lowest_share
        self._recent.append(batch.lengths)
        keep_newest(self._recent, self._size)
        window = LengthHistogram.sum_of(self._recent)
        if window.completions >= self._size:
            shares = (window.share, earlier_lowest)
            self._lowest_share = min(share for share in shares if share is not None)
        return self._decide(batch, window, earlier_lowest)

    def evaluate(self, evaluation: BatchCounts) -> TruncationFinding | None:
        """Judge one evaluation; it does not enter the window."""
        return self._decide(evaluation, evaluation.lengths, None)

    def state(self) -> dict[str, Any]:
        """Window and cool-downs as JSON values."""
        return {
            "window": [batch.to_pairs() for batch in self._recent],
            "limit": self._limit,
            "lowest_share": self._lowest_share,
            "said": dict(self._said),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` left off.

        Raises:
            Exception: of whatever kind, if `state` is damaged; nothing has changed then.
        """
        recent = deque(LengthHistogram.from_pairs(*batch) for batch in state["window"])
        limit, lowest = state["limit"], state["lowest_share"]
        limit = None if limit is None else int(limit)
        lowest = None if lowest is None else float(lowest)
        said = {
            str(code): _Said(int(step), int(wait), float(share))
            for code, (step, wait, share) in state["said"].items()
        }
        self._recent, self._limit, self._lowest_share, self._said = recent, limit, lowest, said

    def _decide(
        self, batch: BatchCounts, window: LengthHistogram, earlier_lowest: float | None
    ) -> TruncationFinding | None:
        if self._warn_above is None:
            return None
        for code, share in self._findings(batch, window, earlier_lowest, self._warn_above).items():
            key = code if batch.training else f"eval/{code}"
            if self._may_say(key, batch.step, share):
                return self._finding(code, share, batch, window, earlier_lowest)
        return None

    def _findings(
        self,
        batch: BatchCounts,
        window: LengthHistogram,
        earlier_lowest: float | None,
        warn_above: float,
    ) -> dict[Code, float]:
        """Every code that applies, in order, with the share that tells how bad it is."""
        total, groups = batch.completions, batch.groups
        unasked = batch.stopped_unasked / total
        stops = max(batch.end_of_turn_share, unasked)
        runs_past_ends = batch.end_of_turn_share > warn_above and _held_share(batch) >= _HELD_SHARE
        context = batch.causes["context"]
        no_signal = (groups.truncated_without_signal or 0) / groups.groups
        shares: dict[Code, tuple[bool, float]] = {
            "limit-ignored": (batch.above_limit > 0, batch.above_limit / total),
            "stop-tokens": (unasked > warn_above or runs_past_ends, stops),
            "context": (
                context / total > warn_above and context > batch.truncated / 2,
                context / total,
            ),
            "all-truncated": (
                groups.all_truncated >= _GROUPS_SHARE * groups.groups,
                groups.all_truncated / groups.groups,
            ),
            "truncated": _truncated(batch, window, warn_above),
            "no-signal": (no_signal >= _GROUPS_SHARE, no_signal),
            "rising": (
                self._nothing_pushes_back
                and earlier_lowest is not None
                and window.share > warn_above
                and window.share - earlier_lowest >= _RISE,
                window.share,
            ),
        }
        return {
            code: share
            for code, (applies, share) in shares.items()
            if applies and (batch.training or code in _EVALUATION_CODES)
        }

    def _may_say(self, key: str, step: int, share: float) -> bool:
        last = self._said.get(key)
        if last is None:
            self._said[key] = _Said(step, self._cooldown, share)
            return True
        wait = last.wait
        if share - last.share < _WORSE:
            if step < last.step + wait:
                return False
            wait *= 2
        # Of a small batch the share jumps up and down: worse is what is worse than ever said.
        self._said[key] = _Said(step, wait, max(share, last.share))
        return True

    def _finding(
        self,
        code: Code,
        share: float,
        batch: BatchCounts,
        window: LengthHistogram,
        earlier_lowest: float | None,
    ) -> TruncationFinding:
        over_window = code == "rising" or (
            code == "truncated" and batch.training and not _at_once(batch)
        )
        lengths = window if over_window else batch.lengths
        obstacle = find_obstacle(batch, code)
        advice = None
        if obstacle is None and batch.limit is not None:
            advice = advise(lengths, batch.limit, self._coverage)
        return TruncationFinding(
            code=code,
            share=share,
            counts=batch,
            window=window,
            lowest_share=earlier_lowest,
            over_window=over_window,
            obstacle=obstacle,
            advice=advice,
        )


def find_obstacle(batch: BatchCounts, code: Code | None = None) -> Obstacle | None:
    """What has to be put right before a longer limit helps: also while its own code cools down.

    Args:
        batch: the newest one.
        code: what the batch is judged for, if for anything.
    """
    if batch.above_limit > 0:
        return "limit-ignored"
    if code == "stop-tokens" or _held_share(batch) > 0.5:
        return "stop-tokens"
    if batch.causes["context"] > batch.truncated / 2:
        return "context"
    if batch.tool_iterations > batch.truncated / 2:
        return "tool-iterations"
    return None


def keep_newest(batches: deque[LengthHistogram], completions: int) -> None:
    """Drop the oldest batches that a window of so many completions can do without."""
    spare = sum(batch.completions for batch in batches) - completions
    while spare >= (oldest := batches[0].completions):
        batches.popleft()
        spare -= oldest


def _held_share(batch: BatchCounts) -> float:
    """Share of the searched completions that hold an unknown end of turn."""
    return sum(batch.end_of_turn.values()) / max(batch.searched, 1)


def _at_once(batch: BatchCounts) -> bool:
    return batch.share >= _AT_ONCE_SHARE and batch.truncated >= _AT_ONCE_COMPLETIONS


def _truncated(
    batch: BatchCounts, window: LengthHistogram, warn_above: float
) -> tuple[bool, float]:
    if _at_once(batch):
        return True, batch.share
    seen = window.completions >= ENOUGH_COMPLETIONS
    return seen and window.share > warn_above, window.share
