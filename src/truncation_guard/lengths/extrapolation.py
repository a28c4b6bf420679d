"""What may lie behind the limit: a range, or none.

Lengths under a limit cannot tell a long tail from completions that never end. So what is said past
the limit is a range over two families, under the assumption that all completions end, and nothing
is said where the lengths themselves speak against it.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from truncation_guard.lengths.histogram import LengthHistogram
from truncation_guard.lengths.quantiles import CensoredLengths

_ENOUGH_ENDED = 20
_ENOUGH_LENGTHS = 5
_ENOUGH_LEFT = 20
"""Of fewer unfinished completions less than a tenth may end by chance."""
_ENOUGH_CUT = 5
"""A length at which fewer completions were cut was no limit of the sample."""
_FARTHEST = 10
"""Times the longest length. A tail that far out is the family's, not the data's."""
_MOST_ROWS = 5000
"""A fit to more rows takes seconds, and gives the same."""
_FEW_ENDED = 0.1
"""Log-normal and Weibull lengths that are past their shortest fifth lose more than this share of
what is left to each increase of the limit by half."""
_ROUNDING = 1e-9
_APART = 1.5
_CLEARLY_ENDING = 0.2


@dataclass(frozen=True, slots=True)
class Plateau:
    """Two limits between which hardly any completion ended: the rest may never do."""

    before: int
    """The lower limit in tokens."""
    after: int
    """The higher one."""
    share_before: float
    """Share of completions that are longer than the lower limit."""
    share_after: float
    """Share of completions that are longer than the higher one."""
    is_the_end: bool
    """Whether that shows that the rest does not end: the sample was taken at both limits, a fifth
    of it ended under the lower one, and at least 20 completions went past it."""


def quantile_range(sample: CensoredLengths, q: float) -> tuple[int, int] | None:
    """Where the quantile is or may be: see `LengthSample.quantile_range`."""
    seen = sample.quantile(q)
    if seen is not None:
        return seen, seen
    if q == 1.0 or find_plateau(sample) is not None:
        return None
    return _extrapolate(sample.lengths, q)


def find_plateau(sample: CensoredLengths) -> Plateau | None:
    """The two limits between which less than a tenth of the unfinished completions ended.

    The higher one is where the longest completion was cut. The lower one is the next limit of the
    sample that is well below it, else half of it.

    Returns:
        None where more than that ended between them, and where the longest of all was not cut.
    """
    lengths, after = sample.lengths, sample.longest
    cuts = lengths.truncated_at
    if after not in cuts:
        return None
    lower = [n for n, count in cuts.items() if n * _APART <= after and count >= _ENOUGH_CUT]
    before = max(lower, default=after // 2)
    # Both are known, being of limits within what was seen, and neither is 0.
    share_before = cast(float, sample.share_truncated(before))
    share_after = cast(float, sample.share_truncated(after))
    if share_before - share_after >= _FEW_ENDED * share_before - _ROUNDING:
        return None
    is_the_end = (
        bool(lower)
        and share_before <= 1 - _CLEARLY_ENDING
        and lengths.above(before) >= _ENOUGH_LEFT
    )
    return Plateau(before, after, share_before, share_after, is_the_end)


def _extrapolate(lengths: LengthHistogram, q: float) -> tuple[int, int] | None:
    """The quantile by log-normal and Weibull fits to a censored sample, if everything ends.

    Maximum likelihood by `scipy.stats.fit` of each family, its location held at 0.

    Args:
        lengths: the sample.
        q: in (0, 1).

    Returns:
        The lower and the higher of the two in tokens, both above the longest length. None with
        fewer than 20 finished completions or 5 lengths among them, without a fit, and where the
        fits put the quantile below the cut or more than ten times past it.
    """
    from scipy import stats

    if lengths.finished < _ENOUGH_ENDED or len(lengths.finished_at) < _ENOUGH_LENGTHS:
        return None
    every = -(-lengths.completions // _MOST_ROWS)
    rows = stats.CensoredData(
        uncensored=_expand(lengths.finished_at, every), right=_expand(lengths.truncated_at, every)
    )
    quantiles = [_quantile(family, rows, q) for family in (stats.lognorm, stats.weibull_min)]
    longest = lengths.longest
    if not all(0 < n <= _FARTHEST * longest for n in quantiles) or max(quantiles) <= longest:
        return None
    low, high = sorted(max(int(np.ceil(quantile)), longest + 1) for quantile in quantiles)
    return low, high


def _expand(counts: Mapping[int, int], every: int) -> Any:
    """One row for each completion, or for every so many of them, in the order of length."""
    ordered = sorted(counts)
    ends = np.cumsum([counts[n] for n in ordered], dtype=np.int64)
    chosen = np.arange(every // 2, ends[-1] if len(ends) else 0, every)
    rows = np.array(ordered, dtype=float)[np.searchsorted(ends, chosen, side="right")]
    return np.maximum(rows, 1.0)  # the families begin above 0


def _quantile(family: Any, rows: Any, q: float) -> float:
    """NaN where the family does not fit."""
    from scipy.stats import FitError

    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # of a search that strays; its result is checked
            return float(family.ppf(q, *family.fit(rows, floc=0)))
    except FitError:
        return float("nan")
