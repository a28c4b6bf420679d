from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import FrozenInstanceError
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from truncation_guard.lengths import LimitAdvice, advise_limit, observed_quantile

LENGTHS = st.lists(st.integers(1, 4096), min_size=1, max_size=60)
MAYBE_NO_LENGTHS = st.lists(st.integers(0, 300), max_size=40)
PER_MILLE = st.integers(1, 1000)


def holding(lengths: Sequence[float], share: Fraction) -> float:
    """The shortest of the lengths that at least this share of them does not exceed."""
    needed = share * len(lengths)
    return min(n for n in lengths if sum(other <= n for other in lengths) >= needed)


# --- the right values of cases.md ---------------------------------------------------------------


def test_nearest_rank_percentiles_of_1_to_100_are_those_of_case_6() -> None:
    ended = dict.fromkeys(range(1, 101), 1)
    assert [observed_quantile(ended, {}, q) for q in (0.5, 0.9, 0.95, 0.99)] == [50, 90, 95, 99]
    assert advise_limit(ended, {}, 64, 0.95) == LimitAdvice(
        coverage=0.95, quantile=95, lower_bound=95, is_above=False, next_limit=128
    )


def test_at_least_the_coverage_is_covered_as_in_case_6() -> None:
    lengths = [120, 200, 350, 410, 480, 520, 600, 300, 280, 450, 700, 390]
    assert observed_quantile(Counter(lengths), {}, 0.95) == 700
    assert observed_quantile(Counter(lengths), {}, 11 / 12) == 600


def test_a_quantile_among_the_cut_is_not_identified_as_in_case_8() -> None:
    ended = dict.fromkeys(range(30, 541, 30), 1)
    cut = {1024: 18}
    assert len(ended) == 18
    assert observed_quantile(ended, cut, 0.5) == 540
    assert observed_quantile(ended, cut, 0.5001) is None
    assert observed_quantile(ended, cut, 0.95) is None
    assert advise_limit(ended, cut, 1024, 0.95) == LimitAdvice(
        coverage=0.95, quantile=None, lower_bound=1024, is_above=True, next_limit=2048
    )


# --- what is identified -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cut", "quantile"),
    [(4, 100), (5, 100), (6, None), (99, None)],
    ids=["below", "exactly", "above", "nearly all"],
)
def test_the_95th_percentile_is_identified_up_to_5_percent_cut(
    cut: int, quantile: int | None
) -> None:
    assert observed_quantile({100: 100 - cut}, {256: cut}, 0.95) == quantile


@pytest.mark.parametrize(
    ("q", "quantile"), [(0.05, None), (0.1, None), (0.11, 100), (0.9, 100), (0.91, None)]
)
def test_a_row_that_was_cut_short_may_be_on_either_side_of_the_others(
    q: float, quantile: int | None
) -> None:
    """A tool cut 10 of 100 rows at 50 tokens; the others ended at 100."""
    assert observed_quantile({100: 90}, {50: 10}, q) == quantile


def test_there_is_no_quantile_without_a_completion_that_ended() -> None:
    assert observed_quantile({}, {256: 8}, 0.5) is None
    assert observed_quantile({}, {}, 0.5) is None


def test_the_smallest_quantile_is_the_shortest_length() -> None:
    assert observed_quantile({7: 1, 9: 99}, {}, 1e-9) == 7
    assert observed_quantile({0: 1, 9: 99}, {}, 1e-9) == 0


@settings(deadline=None)
@given(lengths=LENGTHS, per_mille=PER_MILLE)
def test_without_cut_completions_it_is_the_inverted_cdf_of_numpy(
    lengths: list[int], per_mille: int
) -> None:
    # numpy multiplies q and n in floating point, and passes over a rank where that comes out a
    # little too large; the exact fraction of the other tests has no such edge.
    assume(per_mille * len(lengths) % 1000)
    q = per_mille / 1000
    expected = np.quantile(lengths, q, method="inverted_cdf")
    assert observed_quantile(Counter(lengths), {}, q) == expected


