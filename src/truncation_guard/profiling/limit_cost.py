"""What limits would hold, and what they would cost."""

from collections.abc import Iterable
from dataclasses import dataclass

from truncation_guard.argument_checks import check_positive
from truncation_guard.lengths.recommendation import round_up
from truncation_guard.lengths.sample import LengthSample

_COVERAGES = (0.5, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class LimitCost:
    """What a limit would hold, and what it would cost."""

    limit: int
    """`max_completion_length`, in tokens."""
    covered: float | None
    """Share of completions that end within it, in [0, 1]; None where that is not known."""
    mean_tokens: float | None
    """Mean number of tokens of a completion under it."""
    cost: float | None
    """Those tokens as a multiple of what the current limit takes; None without one."""


def limit_costs(
    sample: LengthSample, limits: Iterable[int], relative_to: int | None
) -> list[LimitCost]:
    """What each limit would hold and cost, the lowest first.

    Args:
        sample: the lengths of completions.
        limits: in tokens.
        relative_to: the limit that costs are relative to; None: there is none.

    Raises:
        ValueError: for a limit below 1.
    """
    chosen = sorted(set(limits))
    for limit in chosen:
        check_positive("limit", limit, "a number of tokens")
    return [_cost(sample, int(limit), relative_to) for limit in chosen]


def telling_limits(sample: LengthSample, current: int | None) -> set[int]:
    """Powers of two, the current limit, and those that hold 50, 90, 95 and 99 %, where known."""
    powers = [2**k for k in range(3, 31) if 2**k <= sample.longest]
    quantiles = [sample.quantile(q) for q in _COVERAGES]
    rounded = [round_up(n, 64) for n in quantiles if n is not None]
    known = [n for n in rounded if sample.share_truncated(n) is not None]
    chosen = {*powers[-5:], *known, sample.longest, current or 0}
    return {limit for limit in chosen if limit >= 1}


def _cost(sample: LengthSample, limit: int, base: int | None) -> LimitCost:
    truncated = sample.share_truncated(limit)
    return LimitCost(
        limit=limit,
        covered=None if truncated is None else 1 - truncated,
        mean_tokens=sample.mean_tokens(limit),
        cost=None if base is None else sample.cost(limit, base),
    )
