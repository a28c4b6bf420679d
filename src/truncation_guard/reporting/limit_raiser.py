"""Whether the limit is to be raised, and to what.

A raise costs every later rollout, so it takes two full windows, and the second must not be better
than the first. Only counts that every process has go in, and no fit is made, so that all processes
come to the same number.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from truncation_guard.batch.counts import BatchCounts
from truncation_guard.lengths.histogram import LengthHistogram
from truncation_guard.lengths.recommendation import advise
from truncation_guard.reporting.monitor import find_obstacle

Reason = Literal["observed", "doubled", "no-room", "no-effect"]

_STILL = 0.9
"""A raise had no effect where at least this share of the truncated share is left."""
_CLEARLY_ENDING = 0.2
"""Where fewer than this share end at all, the limit may be far below every length."""


@dataclass(frozen=True, slots=True)
class LimitDecision:
    """What two full windows say about the limit."""

    before: int
    """The limit in tokens that they were written under."""
    after: int | None
    """The limit to be set; None where it stays, because length is not the cause."""
    reason: Reason
    """`"observed"`: `after` covers the share asked for, as observed. `"doubled"`: that is not
    identified. `"no-room"`: nothing above `before` is allowed. `"no-effect"`: the last raise left
    the truncated share where it was."""
    earlier: LengthHistogram
    """The first of the two windows."""
    newer: LengthHistogram
    """The second."""
    share_before_raise: float | None
    """Truncated share before the limit was last doubled; None where it was not, or that helped."""
    ceiling: int
    """The limit that is never passed."""
    longest_prompt: int
    """In tokens: what it leaves of the context window is not passed either."""


def least_raise(limit: int) -> int:
    """The lowest limit in tokens that is worth a raise: a quarter more."""
    return -(-limit * 5 // 4)


class LimitRaiser:
    """Decides after each window, alike on every process.

    Args:
        ceiling: the limit in tokens that is never passed.
        warn_above: truncated share above which a window counts as bad.
        window: completions of a window.
        coverage: share of completions the recommended limit should cover.
    """

    def __init__(self, *, ceiling: int, warn_above: float, window: int, coverage: float) -> None:
        self._ceiling = ceiling
        self._warn_above = warn_above
        self._size = window
        self._coverage = coverage
        self._limit: int | None = None
        self._window = LengthHistogram()
        self._bad_window: LengthHistogram | None = None
        """The window before this one, where it was a bad one."""
        self._longest_prompt = 0
        """In tokens, of those that any process knew of."""
        self.raised_to: int | None = None
        """The newest limit that was decided for, in tokens; None before the first, and where
        somebody has set a lower one since."""
        self._raised_from: int | None = None
        """The limit that it was decided under; None once a batch was written under a higher one."""
        self._share_before_raise: float | None = None
        self._done: Reason | None = None
        """Why the limit stays from now on, which has been said."""

    def update(self, batch: BatchCounts) -> LimitDecision | None:
        """Take a batch in; of an evaluation its prompts alone.

        Returns:
            A decision at the end of a second bad window; None otherwise.
        """
        self._longest_prompt = max(self._longest_prompt, batch.longest_prompt)
        if not batch.training:
            return None
        if batch.limit != self._limit:  # lengths under another limit say nothing of this one
            self._window, self._bad_window, self._limit = LengthHistogram(), None, batch.limit
            if (batch.limit or 0) < (self._raised_from or self.raised_to or 0):
                # Somebody has lowered it: what the last raise did says nothing any more.
                self._share_before_raise = self._done = self.raised_to = None
            self._raised_from = None
        if find_obstacle(batch) is not None:  # which the monitor's lines speak of
            return None
        self._window += batch.lengths
        if batch.limit is None or self._window.completions < self._size:
            return None
        earlier, newer, self._window = self._bad_window, self._window, LengthHistogram()
        share = newer.share
        before_raise = self._share_before_raise
        if before_raise is not None and share < _STILL * before_raise:
            self._share_before_raise = None  # the raise worked; what comes later is another matter
        self._bad_window = newer if share > self._warn_above else None
        if self._done is None and earlier is not None and earlier.share <= share > self._warn_above:
            return self._decide(batch, batch.limit, earlier, newer)
        return None

    def state(self) -> dict[str, Any]:
        """Windows and history as JSON values."""
        return {
            "limit": self._limit,
            "window": self._window.to_pairs(),
            "bad_window": self._bad_window and self._bad_window.to_pairs(),
            "raised_to": self.raised_to,
            "share_before_raise": self._share_before_raise,
            # Room there may be in the run that resumes: another ceiling, window or data.
            "is_done": self._done == "no-effect",
            "ceiling": self._ceiling,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` left off.

        Raises:
            Exception: of whatever kind, if `state` is damaged; nothing has changed then.
        """
        window = LengthHistogram.from_pairs(*state["window"])
        bad_window = None
        if state["bad_window"] is not None:
            bad_window = LengthHistogram.from_pairs(*state["bad_window"])
        limit, raised_to, share = (
            state[name] for name in ("limit", "raised_to", "share_before_raise")
        )
        limit = None if limit is None else int(limit)
        raised_to = None if raised_to is None else int(raised_to)
        share = None if share is None else float(share)
        # Another ceiling is another chance.
        is_done = bool(state["is_done"]) and state["ceiling"] == self._ceiling
        self._limit, self._bad_window, self._share_before_raise = limit, bad_window, share
        self._window, self.raised_to = window, raised_to
        self._done = "no-effect" if is_done else None

    def _decide(
        self, batch: BatchCounts, limit: int, earlier: LengthHistogram, newer: LengthHistogram
    ) -> LimitDecision:
        before_raise = self._share_before_raise
        after: int | None = None
        reason: Reason
        least = least_raise(limit)
        room = self._ceiling
        if batch.context_window is not None:
            room = min(room, batch.context_window - self._longest_prompt)
        if before_raise is not None and newer.share <= 1 - _CLEARLY_ENDING:
            reason = "no-effect"
        elif room < least:
            reason = "no-room"
        else:
            advice = advise(earlier + newer, limit, self._coverage)
            reason = "doubled" if advice.quantile is None else "observed"
            after = min(max(advice.recommended_limit or least, least), room)
        self._done = reason if after is None else None
        self._bad_window = None
        if after is not None:
            # Of a smaller step it is not said that it should have helped.
            self._share_before_raise = newer.share if after >= 2 * limit else None
            self.raised_to, self._raised_from = after, limit
        return LimitDecision(
            before=limit,
            after=after,
            reason=reason,
            earlier=earlier,
            newer=newer,
            share_before_raise=before_raise,
            ceiling=self._ceiling,
            longest_prompt=self._longest_prompt,
        )