@settings(deadline=None)
@given(ended=MAYBE_NO_LENGTHS, cut=MAYBE_NO_LENGTHS, per_mille=PER_MILLE)
def test_it_is_there_where_the_cut_make_no_difference_in_exact_arithmetic(
    ended: list[int], cut: list[int], per_mille: int
) -> None:
    assume(ended or cut)
    share = Fraction(per_mille, 1000)
    shortest = holding([*ended, *cut], share)
    longest = holding([*ended, *[math.inf] * len(cut)], share)
    expected = shortest if shortest == longest else None
    assert observed_quantile(Counter(ended), Counter(cut), per_mille / 1000) == expected


@pytest.mark.parametrize("q", [0.07, 0.14, 0.28, 0.55, 0.56, 0.57, 0.95, 0.99])
@pytest.mark.parametrize("thousands", [1, 10, 10_000])
def test_rounding_of_q_times_n_does_not_pass_over_a_rank(q: float, thousands: int) -> None:
    completions = 1000 * thousands
    rank = round(Fraction(str(q)) * completions)
    assert observed_quantile({1: rank, 2: completions - rank}, {}, q) == 1
    assert observed_quantile({1: rank - 1, 2: completions - rank + 1}, {}, q) == 2
    assert observed_quantile({1: rank}, {1: completions - rank}, q) == 1
    assert observed_quantile({1: rank - 1}, {1: completions - rank + 1}, q) is None


@settings(deadline=None)
@given(ended=LENGTHS, cut=MAYBE_NO_LENGTHS, one=PER_MILLE, other=PER_MILLE)
def test_a_higher_quantile_is_never_shorter(
    ended: list[int], cut: list[int], one: int, other: int
) -> None:
    low, high = (
        advise_limit(Counter(ended), Counter(cut), 256, per_mille / 1000)
        for per_mille in sorted((one, other))
    )
    assert low.lower_bound <= high.lower_bound
    if low.quantile is not None and high.quantile is not None:
        assert low.quantile <= high.quantile


# --- every truth that the data leave open -------------------------------------------------------

TOP = 6
"""Longer than everything that is drawn: it stands for every length out there."""


def quantiles_of_truths(ended: list[int], shortest: list[int], share: Fraction) -> set[float]:
    """What the quantile may be, each cut completion having this length or any longer one."""
    truths = product(*(range(low, TOP + 1) for low in shortest))
    return {holding([*ended, *truth], share) for truth in truths}


@settings(deadline=None, max_examples=300)
@given(
    ended=st.lists(st.integers(0, 4), max_size=6),
    cut=st.lists(st.integers(0, 4), max_size=4),
    twelfths=st.integers(1, 12),
)
def test_what_is_said_of_a_quantile_is_what_holds_in_every_truth(
    ended: list[int], cut: list[int], twelfths: int
) -> None:
    assume(ended or cut)
    share = Fraction(twelfths, 12)
    advice = advise_limit(Counter(ended), Counter(cut), 256, twelfths / 12)
    as_long_as_seen = quantiles_of_truths(ended, cut, share)
    longer = quantiles_of_truths(ended, [length + 1 for length in cut], share)
    assert advice.quantile == observed_quantile(Counter(ended), Counter(cut), twelfths / 12)
    # Identified: one value, whatever the cut completions would have become.
    assert {advice.quantile} == (as_long_as_seen if len(as_long_as_seen) == 1 else {None})
    if advice.quantile is not None:
        assert longer == {advice.quantile}
    # No truth is below the bound, and it is no lower than it must be.
    assert advice.lower_bound == min(as_long_as_seen)
    # A cut completion would have had at least one more token.
    assert advice.is_above == (min(longer) > advice.lower_bound)


