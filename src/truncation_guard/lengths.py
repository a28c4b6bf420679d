"""What observed lengths say about the limit.

The one idea: a truncated completion only shows that its length is above where it was cut. So a
quantile that depends on the lengths behind the cuts is not identified, and no number is made up
for it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

Key = TypeVar("Key")

_MULTIPLE_OF = 64


@dataclass(frozen=True, slots=True)
class LimitAdvice:
    """What to do about the limit, from the lengths seen under it."""

    coverage: float
    """Share of completions that the limit is to hold."""
    quantile: int | None
    """The length in tokens that `coverage` of the completions do not exceed; None where it is not
    identified."""
    lower_bound: int
    """What that length is at least: the cut completions count with what was seen of them."""
    is_above: bool
    """Whether it is certainly above `lower_bound`."""
    next_limit: int | None
    """The limit to try: `quantile` rounded up to a multiple of 64, or twice the limit where it is
    not identified. None where that is not above the limit."""


def add_up(left: Mapping[Key, int], right: Mapping[Key, int]) -> dict[Key, int]:
    """The numbers of both under each key."""
    return {key: left.get(key, 0) + right.get(key, 0) for key in [*left, *right]}


def observed_quantile(ended: Mapping[int, int], cut: Mapping[int, int], q: float) -> int | None:
    """Nearest-rank quantile (`inverted_cdf`) of lengths some of which are cut.

    Args:
        ended: length in tokens -> number of completions that ended by themselves at it.
        cut: length in tokens -> number of truncated completions, which would be longer.
        q: in (0, 1].

    Returns:
        A length in tokens; None where it depends on the lengths behind the cuts, or without data.
    """
    rank = _rank(sum(ended.values()) + sum(cut.values()), q)
    highest = _nearest_rank(ended, rank)
    return highest if highest == _nearest_rank(add_up(ended, cut), rank) else None


def advise_limit(
    ended: Mapping[int, int], cut: Mapping[int, int], limit: int, coverage: float
) -> LimitAdvice:
    """The limit to try next.

    Args:
        ended: length in tokens -> number of completions that ended by themselves at it.
        cut: length in tokens -> number of truncated completions.
        limit: the limit in tokens that they were written under.
        coverage: share of completions that the advised limit is to hold, in (0, 1].
    """
    seen = add_up(ended, cut)
    rank = _rank(sum(seen.values()), coverage)
    bound = _nearest_rank(seen, rank) or 0
    may_be_within = sum(count for length, count in seen.items() if length < bound) + ended.get(
        bound, 0
    )
    quantile = observed_quantile(ended, cut, coverage)
    next_limit: int | None = 2 * limit
    if quantile is not None:
        next_limit = math.ceil(quantile / _MULTIPLE_OF) * _MULTIPLE_OF
        if next_limit <= limit:
            next_limit = None
    return LimitAdvice(coverage, quantile, bound, may_be_within < rank, next_limit)


def _rank(completions: int, q: float) -> int:
    # The guard against 0.95 * 20 = 19.000000000000004 is a relative one: ranks can be large.
    return max(math.ceil(q * completions * (1 - 1e-12)), 1)


def _nearest_rank(lengths: Mapping[int, int], rank: int) -> int | None:
    for length in sorted(lengths):
        rank -= lengths[length]
        if rank <= 0:
            return length
    return None
