from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from truncation_guard import LengthSample
from truncation_guard.lengths.extrapolation import Plateau


def drawn(family: Any, completions: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.ceil(family.rvs(completions, random_state=seed)).astype(int)


def cut_at(lengths: Any, limit: int) -> LengthSample:
    return LengthSample(np.minimum(lengths, limit), lengths <= limit)


def at_two_limits(lengths: Any, low: int, high: int) -> LengthSample:
    half = len(lengths) // 2
    limits = np.where(np.arange(len(lengths)) < half, low, high)
    return LengthSample(np.minimum(lengths, limits), lengths <= limits)


LOG_NORMAL = stats.lognorm(0.6, scale=250)
WEIBULL = stats.weibull_min(1.5, scale=300)


# --- the range ----------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [LOG_NORMAL, WEIBULL])
@pytest.mark.parametrize("truncated", [0.3, 0.5])
@pytest.mark.parametrize("q", [0.9, 0.95])
def test_the_range_holds_the_quantile_of_either_family(
    family: Any, truncated: float, q: float
) -> None:
    limit = round(family.ppf(1 - truncated))
    low, high = cut_at(drawn(family, 4000), limit).quantile_range(q) or (0, 0)
    # One end is a fit of the very family, and off by the error of sampling alone.
    assert low * 0.93 < family.ppf(q) < high * 1.07
    assert limit < low < high


def best_quantile(family: Any, shapes: Any, scales: Any, lengths: Any, limit: int, q: float) -> Any:
    """That of the likeliest member of the family in a grid, with the likelihood written out."""
    ended = lengths[lengths <= limit]
    cut = sum(lengths > limit)
    shape, scale = (grid.ravel() for grid in np.meshgrid(shapes, scales))
    likelihood = family.logpdf(ended[:, None], shape, scale=scale).sum(axis=0)
    likelihood += cut * family.logsf(limit, shape, scale=scale)
    best = likelihood.argmax()
    return family.ppf(q, shape[best], scale=scale[best])


def test_the_ends_of_the_range_are_the_maximum_likelihood_fits() -> None:
    """By a search over a grid of both parameters."""
    lengths, limit, q = drawn(LOG_NORMAL, 400), 250, 0.95
    best = [
        best_quantile(family, shapes, scales, lengths, limit, q)
        for family, shapes, scales in (
            (stats.lognorm, np.linspace(0.45, 0.75, 61), np.linspace(200, 300, 101)),
            (stats.weibull_min, np.linspace(1.2, 2.6, 71), np.linspace(240, 400, 161)),
        )
    ]
    found = cut_at(lengths, limit).quantile_range(q)
    assert found == pytest.approx(sorted(best), rel=0.02)


def test_an_identified_quantile_is_its_own_range() -> None:
    lengths = LengthSample(range(1, 101))
    assert lengths.quantile_range(0.95) == (95, 95)
    assert lengths.quantile_range(1.0) == (100, 100)


def test_the_range_begins_above_what_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    fits = {"lognorm": 240.0, "weibull_min": 300.5}
    for family, quantile in fits.items():
        monkeypatch.setattr(getattr(stats, family), "fit", lambda rows, floc: ())
        monkeypatch.setattr(getattr(stats, family), "ppf", lambda q, value=quantile: value)
    assert cut_at(drawn(LOG_NORMAL, 200), 250).quantile_range(0.95) == (251, 301)


def test_there_is_no_range_where_both_fits_contradict_what_was_seen() -> None:
    lengths = LengthSample([*range(50, 90), *[100] * 3], [True] * 40 + [False] * 3)
    assert lengths.plateau is None
    assert lengths.quantile_range(0.95) is None


def test_there_is_no_range_that_ends_more_than_ten_times_past_what_was_seen() -> None:
    lengths = cut_at(drawn(LOG_NORMAL, 400), 250)
    assert lengths.quantile_range(0.999) is not None
    assert lengths.quantile_range(1 - 1e-12) is None


def test_there_is_no_range_for_the_longest_of_all() -> None:
    assert cut_at(drawn(LOG_NORMAL, 200), 250).quantile_range(1.0) is None


@pytest.mark.parametrize(("ended", "is_there"), [(19, False), (20, True)])
def test_there_is_no_range_with_fewer_than_20_completions_that_ended(
    ended: int, is_there: bool
) -> None:
    lengths = LengthSample([*range(40, 40 + ended), *[60] * 20], [True] * ended + [False] * 20)
    assert (lengths.quantile_range(0.9) is not None) == is_there


@pytest.mark.parametrize(("lengths", "is_there"), [(4, False), (5, True)])
def test_there_is_no_range_with_fewer_than_5_lengths(lengths: int, is_there: bool) -> None:
    rows = [40 + 5 * (n % lengths) for n in range(40)]
    sample = LengthSample([*rows, *[70] * 40], [True] * 40 + [False] * 40)
    assert (sample.quantile_range(0.9) is not None) == is_there


@pytest.mark.parametrize("family", ["lognorm", "weibull_min"])
@pytest.mark.parametrize(
    "fitted", [stats.FitError("no optimum"), (1.0, 0.0, math.nan), (1e-3, 0.0, 1e308)]
)
def test_there_is_no_range_where_a_family_does_not_fit(
    family: str, fitted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(rows: Any, floc: float) -> Any:
        if isinstance(fitted, Exception):
            raise fitted
        return fitted

    monkeypatch.setattr(getattr(stats, family), "fit", fit)
    monkeypatch.setattr(getattr(stats, family), "ppf", lambda q, s, loc, scale: scale * 10)
    lengths = cut_at(drawn(LOG_NORMAL, 200), 250)
    assert lengths.quantile_range(0.95) is None
    assert lengths.recommend(0.95).basis == "not identified"


@pytest.mark.slow
def test_a_sample_of_a_million_has_the_range_of_its_thousands() -> None:
    lengths = drawn(LOG_NORMAL, 4000)
    ended, cut = cut_at(lengths, 250).histograms
    many = LengthSample.from_histograms(
        {n: 250 * count for n, count in ended.items()}, {n: 250 * count for n, count in cut.items()}
    )
    assert len(many) == 1_000_000
    assert many.quantile_range(0.95) == pytest.approx(
        cut_at(lengths, 250).quantile_range(0.95), rel=0.02
    )


def test_completions_without_a_token_do_not_stand_in_the_way() -> None:
    lengths = LengthSample([0, *range(1, 60), *[60] * 20], [True] * 60 + [False] * 20)
    assert lengths.quantile_range(0.9) is not None


# --- completions that do not end ----------------------------------------------------------------


def test_two_limits_with_nearly_the_same_truncated_share_show_that_no_limit_helps() -> None:
    """The figures of a real model: 25 % are longer than 512 tokens, 23 % longer than 1024."""
    lengths = np.array([*range(30, 480, 6), 700, 900, *[10**6] * 23])
    assert len(lengths) == 100
    both = LengthSample(
        [*np.minimum(lengths, 512), *np.minimum(lengths, 1024)],
        [*(lengths <= 512), *(lengths <= 1024)],
    )
    assert both.plateau == Plateau(512, 1024, pytest.approx(0.25), pytest.approx(0.23), True)
    assert both.quantile_range(0.9) is None
    recommendation = both.recommend(0.9)
    assert recommendation.max_completion_length is None
    assert recommendation.basis == "not identified"
    assert (recommendation.low, recommendation.high) == (1025, None)
    assert recommendation.reason == (
        "no limit reaches this coverage: these completions do not end (25% of them are longer than "
        "512 tokens, 23% longer than 1024); look at the stop tokens and at what they repeat"
    )
    # What is identified stays so.
    assert both.recommend(0.75).max_completion_length == 512


def test_one_limit_alone_never_shows_that_they_do_not_end() -> None:
    lengths = np.array([*range(30, 480, 6), 700, 900, *[10**6] * 23])
    one = cut_at(lengths, 1024)
    assert one.plateau == Plateau(512, 1024, pytest.approx(0.25), pytest.approx(0.23), False)
    assert one.recommend(0.9).reason == (
        "the length that holds 90% of 100 completions is above 1024 tokens and not identified (25% "
        "of them are longer than 512 tokens, 23% longer than 1024); sample at a larger limit, and "
        "see whether they end at all or miss a stop token"
    )


@pytest.mark.parametrize("family", [LOG_NORMAL, WEIBULL, stats.lognorm(1.2, scale=300)])
@pytest.mark.parametrize("limits", [(200, 400), (150, 600), (256, 512)])
def test_lengths_that_all_end_show_no_plateau(family: Any, limits: tuple[int, int]) -> None:
    assert at_two_limits(drawn(family, 2000), *limits).plateau is None


@pytest.mark.parametrize(("ended_between", "is_plateau"), [(9, True), (10, False)])
def test_a_tenth_of_the_unfinished_that_end_make_the_difference(
    ended_between: int, is_plateau: bool
) -> None:
    lengths = LengthSample(
        [100] * 100 + [300] * ended_between + [400] * (100 - ended_between),
        [True] * (100 + ended_between) + [False] * (100 - ended_between),
    )
    assert (lengths.plateau is not None) == is_plateau


def test_limits_close_together_say_nothing() -> None:
    """400 and 401 are cut by nearly the same completions, whatever comes after."""
    assert at_two_limits(drawn(LOG_NORMAL, 1000), 300, 301).plateau is None


@pytest.mark.parametrize(
    ("at_low", "left", "is_said"), [(4, 40, False), (5, 40, True), (5, 19, False), (5, 20, True)]
)
def test_that_they_do_not_end_takes_a_limit_and_enough_that_passed_it(
    at_low: int, left: int, is_said: bool
) -> None:
    sample = LengthSample.from_histograms({100: 100}, {256: at_low, 1024: left})
    assert sample.plateau is not None
    assert sample.plateau.is_the_end == is_said


@pytest.mark.slow
def test_a_capped_limit_between_the_fits_may_hold_fewer() -> None:
    lengths = cut_at(drawn(LOG_NORMAL, 400), 250)
    low, high = lengths.quantile_range(0.95) or (0, 0)
    for limit, end in ((low, "may hold fewer"), (low - 1, "holds fewer by both fits")):
        reason = lengths.recommend(0.95, 1, max_length=limit).reason
        assert reason.endswith(f"; capped at max_length={limit}, which {end}")
    assert lengths.recommend(0.95, 64, max_length=high).reason.endswith(f"max_length={high}")


def test_where_hardly_anything_ended_at_all_it_is_not_said_that_nothing_will() -> None:
    lengths = np.array([50] * 19 + [10**6] * 81)
    both = LengthSample(
        [*np.minimum(lengths, 100), *np.minimum(lengths, 200)],
        [*(lengths <= 100), *(lengths <= 200)],
    )
    assert both.plateau == Plateau(100, 200, pytest.approx(0.81), pytest.approx(0.81), False)
    assert both.recommend(0.9).basis == "not identified"


def test_there_is_no_plateau_without_a_cut() -> None:
    assert LengthSample([8, 9, 1000]).plateau is None


def test_there_is_no_plateau_where_the_longest_of_all_ended() -> None:
    assert LengthSample([8, 9, 4], [True, True, False]).plateau is None


# --- the recommendation -------------------------------------------------------------------------


def test_an_extrapolated_limit_is_the_upper_end_of_its_range_and_says_what_it_assumes() -> None:
    lengths = cut_at(drawn(LOG_NORMAL, 400), 250)
    low, high = lengths.quantile_range(0.95) or (0, 0)
    recommendation = lengths.recommend(0.95, multiple_of=1)
    assert recommendation.max_completion_length == high == recommendation.high
    assert recommendation.low == low
    assert recommendation.basis == "extrapolated"
    share = 100 * lengths.truncated / 400
    assert recommendation.reason == (
        "extrapolated past the longest completions, which were cut at 250 tokens: log-normal and "
        f"Weibull fits put the length that holds 95% at {low} to {high} tokens, sampling "
        f"error aside, if every completion ends; of all completions 0 to {share:.4g}% may never "
        f"end (sample at a larger "
        "limit to know)"
    )


def test_an_extrapolated_limit_is_capped_and_says_that_it_then_holds_fewer() -> None:
    lengths = cut_at(drawn(LOG_NORMAL, 400), 250)
    capped = lengths.recommend(0.95, max_length=300)
    assert capped.max_completion_length == 300
    assert capped.basis == "extrapolated"
    assert capped.reason.endswith(
        "to know); capped at max_length=300, which holds fewer by both fits"
    )
    # Within what was seen the share is known.
    known = lengths.recommend(0.95, max_length=200)
    held = 100 - 100 * (lengths.share_truncated(200) or 0)
    assert known.reason.endswith(f"; capped at max_length=200, which holds {held:.4g}%")


def test_too_few_completions_that_ended_give_no_limit_but_a_bound() -> None:
    lengths = LengthSample([40, 50, 64, 64], [True, True, False, False])
    assert lengths.recommend(0.95).reason == (
        "the length that holds 95% of 4 completions is above 64 tokens and not identified: 2 of "
        "them ended; sample more of them, at a larger limit"
    )
