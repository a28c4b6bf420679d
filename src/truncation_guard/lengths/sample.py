"""Lengths of completions, some of them cut off, and the limit that follows from them.

The one idea: a truncated completion only shows that its length is above where it was cut. So a
quantile that depends on the lengths behind the cuts is not identified, and no number is made up
for it; `extrapolation` offers a range, by that name.
"""

import math
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Self, cast

import numpy as np
from numpy.typing import NDArray

from truncation_guard.checks import check_share, is_integer, truth_values, whole_numbers
from truncation_guard.lengths.extrapolation import Plateau, extrapolate, find_plateau
from truncation_guard.lengths.histogram import LengthHistogram
from truncation_guard.lengths.recommendation import LimitRecommendation, recommend

_ROUNDING = 1e-9
"""Products of hundreds of quotients are off by less than this, shares of a sample by more."""


class LengthSample:
    """Lengths of completions, right-censored where a limit cut them.

    All of it assumes that where a completion was cut has nothing to do with how long it would have
    become, which holds for a `max_completion_length`, and for a context window where long prompts
    do not go with long answers.

    Args:
        lengths: in tokens, with the stop token; (completions,) non-negative integers.
        terminated: whether each of them ended by itself, (completions,) bool; None: all did. The
            others would have become longer than their length says. Limits may differ.

    Raises:
        TypeError: if `lengths` are no whole numbers or `terminated` no truth values.
        ValueError: without a completion, for negative lengths, NaN, or different sizes.

    Examples:
        Two of five were cut at 256 tokens. Half of all are at most 180 tokens long; where the
        longest tenth ends is not to be seen:

        >>> sample = LengthSample([120, 150, 180, 256, 256], [True, True, True, False, False])
        >>> sample
        LengthSample(5 completions of 120 to 256 tokens, 2 truncated)
        >>> sample.quantile(0.5), sample.quantile(0.9)
        (180, None)
        >>> round(sample.share_truncated(150), 2)
        0.6
        >>> sample.recommend(coverage=0.9).basis
        'not identified'
    """

    def __init__(self, lengths: Iterable[int], terminated: Iterable[bool] | None = None) -> None:
        tokens = whole_numbers(lengths)
        ended = truth_values(terminated, len(tokens))
        self._tokens, row = np.unique(tokens, return_inverse=True)
        self._ended = np.bincount(row[ended], minlength=len(self._tokens))
        self._cut = np.bincount(row[~ended], minlength=len(self._tokens))

    @classmethod
    def from_histograms(cls, ended: Mapping[int, int], cut: Mapping[int, int]) -> Self:
        """The sample of these histograms, as large as they are.

        Args:
            ended: length in tokens -> number of completions that ended by themselves at it.
            cut: length in tokens -> number of truncated completions.

        Raises:
            ValueError: without a completion, or for negative lengths or counts.
        """
        for count in (*ended.values(), *cut.values()):
            if not is_integer(count) or count < 0:
                raise ValueError(
                    f"A number of completions must be an integer of at least 0, got {count!r}."
                )
        return cls.of(LengthHistogram(ended, cut))

    @classmethod
    def of(cls, lengths: LengthHistogram) -> Self:
        """The sample of this histogram.

        Raises:
            ValueError: without a completion, or for negative lengths.
        """
        ended, cut = lengths.finished_at, lengths.truncated_at
        tokens = sorted({n for part in (ended, cut) for n, count in part.items() if count})
        sample = cls(tokens)
        sample._ended = np.array([ended.get(n, 0) for n in tokens], dtype=np.int64)
        sample._cut = np.array([cut.get(n, 0) for n in tokens], dtype=np.int64)
        return sample

    def __len__(self) -> int:
        """Number of completions."""
        return int(self._ended.sum() + self._cut.sum())

    def __repr__(self) -> str:
        """The size and the lengths it spans."""
        return (
            f"LengthSample({len(self)} completions of {self._tokens[0]} to {self.longest} tokens, "
            f"{self.truncated} truncated)"
        )

    def __eq__(self, other: object) -> bool:
        """Whether both hold the same completions, in whatever order."""
        return isinstance(other, LengthSample) and self.histograms == other.histograms

    def __hash__(self) -> int:
        """Equal samples have equal hashes."""
        return hash((self._tokens.tobytes(), self._ended.tobytes(), self._cut.tobytes()))

    @property
    def truncated(self) -> int:
        """Number of truncated completions."""
        return int(self._cut.sum())

    @property
    def longest(self) -> int:
        """The longest length that was seen, in tokens, of whatever outcome."""
        return int(self._tokens[-1])

    @property
    def histograms(self) -> tuple[dict[int, int], dict[int, int]]:
        """Length in tokens -> completions that ended at it; that were cut at it."""
        ended, cut = (
            {int(n): int(count) for n, count in zip(self._tokens, counts, strict=True) if count}
            for counts in (self._ended, self._cut)
        )
        return ended, cut

    @property
    def lengths(self) -> LengthHistogram:
        """The histogram of the sample."""
        return LengthHistogram(*self.histograms)

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
        # Up to the first cut the nearest rank is the Kaplan-Meier quantile, and exact. This is the
        # path of every rollout under one limit, during training.
        rank = _rank(len(self), q)
        at = int(np.searchsorted(np.cumsum(self._ended + self._cut), rank))
        if not self._cut[:at].any() and self._ended[: at + 1].sum() >= rank:
            return int(self._tokens[at])
        reached = np.flatnonzero(self._survival <= 1 - q + _ROUNDING)
        return int(self._tokens[reached[0]]) if len(reached) else None

    def quantile_range(self, q: float) -> tuple[int, int] | None:
        """Where the quantile may be, past what was seen: a range over two families, no estimate.

        It assumes that every completion ends. How many never do cannot be known from lengths under
        one limit: any share from 0 to the truncated one.

        Args:
            q: in (0, 1].

        Returns:
            (low, high) in tokens; low = high where the quantile is identified. None where too
            few ended to go by, where there is a `plateau`, where the fits contradict what was
            seen or go ten times past it, and for the longest of all, `q` = 1.

        Raises:
            ValueError: for a `q` outside of (0, 1].
        """
        seen = self.quantile(q)
        if seen is not None:
            return seen, seen
        if self.plateau is not None or q == 1.0:
            return None
        return extrapolate(*self.histograms, q)

    def share_truncated(self, limit: int) -> float | None:
        """The share of completions that this limit would cut.

        Args:
            limit: in tokens, at least 0.

        Returns:
            In [0, 1]; None above the longest length that was seen, if that was cut.

        Raises:
            ValueError: for a negative limit.
        """
        _check_limit(limit)
        if limit > self.longest and self._cut[-1]:
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
        _check_limit(limit)
        if limit > self.longest and self._cut[-1]:
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

    def recommend(
        self, coverage: float = 0.95, multiple_of: int = 64, max_length: int | None = None
    ) -> LimitRecommendation:
        """The limit that holds at least this share of the completions, stop token included.

        Args:
            coverage: in (0, 1].
            multiple_of: the limit is rounded up to a multiple of this.
            max_length: the limit is at most this, whatever it holds then; None: no bound.

        Returns:
            The limit and what it rests on. An extrapolated one is the upper end of its range.

        Raises:
            ValueError: for an argument out of range.
        """
        return recommend(self, coverage, multiple_of, max_length)

    @cached_property
    def plateau(self) -> Plateau | None:
        """The limits between which hardly anything ended any more, where there are such."""
        return find_plateau(self)

    @cached_property
    def _survival(self) -> NDArray[np.float64]:
        """The share of completions that are longer than each of the lengths."""
        if not self.truncated:
            return 1 - np.cumsum(self._ended) / len(self)
        from scipy.stats import CensoredData, ecdf

        rows = CensoredData(
            uncensored=np.repeat(self._tokens, self._ended).astype(float),
            right=np.repeat(self._tokens, self._cut).astype(float),
        )
        survival = ecdf(rows).sf.evaluate(self._tokens)
        return np.asarray(survival, dtype=np.float64)


