from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import CensoredData, ecdf

from truncation_guard import LengthSample

LENGTHS = st.lists(st.integers(1, 4096), min_size=1, max_size=60)
ROWS = st.lists(st.tuples(st.integers(0, 40), st.booleans()), min_size=1, max_size=40)
PER_MILLE = st.integers(1, 1000)


def sample(rows: Sequence[tuple[int, bool]]) -> LengthSample:
    return LengthSample([length for length, _ in rows], [ended for _, ended in rows])


def kaplan_meier(rows: Sequence[tuple[int, bool]]) -> dict[int, Fraction]:
    """The share that is longer than each length, slowly and in exact fractions."""
    share, shares = Fraction(1), {}
    for length in sorted({length for length, _ in rows}):
        at_risk = sum(other >= length for other, _ in rows)
        ended = sum(other == length and is_ended for other, is_ended in rows)
        share *= 1 - Fraction(ended, at_risk)
        shares[length] = share
    return shares


# --- quantiles ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cut", "quantile"),
    [(4, 100), (5, 100), (6, None), (99, None)],
    ids=["below", "exactly", "above", "nearly all"],
)
def test_the_95th_percentile_is_identified_up_to_5_percent_cut(
    cut: int, quantile: int | None
) -> None:
    lengths = LengthSample.from_histograms({100: 100 - cut}, {256: cut})
    assert lengths.quantile(0.95) == quantile


def test_a_completion_that_was_cut_where_another_ended_would_be_longer() -> None:
    assert sample([(8, True), (8, False)]).quantile(0.5) == 8
    assert sample([(8, True), (8, False)]).quantile(0.51) is None


def test_there_is_no_quantile_without_a_completion_that_ended() -> None:
    assert LengthSample([256] * 8, [False] * 8).quantile(0.01) is None


@settings(deadline=None)
@given(lengths=LENGTHS, per_mille=PER_MILLE)
def test_without_cut_completions_it_is_the_inverted_cdf_of_numpy(
    lengths: list[int], per_mille: int
) -> None:
    # numpy multiplies q and n in floating point, and passes over a rank where that comes out a
    # little too large; the exact fractions of the other tests have no such edge.
    assume(per_mille * len(lengths) % 1000)
    q = per_mille / 1000
    expected = np.quantile(lengths, q, method="inverted_cdf")
    assert LengthSample(lengths).quantile(q) == expected


@settings(deadline=None, max_examples=300)
@given(rows=ROWS, per_mille=PER_MILLE)
def test_with_cut_completions_it_is_the_kaplan_meier_quantile_in_exact_arithmetic(
    rows: list[tuple[int, bool]], per_mille: int
) -> None:
    remaining = 1 - Fraction(per_mille, 1000)
    reached = [length for length, share in kaplan_meier(rows).items() if share <= remaining]
    assert sample(rows).quantile(per_mille / 1000) == min(reached, default=None)


@settings(deadline=None)
@given(rows=ROWS)
def test_the_truncated_shares_are_those_of_scipy(rows: list[tuple[int, bool]]) -> None:
    lengths = sample(rows)
    survival = ecdf(
        CensoredData(
            uncensored=[float(length) for length, ended in rows if ended],
            right=[float(length) for length, ended in rows if not ended],
        )
    ).sf
    for limit in range(lengths.longest + 1):
        assert lengths.share_truncated(limit) == pytest.approx(survival.evaluate(limit), abs=1e-12)


@pytest.mark.parametrize("q", [0.07, 0.14, 0.28, 0.55, 0.56, 0.57, 0.95, 0.99])
@pytest.mark.parametrize("thousands", [1, 10, 10_000])
def test_rounding_of_q_times_n_does_not_pass_over_a_rank(q: float, thousands: int) -> None:
    completions = 1000 * thousands
    rank = round(Fraction(str(q)) * completions)

    def quantile(ended: dict[int, int], cut: dict[int, int]) -> int | None:
        return LengthSample.from_histograms(ended, cut).quantile(q)

    assert quantile({1: rank, 2: completions - rank}, {}) == 1
    assert quantile({1: rank - 1, 2: completions - rank + 1}, {}) == 2
    assert quantile({1: rank}, {1: completions - rank}) == 1
    assert quantile({1: rank - 1}, {1: completions - rank + 1}) is None


@settings(deadline=None)
@given(rows=ROWS, one=PER_MILLE, other=PER_MILLE)
def test_a_higher_quantile_is_never_shorter(
    rows: list[tuple[int, bool]], one: int, other: int
) -> None:
    low, high = (sample(rows).quantile(q / 1000) for q in sorted((one, other)))
    assert high is None or (low is not None and low <= high)


# --- what a limit holds and costs ---------------------------------------------------------------


@settings(deadline=None)
@given(rows=ROWS, limit=st.integers(0, 45))
def test_the_mean_under_a_limit_is_the_sum_of_the_shares_that_reach_each_token(
    rows: list[tuple[int, bool]], limit: int
) -> None:
    shares = kaplan_meier(rows)
    longest = max(shares)

    def longer_than(tokens: int) -> Fraction:
        return (
            shares[max(length for length in shares if length <= tokens)]
            if (tokens >= min(shares))
            else Fraction(1)
        )

    mean, truncated = sample(rows).mean_tokens(limit), sample(rows).share_truncated(limit)
    if limit > longest and (longest, False) in rows:
        assert mean is None
        assert truncated is None
    else:
        assert mean == pytest.approx(float(sum(map(longer_than, range(limit)))), abs=1e-9)
        assert truncated == pytest.approx(float(longer_than(limit)), abs=1e-12)


@settings(deadline=None)
@given(lengths=LENGTHS, limit=st.integers(1, 5000))
def test_without_cut_completions_the_mean_is_that_of_the_shortened_lengths(
    lengths: list[int], limit: int
) -> None:
    expected = sum(min(length, limit) for length in lengths) / len(lengths)
    assert LengthSample(lengths).mean_tokens(limit) == pytest.approx(expected)


def test_cost_is_the_tokens_under_one_limit_for_each_token_under_the_other() -> None:
    lengths = LengthSample([100, 300])
    assert lengths.cost(400, relative_to=200) == pytest.approx(200 / 150)
    assert LengthSample([100, 200], [True, False]).cost(400, relative_to=200) is None
    assert LengthSample([100, 200], [True, False]).cost(200, relative_to=400) is None
