from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from truncation_guard import LengthSample, LimitRecommendation, choose_max_completion_length

LENGTHS = st.lists(st.integers(1, 4096), min_size=1, max_size=60)
ROWS = st.lists(st.tuples(st.integers(0, 40), st.booleans()), min_size=1, max_size=40)
PER_MILLE = st.integers(1, 1000)


def sample(rows: Sequence[tuple[int, bool]]) -> LengthSample:
    return LengthSample([length for length, _ in rows], [ended for _, ended in rows])


# --- the right values of cases.md ---------------------------------------------------------------


def test_nearest_rank_percentiles_of_1_to_100_are_those_of_case_6() -> None:
    lengths = LengthSample(range(1, 101))
    assert [lengths.quantile(q) for q in (0.5, 0.9, 0.95, 0.99)] == [50, 90, 95, 99]
    assert lengths.recommend(0.95) == LimitRecommendation(
        max_completion_length=128,
        basis="observed",
        low=95,
        high=95,
        coverage=0.95,
        reason="95% of 100 completions are at most 95 tokens long",
    )


def test_at_least_the_coverage_is_covered_as_in_case_6() -> None:
    lengths = [120, 200, 350, 410, 480, 520, 600, 300, 280, 450, 700, 390]
    assert choose_max_completion_length(lengths, 0.95) == 700
    assert choose_max_completion_length(lengths, 11 / 12) == 600
    assert choose_max_completion_length(np.array(lengths), 0.95, multiple_of=64) == 704


def test_the_stop_token_is_a_part_of_the_length_as_in_case_7() -> None:
    assert choose_max_completion_length([256 + 1], multiple_of=64) == 320
    assert choose_max_completion_length([256], multiple_of=64) == 256


def test_a_quantile_among_the_cut_is_not_identified_as_in_case_8() -> None:
    lengths = LengthSample([*range(30, 541, 30), *[1024] * 18], [True] * 18 + [False] * 18)
    assert lengths.quantile(0.5) == 540
    assert lengths.quantile(0.5001) is None
    assert lengths.quantile(0.95) is None
    assert lengths.quantile_range(0.95) is None
    assert lengths.recommend(0.95) == LimitRecommendation(
        max_completion_length=None,
        basis="not identified",
        low=1025,
        high=None,
        coverage=0.95,
        reason="the length that holds 95% of 36 completions is above 1024 tokens and not "
        "identified (52.78% of them are longer than 512 tokens, 50% longer than 1024); sample at "
        "a larger limit, and see whether they end at all or miss a stop token",
    )


# --- recommendations ----------------------------------------------------------------------------


@settings(deadline=None)
@given(lengths=LENGTHS, per_mille=PER_MILLE, multiple_of=st.integers(1, 100))
def test_the_recommended_limit_holds_the_coverage_and_the_multiple_below_does_not(
    lengths: list[int], per_mille: int, multiple_of: int
) -> None:
    limit = choose_max_completion_length(lengths, per_mille / 1000, multiple_of)

    def held(tokens: int) -> Fraction:
        return Fraction(sum(length <= tokens for length in lengths), len(lengths))

    assert limit % multiple_of == 0
    assert held(limit) >= Fraction(per_mille, 1000) > held(limit - multiple_of)


@settings(deadline=None)
@given(rows=ROWS, one=PER_MILLE, other=PER_MILLE)
def test_more_coverage_never_lowers_the_recommended_limit(
    rows: list[tuple[int, bool]], one: int, other: int
) -> None:
    low, high = (
        sample(rows).recommend(q / 1000, 8).max_completion_length for q in sorted((one, other))
    )
    assert high is None or (low is not None and low <= high)


@settings(deadline=None)
@given(rows=ROWS, data=st.data())
def test_the_order_of_the_completions_means_nothing(
    rows: list[tuple[int, bool]], data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(rows))
    assert sample(shuffled).histograms == sample(rows).histograms
    assert sample(shuffled).recommend(0.9) == sample(rows).recommend(0.9)


@pytest.mark.parametrize(
    ("max_length", "limit", "end"),
    [
        (128, 128, ""),
        (100, 100, "; capped at max_length=100"),
        (95, 95, "; capped at max_length=95"),
        (94, 94, "; capped at max_length=94, which holds 94%"),
    ],
)
def test_a_recommendation_is_capped_and_says_what_the_cap_holds(
    max_length: int, limit: int, end: str
) -> None:
    recommendation = LengthSample(range(1, 101)).recommend(0.95, max_length=max_length)
    assert recommendation.max_completion_length == limit
    assert (recommendation.low, recommendation.high) == (95, 95)
    assert recommendation.reason == f"95% of 100 completions are at most 95 tokens long{end}"


