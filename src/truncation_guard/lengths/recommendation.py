"""From lengths to a limit, and what it rests on.

A limit without its reason looks as certain as any other, so the two go together.
"""

from dataclasses import dataclass
from typing import Literal

from truncation_guard.argument_checks import check_positive, check_share
from truncation_guard.lengths.extrapolation import find_plateau, quantile_range
from truncation_guard.lengths.histogram import LengthHistogram
from truncation_guard.lengths.quantiles import CensoredLengths
from truncation_guard.shares import percent

Basis = Literal["observed", "extrapolated", "not identified"]

_MULTIPLE_OF = 64


@dataclass(frozen=True, slots=True)
class LimitRecommendation:
    """A `max_completion_length`, and what it rests on."""

    max_completion_length: int | None
    """In tokens; None where no number can be named honestly."""
    basis: Basis
    """`"observed"`: the quantile lies among the completions that ended. `"extrapolated"`: past
    them, by fits that assume that every completion ends. `"not identified"`: nowhere known."""
    low: int
    """Where the quantile is or begins, in tokens: itself if observed, the lower of two fits if
    extrapolated, else what it is at least."""
    high: int | None
    """Where it ends: itself if observed, the higher of two fits, which are no bounds, if
    extrapolated, else None."""
    coverage: float
    """Share of completions the limit should cover."""
    reason: str
    """Why, in words."""


@dataclass(frozen=True, slots=True)
class LimitAdvice:
    """What to do about a limit, from the lengths seen under it."""

    coverage: float
    """Share of completions the limit should cover."""
    quantile: int | None
    """The length in tokens that `coverage` of the completions do not exceed; None where it is not
    identified."""
    longest: int
    """The longest length in tokens that was seen: a quantile that is not identified is above it."""
    recommended_limit: int | None
    """In tokens: `quantile` rounded up to a multiple of 64, or twice the limit where it is not
    identified. None where that is not above the limit."""


def recommend(
    sample: CensoredLengths, coverage: float, multiple_of: int, max_length: int | None
) -> LimitRecommendation:
    """The limit that holds at least this share of the sample: see `LengthSample.recommend`."""
    check_share("coverage", coverage)
    check_positive("multiple_of", multiple_of, "1 for no rounding")
    if max_length is not None:
        check_positive("max_length", max_length, "None for no bound")
    span = quantile_range(sample, coverage)
    if span is None:
        reason = _why_not(sample, coverage)
        return LimitRecommendation(
            None, "not identified", sample.longest + 1, None, coverage, reason
        )
    low, high = span
    is_observed = sample.quantile(coverage) is not None
    limit = round_up(max(high, 1), int(multiple_of))
    reason = _why(sample, span, coverage, is_observed)
    if max_length is not None and limit > max_length:
        limit = int(max_length)
        reason += f"; capped at max_length={limit}"
        if limit < high:
            reason += _held(sample, limit, low)
    basis: Basis = "observed" if is_observed else "extrapolated"
    return LimitRecommendation(limit, basis, low, high, coverage, reason)


def advise(lengths: LengthHistogram, limit: int, coverage: float) -> LimitAdvice:
    """What to do about the limit in tokens that these completions were written under.

    Unlike `recommend` it fits nothing, so that a training can afford it at every step.

    Raises:
        ValueError: for a `coverage` outside of (0, 1].
    """
    sample = CensoredLengths(lengths)
    quantile = sample.quantile(coverage)
    recommended: int | None = 2 * limit
    if quantile is not None:
        rounded = round_up(quantile, _MULTIPLE_OF)
        recommended = rounded if rounded > limit else None
    return LimitAdvice(coverage, quantile, sample.longest, recommended)


def round_up(tokens: int, multiple_of: int) -> int:
    """The next multiple, unless `tokens` is one."""
    return -(tokens // -multiple_of) * multiple_of


def _why(sample: CensoredLengths, span: tuple[int, int], coverage: float, is_observed: bool) -> str:
    if is_observed:
        reason = (
            f"{percent(coverage)} of {len(sample)} completions are at most {span[1]} tokens long"
        )
        is_longest = span[1] == sample.longest and coverage < 1 and len(sample) * (1 - coverage) < 1
        return f"{reason}, which is the longest of so few" if is_longest else reason
    unfinished = sample.share_truncated(sample.longest) or 0.0
    return (
        f"extrapolated past the longest completions, which were cut at {sample.longest} tokens: "
        f"log-normal and Weibull fits put the length that holds {percent(coverage)} at {span[0]} "
        f"to {span[1]} tokens, sampling error aside, if every completion ends; of all completions "
        f"0 to {percent(unfinished)} may never end (sample at a larger limit to know)"
    )


def _held(sample: CensoredLengths, limit: int, low: int) -> str:
    unfinished = sample.share_truncated(limit)
    if unfinished is None:
        return ", which may hold fewer" if limit >= low else ", which holds fewer by both fits"
    return f", which holds {percent(1 - unfinished)}"


def _why_not(sample: CensoredLengths, coverage: float) -> str:
    unknown = (
        f"the length that holds {percent(coverage)} of {len(sample)} completions is above "
        f"{sample.longest} tokens and not identified"
    )
    plateau = find_plateau(sample)
    if plateau is None:
        ended = len(sample) - sample.truncated
        return f"{unknown}: {ended} of them ended; sample more of them, at a larger limit"
    seen = (
        f"{percent(plateau.share_before)} of them are longer than {plateau.before} tokens, "
        f"{percent(plateau.share_after)} longer than {plateau.after}"
    )
    if plateau.is_the_end:
        return (
            f"no limit reaches this coverage: these completions do not end ({seen}); look at the "
            "stop tokens and at what they repeat"
        )
    return (
        f"{unknown} ({seen}); sample at a larger limit, and see whether they end at all or miss a "
        "stop token"
    )