def choose_max_completion_length(
    lengths: Iterable[int], coverage: float = 0.95, multiple_of: int = 1
) -> int:
    """The `max_completion_length` that holds at least this share of the lengths.

    Args:
        lengths: in tokens, with the stop token; (completions,) non-negative integers. None of them
            cut: for those take a `LengthSample`.
        coverage: in (0, 1].
        multiple_of: the limit is rounded up to a multiple of this.

    Raises:
        TypeError: if `lengths` are no whole numbers.
        ValueError: for an argument out of range.

    Examples:
        >>> choose_max_completion_length(range(1, 201), coverage=0.95)
        190
        >>> choose_max_completion_length(range(1, 201), coverage=0.95, multiple_of=64)
        192
    """
    recommendation = LengthSample(lengths).recommend(coverage, multiple_of)
    return cast(int, recommendation.max_completion_length)  # every length is known


def _rank(completions: int, q: float) -> int:
    # The guard against 0.95 * 20 = 19.000000000000004 is a relative one: ranks can be large.
    return max(math.ceil(q * completions * (1 - 1e-12)), 1)


def _check_limit(limit: int) -> None:
    if not is_integer(limit) or limit < 0:
        raise ValueError(f"A limit must be an integer of at least 0 tokens, got {limit!r}.")