# --- histograms in and out ----------------------------------------------------------------------


@settings(deadline=None)
@given(rows=ROWS)
def test_a_sample_of_histograms_is_the_sample_of_the_rows(rows: list[tuple[int, bool]]) -> None:
    ended = Counter(length for length, is_ended in rows if is_ended)
    cut = Counter(length for length, is_ended in rows if not is_ended)
    from_histograms = LengthSample.from_histograms({**ended, 99: 0}, {**cut, 98: 0})
    assert from_histograms.histograms == sample(rows).histograms == (ended, cut)
    assert len(from_histograms) == len(rows)
    assert from_histograms.truncated == sum(cut.values())
    assert from_histograms.longest == max(length for length, _ in rows)


def test_a_sample_shows_its_size_and_its_span() -> None:
    assert repr(LengthSample([3, 8, 8], [True, True, False])) == (
        "LengthSample(3 completions of 3 to 8 tokens, 1 truncated)"
    )


# --- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lengths", "terminated", "kind", "text"),
    [
        (
            [],
            None,
            ValueError,
            "`lengths` is empty. Pass the length in tokens of at least one completion.",
        ),
        (
            [3, -1],
            None,
            ValueError,
            "`lengths` must be whole numbers from 0 to 1000000000000000, got -1 at position 1. "
            "Pass lengths in "
            "tokens, and leave out what has none.",
        ),
        (
            [3, math.nan],
            None,
            ValueError,
            "`lengths` must be whole numbers from 0 to 1000000000000000, got nan at position 1. "
            "Pass lengths in "
            "tokens, and leave out what has none.",
        ),
        (
            [2.5],
            None,
            ValueError,
            "`lengths` must be whole numbers from 0 to 1000000000000000, got 2.5 at position 0. "
            "Pass lengths in "
            "tokens, and leave out what has none.",
        ),
        (
            ["a text"],
            None,
            TypeError,
            "`lengths` must be whole numbers, got 'a text'. Pass lengths in tokens: "
            "len(tokenizer(text)['input_ids']) + 1.",
        ),
        (
            [3, None],
            None,
            TypeError,
            "`lengths` must be whole numbers, got None. Pass lengths in tokens: "
            "len(tokenizer(text)['input_ids']) + 1.",
        ),
        (
            [[3], [4]],
            None,
            ValueError,
            "`lengths` must be a flat list. Pass one item for each completion.",
        ),
        (
            [3, 4],
            [True],
            ValueError,
            "`terminated` must be of the size of `lengths`, 2, got 1. Pass one truth value for "
            "each completion.",
        ),
        (
            [3],
            [2],
            TypeError,
            "`terminated` must be truth values, got 2. Pass True for each completion that ended by "
            "itself.",
        ),
        (
            [3],
            ["yes"],
            TypeError,
            "`terminated` must be truth values, got 'yes'. Pass True for each completion that "
            "ended by itself.",
        ),
        (
            [3, 4],
            [1.0, float("nan")],
            TypeError,
            "`terminated` must be truth values, got nan. Pass True for each completion that ended "
            "by itself.",
        ),
        (
            [3, 4],
            np.array([True, "1"], dtype=object),
            TypeError,
            "`terminated` must be truth values, got '1'. Pass True for each completion that ended "
            "by itself.",
        ),
        (
            [10**20],
            None,
            TypeError,
            "`lengths` must be whole numbers, got 100000000000000000000. Pass lengths in tokens: "
            "len(tokenizer(text)['input_ids']) + 1.",
        ),
        (
            np.array([8, 9], dtype=object),
            None,
            TypeError,
            "`lengths` must be whole numbers, got dtype('O'). Pass lengths in tokens: "
            "len(tokenizer(text)['input_ids']) + 1.",
        ),
        (5, None, TypeError, "`lengths` must be a list, got 5. Pass one item for each completion."),
        (
            {8: 1},
            None,
            TypeError,
            "`lengths` must be a list, got {8: 1}. Pass one item for each completion.",
        ),
        (
            [8, 9],
            [None, True],
            TypeError,
            "`terminated` must be truth values, got None. Pass True for each completion that ended "
            "by itself.",
        ),
        (
            np.ones((2, 2), dtype=int),
            None,
            ValueError,
            "`lengths` must be a list of numbers, got 2 dimensions. Pass one length in tokens for "
            "each completion.",
        ),
        (
            [2**63],
            None,
            ValueError,
            "`lengths` must be whole numbers from 0 to 1000000000000000, got 9223372036854775808 "
            "at "
            "position 0. Pass lengths in tokens, and leave out what has none.",
        ),
    ],
)
def test_lengths_that_are_none_are_refused(
    lengths: Any, terminated: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind) as error:
        LengthSample(lengths, terminated)
    assert str(error.value) == text