# --- the limit to try ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ended", "cut", "bound", "is_above"),
    [
        ({100: 8}, {256: 24}, 256, True),
        ({}, {256: 8}, 256, True),
        # Half the rows are known to be at 256, so the median may be just that.
        ({256: 4}, {256: 4}, 256, False),
        ({256: 3}, {256: 5}, 256, True),
        # The rows that a tool cut at 50 may end below 100, or anywhere above.
        ({100: 3}, {50: 5}, 50, True),
        ({100: 5, 200: 1}, {50: 2}, 100, False),
        ({100: 2}, {50: 2, 256: 4}, 100, False),
        ({100: 1}, {50: 2, 256: 5}, 256, True),
    ],
)
def test_above_is_only_said_where_it_is_certain(
    ended: dict[int, int], cut: dict[int, int], bound: int, is_above: bool
) -> None:
    advice = advise_limit(ended, cut, 256, 0.5)
    assert (advice.lower_bound, advice.is_above) == (bound, is_above)


@pytest.mark.parametrize(
    ("quantile", "next_limit"),
    [(33, 64), (63, 64), (64, 64), (65, 128), (256, 256), (257, 320), (512, 512)],
)
def test_the_advised_limit_is_the_next_multiple_of_64(quantile: int, next_limit: int) -> None:
    advice = advise_limit({quantile: 8}, {}, 32, 0.95)
    assert (advice.quantile, advice.next_limit) == (quantile, next_limit)
    assert (advice.lower_bound, advice.is_above) == (quantile, False)


@pytest.mark.parametrize(
    ("quantile", "limit", "next_limit"),
    [(192, 256, None), (255, 256, None), (256, 256, None), (257, 256, 320), (256, 255, 256)],
)
def test_no_limit_is_advised_where_the_limit_holds_the_coverage(
    quantile: int, limit: int, next_limit: int | None
) -> None:
    advice = advise_limit({quantile: 95}, {limit: 5}, limit, 0.95)
    assert (advice.quantile, advice.next_limit) == (quantile, next_limit)


@pytest.mark.parametrize(
    ("quantile", "limit", "advised"),
    [(90, 100, 128), (100, 100, 128), (65, 127, 128), (1, 64, None)],
)
def test_the_advised_limit_is_rounded_up_even_where_the_limit_holds_the_quantile(
    quantile: int, limit: int, advised: int | None
) -> None:
    assert advise_limit({quantile: 97}, {limit: 3}, limit, 0.95).next_limit == advised


@pytest.mark.parametrize("limit", [1, 8, 100, 256])
def test_twice_the_limit_is_advised_where_nothing_is_identified(limit: int) -> None:
    assert advise_limit({}, {limit: 8}, limit, 0.5) == LimitAdvice(
        coverage=0.5, quantile=None, lower_bound=limit, is_above=True, next_limit=2 * limit
    )


def test_advice_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        advise_limit({100: 8}, {}, 256, 0.95).next_limit = 64  # type: ignore[misc]


@settings(deadline=None)
@given(
    ended=LENGTHS,
    cut=MAYBE_NO_LENGTHS,
    limit=st.integers(1, 128).map(lambda number: 64 * number),
    per_mille=PER_MILLE,
)
def test_an_identified_limit_holds_the_coverage_and_the_multiple_below_it_does_not(
    ended: list[int], cut: list[int], limit: int, per_mille: int
) -> None:
    advice = advise_limit(Counter(ended), Counter(cut), limit, per_mille / 1000)
    needed = Fraction(per_mille, 1000) * (len(ended) + len(cut))

    def certainly_within(tokens: int) -> bool:
        return sum(n <= tokens for n in ended) >= needed

    assert advice.coverage == per_mille / 1000
    if advice.quantile is None:
        assert advice.next_limit == 2 * limit
    elif advice.next_limit is None:
        assert certainly_within(limit)
    else:
        assert advice.next_limit % 64 == 0
        assert certainly_within(advice.next_limit)
        assert not certainly_within(max(advice.next_limit - 64, limit))
