"""Quantiles of lengths that are known in part, and what a limit covers and costs.

A truncated completion only shows that its length is above where it was cut. So a quantile that
depends on the lengths behind the cuts is not identified, and no number is made up for it.
"""

import math
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from truncation_guard.argument_checks import check_share, is_integer
from truncation_guard.lengths.histogram import LengthHistogram

_ROUNDING = 1e-9
"""Products of hundreds of quotients are off by less than this, shares of a sample by more."""


class CensoredLengths:
    """Lengths of completions, right-censored where a limit cut them.

    Args:
        lengths: of at least one completion.
    """

    def __init__(self, lengths: LengthHistogram) -> None:
        finished, truncated = lengths.finished_at, lengths.truncated_at
        tokens = sorted(lengths.tokens)
        self._tokens = np.array(tokens, dtype=np.int64)
        self._finished = np.array([finished.get(n, 0) for n in tokens], dtype=np.int64)
        self._truncated = np.array([truncated.get(n, 0) for n in tokens], dtype=np.int64)
        cuts = np.flatnonzero(self._truncated)
        self._first_cut = int(cuts[0]) if len(cuts) else len(tokens)

    def __len__(self) -> int:
        """Number of completions."""
        return int(self._finished_by[-1]) + self.truncated

    @property
    def truncated(self) -> int:
        """Number of truncated completions."""
        return int(self._truncated.sum())

    @property
    def longest(self) -> int:
        """The longest length that was seen, in tokens, of whatever outcome."""
        return int(self._tokens[-1])

    @property
    def lengths(self) -> LengthHistogram:
        """The histogram of these completions."""
        tokens = self._tokens.tolist()
        return LengthHistogram(
            *(
                {n: count for n, count in zip(tokens, counts.tolist(), strict=True) if count}
                for counts in (self._finished, self._truncated)
            )
        )

    def quantile(self, q: float) -> int | None:
        """The shortest length that at least a share `q` of the completions do not exceed.

        Nearest rank (numpy's `inverted_cdf`) where everything terminated, else Kaplan and Meier,
        "Nonparametric estimation from incomplete observations" (1958), by `scipy.stats.ecdf`.

        Args:
            q: in (0, 1].

        Returns:
            In tokens; None where it is not identified, because it depends on the lengths behind
            the cuts. It is above `longest` then.

        Raises:
            ValueError: for a `q` outside of (0, 1].
        """
        check_share("q", q)
        # Up to the first cut the nearest rank is the Kaplan-Meier quantile, and exact.
        at = int(np.searchsorted(self._finished_by, _rank(len(self), q)))
        if at < len(self._tokens) and at <= self._first_cut:
            return int(self._tokens[at])
        reached = np.flatnonzero(self._survival <= 1 - q + _ROUNDING)
        return int(self._tokens[reached[0]]) if len(reached) else None

    def share_truncated(self, limit: int) -> float | None:
        """The share of completions that this limit would cut.

        Args:
            limit: in tokens, at least 0.

        Returns:
            In [0, 1]; None above the longest length that was seen, if that was cut.

        Raises:
            ValueError: for a negative limit.
        """
        if not self._is_known_at(limit):
            return None
        at = int(np.searchsorted(self._tokens, limit, side="right")) - 1
        return float(self._survival[at]) if at >= 0 else 1.0

    def mean_tokens(self, limit: int) -> float | None:
        """Mean number of tokens written under this limit: what it costs.

        The restricted mean, which is the area under the survival curve up to the limit.

        Args:
            limit: in tokens, at least 0.

        Returns:
            In tokens; None above the longest length that was seen, if that was cut.

        Raises:
            ValueError: for a negative limit.
        """
        if not self._is_known_at(limit):
            return None
        below = self._tokens[self._tokens < limit]
        widths = np.diff(np.concatenate([[0], below, [limit]]))
        return float(np.concatenate([[1.0], self._survival[: len(below)]]) @ widths)

    def cost(self, limit: int, relative_to: int) -> float | None:
        """Tokens written under this limit as a multiple of those under another.

        Args:
            limit: in tokens, at least 0.
            relative_to: in tokens, at least 1.

        Returns:
            None where one of the two is not known.

        Raises:
            ValueError: for limits out of range.
        """
        tokens, base = self.mean_tokens(limit), self.mean_tokens(relative_to)
        return None if tokens is None or not base else tokens / base

    def _is_known_at(self, limit: int) -> bool:
        """Whether every completion shows if it is longer than the limit.

        Raises:
            ValueError: for a negative limit.
        """
        if not is_integer(limit) or limit < 0:
            raise ValueError(f"A limit must be an integer of at least 0 tokens, got {limit!r}.")
        return limit <= self.longest or not self._truncated[-1]

    @cached_property
    def _finished_by(self) -> NDArray[np.int64]:
        """The completions that finished at each of the lengths or below."""
        return np.cumsum(self._finished)

    @cached_property
    def _survival(self) -> NDArray[np.float64]:
        """The share of completions that are longer than each of the lengths."""
        # With every cut at or above the longest finished length, a share is a count. So it is in
        # most trainings, and they need not wait for the import of scipy.
        if not self._finished[self._first_cut + 1 :].any():
            return 1 - self._finished_by / len(self)
        from scipy.stats import CensoredData, ecdf

        rows = CensoredData(
            uncensored=np.repeat(self._tokens, self._finished).astype(float),
            right=np.repeat(self._tokens, self._truncated).astype(float),
        )
        survival = ecdf(rows).sf.evaluate(self._tokens)
        return np.asarray(survival, dtype=np.float64)


def _rank(completions: int, q: float) -> int:
    # The guard against 0.95 * 20 = 19.000000000000004 is a relative one: ranks can be large.
    return max(math.ceil(q * completions * (1 - 1e-12)), 1)
