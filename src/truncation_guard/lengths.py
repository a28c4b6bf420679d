"""What observed lengths say about the limit.

The one idea: a truncated completion only shows that its length is above the limit. So a quantile
that reaches into the truncated share is not identified, and no number is made up for it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

_MULTIPLE_OF = 64


@dataclass(frozen=True, slots=True)
class LimitAdvice:
    """What to do about the limit, from the lengths seen under it."""

    coverage: float
    """Share of completions that the limit is to hold."""
    quantile: int | None
    """The length in tokens that `coverage` of the completions do not exceed; None where it is
    above the limit and not identified."""
    next_limit: int
    """The limit to try: `quantile` rounded up to a multiple of 64, else twice the limit."""


def observed_quantile(ended: Mapping[int, int], completions: int, q: float) -> int | None:
    """Nearest-rank quantile (`inverted_cdf`) of lengths some of which are cut.

    Args:
        ended: length in tokens -> number of completions that ended by themselves at it.
        completions: all completions, the truncated ones included.
        q: in (0, 1].

    Returns:
        A length in tokens; None where the quantile lies in the truncated share, or without data.
    """
    # The guard against 0.95 * 20 = 19.000000000000004 is a relative one: ranks can be large.
    rank = max(math.ceil(q * completions * (1 - 1e-12)), 1)
    for length in sorted(ended):
        rank -= ended[length]
        if rank <= 0:
            return length
    return None


def advise_limit(
    ended: Mapping[int, int], completions: int, limit: int, coverage: float
) -> LimitAdvice:
    """The limit to try next.

    Args:
        ended: length in tokens -> number of completions that ended by themselves at it.
        completions: all completions, the truncated ones included.
        limit: the limit in tokens that they were written under.
        coverage: share of completions that the advised limit is to hold, in (0, 1].
    """
    quantile = observed_quantile(ended, completions, coverage)
    if quantile is None:
        return LimitAdvice(coverage, None, 2 * limit)
    return LimitAdvice(coverage, quantile, math.ceil(quantile / _MULTIPLE_OF) * _MULTIPLE_OF)
