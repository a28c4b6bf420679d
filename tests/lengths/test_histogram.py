from __future__ import annotations

import json
from collections import Counter
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from truncation_guard.lengths.histogram import Bin, LengthHistogram, add_up

COUNTS = st.dictionaries(st.integers(0, 5000), st.integers(0, 9), max_size=30)
HISTOGRAMS = st.builds(LengthHistogram, COUNTS, COUNTS)


# --- figures ------------------------------------------------------------------------------------


def test_finished_and_truncated_completions_are_counted_apart() -> None:
    lengths = LengthHistogram({3: 10, 7: 2}, {8: 3, 5: 1})
    assert (lengths.finished, lengths.truncated, lengths.completions) == (12, 4, 16)
    assert (lengths.share, lengths.longest, lengths.tokens) == (0.25, 8, {3, 5, 7, 8})
    assert [lengths.above(limit) for limit in (8, 7, 6, 2)] == [0, 3, 5, 16]


def test_a_histogram_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        LengthHistogram().finished_at = {}  # type: ignore[misc]


# --- sums ---------------------------------------------------------------------------------------


@given(parts=st.lists(HISTOGRAMS, max_size=4))
def test_a_sum_has_the_completions_of_its_parts(parts: list[LengthHistogram]) -> None:
    total = LengthHistogram.sum_of(parts)
    for n in {n for part in parts for n in part.tokens}:
        assert total.finished_at.get(n, 0) == sum(part.finished_at.get(n, 0) for part in parts)
        assert total.truncated_at.get(n, 0) == sum(part.truncated_at.get(n, 0) for part in parts)
    assert total.completions == sum(part.completions for part in parts)


def test_adding_leaves_both_as_they_were() -> None:
    first, later = LengthHistogram({3: 28}, {256: 4}), LengthHistogram({3: 30, 5: 1})
    assert first + later == LengthHistogram({3: 58, 5: 1}, {256: 4})
    assert first == LengthHistogram({3: 28}, {256: 4})
    assert later == LengthHistogram({3: 30, 5: 1})


def test_counts_of_both_sides_are_added_up() -> None:
    assert add_up({"a": 1, "b": 2}, {"b": 3, "c": 4}) == {"a": 1, "b": 5, "c": 4}


# --- JSON ---------------------------------------------------------------------------------------


@given(lengths=HISTOGRAMS)
def test_pairs_keep_a_histogram(lengths: LengthHistogram) -> None:
    pairs = json.loads(json.dumps(lengths.to_pairs()))
    assert LengthHistogram.from_pairs(*pairs) == lengths


def test_pairs_are_in_order_of_length() -> None:
    assert LengthHistogram({9: 1, 2: 4}, {8: 3}).to_pairs() == ([(2, 4), (9, 1)], [(8, 3)])


@pytest.mark.parametrize(
    "pairs",
    [None, 5, [7], [[100]], [[100, 1, 1]], [[100, "many"]], [[100, -1]], [[-1, 1]]]
    + [[[100, value]] for value in (0.5, True, float("nan"), float("inf"), None)],
)
def test_anything_but_lengths_with_their_counts_is_refused(pairs: Any) -> None:
    for finished, truncated in ((pairs, []), ([], pairs)):
        with pytest.raises((TypeError, ValueError)):
            LengthHistogram.from_pairs(finished, truncated)


# --- bins and lines -----------------------------------------------------------------------------


def test_bins_are_of_one_width_and_keep_the_truncated_apart() -> None:
    assert LengthHistogram({0: 1, 1: 2, 5: 1, 10: 4}, {10: 8}).bins(3) == [
        Bin(1, 4, 3, 0),
        Bin(5, 8, 1, 0),
        Bin(9, 12, 4, 8),
    ]


@settings(deadline=None)
@given(lengths=HISTOGRAMS, number=st.integers(1, 50))
def test_every_completion_is_in_the_one_bin_of_its_length(
    lengths: LengthHistogram, number: int
) -> None:
    parts = lengths.bins(number)
    assert len(parts) <= number
    assert [part.first for part in parts] == [1] + [part.last + 1 for part in parts[:-1]]
    assert len({part.last - part.first for part in parts}) == 1
    assert parts[-1].first <= max([*lengths.tokens, 1]) <= parts[-1].last
    for part in parts:
        within = range(0 if part.first == 1 else part.first, part.last + 1)
        assert part.ended == sum(Counter(lengths.finished_at)[n] for n in within)
        assert part.cut == sum(Counter(lengths.truncated_at)[n] for n in within)


@pytest.mark.parametrize(("number", "bar"), [(1, "#"), (50, "#" * 20), (100, "#" * 40)])
def test_a_line_shows_its_number_as_a_bar(number: int, bar: str) -> None:
    assert LengthHistogram({8: number}, {16: 100}).lines(2) == [
        f"      1-8           {bar} {number}",
        f"      9-16      cut {'#' * 40} 100",
    ]


def test_no_completions_are_no_lines() -> None:
    assert LengthHistogram().lines(1) == []