def test_flags_may_be_numbers() -> None:
    assert LengthSample([8, 9], [1.0, 0.0]) == LengthSample([8, 9], [True, False])


def test_equal_samples_are_equal_and_hash_alike() -> None:
    one, other = LengthSample([8, 9, 9], [True, False, True]), LengthSample([9, 9, 8], [1, 0, 1])
    assert one == other
    assert hash(one) == hash(other)
    assert one != LengthSample([8, 9, 9])
    assert one != "a sample"


def test_no_tokens_at_all_still_need_a_limit_of_one() -> None:
    assert choose_max_completion_length([0, 0]) == 1


def test_the_longest_of_a_few_is_called_that() -> None:
    assert LengthSample([8] * 4 + [9]).recommend(0.95).reason == (
        "95% of 5 completions are at most 9 tokens long, which is the longest of so few"
    )
    assert LengthSample(range(1, 21)).recommend(0.95).reason == (
        "95% of 20 completions are at most 19 tokens long"
    )


def test_a_share_that_is_not_all_does_not_read_as_all() -> None:
    reason = LengthSample.from_histograms({10: 99_999, 500: 1}, {}).recommend(0.99999).reason
    assert reason == "more than 99.99% of 100000 completions are at most 10 tokens long"


@pytest.mark.parametrize("number", [np.int64(64), np.int32(64)])
def test_numbers_of_numpy_are_as_good(number: Any) -> None:
    recommendation = LengthSample([70]).recommend(np.float32(0.5), number, max_length=number)
    assert recommendation.max_completion_length == 64
    assert type(recommendation.max_completion_length) is int


def test_whole_numbers_come_in_many_shapes() -> None:
    shapes: list[Any] = [(8, 9), iter([8, 9]), np.array([8.0, 9.0]), range(8, 10), {8, 9}]
    assert {LengthSample(shape).quantile(1.0) for shape in shapes} == {9}
    assert LengthSample([8, 9], iter([True, False])).truncated == 1
    assert LengthSample([8, 9], np.array([1, 0])).truncated == 1


@pytest.mark.parametrize(
    ("ended", "cut", "text"),
    [
        ({8: -1}, {}, "A number of completions must be an integer of at least 0, got -1."),
        ({}, {8: 2.5}, "A number of completions must be an integer of at least 0, got 2.5."),
        (
            {8: 0},
            {},
            "`lengths` is empty. Pass the length in tokens of at least one completion.",
        ),
    ],
)
def test_histograms_of_nothing_are_refused(
    ended: dict[int, int], cut: dict[int, int], text: str
) -> None:
    with pytest.raises(ValueError, match=r"\.$") as error:
        LengthSample.from_histograms(ended, cut)
    assert str(error.value) == text


@pytest.mark.parametrize("share", [0, -0.1, 1.01, 95, math.nan, "0.9", True])
@pytest.mark.parametrize("method", ["quantile", "quantile_range", "recommend"])
def test_shares_outside_of_0_to_1_are_refused(method: str, share: Any) -> None:
    name = "coverage" if method == "recommend" else "q"
    with pytest.raises(ValueError, match=r"\.$") as error:
        getattr(LengthSample([8]), method)(share)
    assert str(error.value) == f"`{name}` must be in (0, 1], got {share!r}. Pass 0.95 for 95 %."


@pytest.mark.parametrize(
    ("argument", "value", "remedy"),
    [
        ("multiple_of", 0, "1 for no rounding"),
        ("multiple_of", 1.5, "1 for no rounding"),
        ("max_length", 0, "None for no bound"),
        ("max_length", True, "None for no bound"),
    ],
)
def test_what_is_no_number_of_tokens_is_refused(argument: str, value: Any, remedy: str) -> None:
    with pytest.raises(ValueError, match=r"\.$") as error:
        LengthSample([8]).recommend(**{argument: value})
    assert str(error.value) == (
        f"`{argument}` must be an integer of at least 1, got {value!r}. Pass {remedy}."
    )


@pytest.mark.parametrize("method", ["share_truncated", "mean_tokens"])
def test_limits_below_0_are_refused(method: str) -> None:
    with pytest.raises(
        ValueError, match=r"^A limit must be an integer of at least 0 tokens, got -1\.$"
    ):
        getattr(LengthSample([8]), method)(-1)
