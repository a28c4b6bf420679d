from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from truncation_guard.lengths.histogram import Bin, bin_lengths, histogram_lines

HISTOGRAMS = st.dictionaries(st.integers(0, 5000), st.integers(0, 9), max_size=30)


def test_bins_are_of_one_width_and_keep_the_cut_apart() -> None:
    assert bin_lengths({0: 1, 1: 2, 5: 1, 10: 4}, {10: 8}, 3) == [
        Bin(1, 4, 3, 0),
        Bin(5, 8, 1, 0),
        Bin(9, 12, 4, 8),
    ]


@settings(deadline=None)
@given(ended=HISTOGRAMS, cut=HISTOGRAMS, bins=st.integers(1, 50))
def test_every_completion_is_in_the_one_bin_of_its_length(
    ended: dict[int, int], cut: dict[int, int], bins: int
) -> None:
    parts = bin_lengths(ended, cut, bins)
    assert len(parts) <= bins
    assert [part.first for part in parts] == [1] + [part.last + 1 for part in parts[:-1]]
    assert len({part.last - part.first for part in parts}) == 1
    assert parts[-1].first <= max([*ended, *cut, 1]) <= parts[-1].last
    for part in parts:
        within = range(0 if part.first == 1 else part.first, part.last + 1)
        assert part.ended == sum(Counter(ended)[n] for n in within)
        assert part.cut == sum(Counter(cut)[n] for n in within)


@pytest.mark.parametrize(("number", "bar"), [(1, "#"), (50, "#" * 20), (100, "#" * 40)])
def test_a_line_shows_its_number_as_a_bar(number: int, bar: str) -> None:
    lines = histogram_lines([Bin(1, 8, number, 0), Bin(9, 16, 0, 100)])
    assert lines == [
        f"      1-8           {bar} {number}",
        f"      9-16      cut {'#' * 40} 100",
    ]


def test_no_completions_are_no_lines() -> None:
    assert histogram_lines([Bin(1, 1, 0, 0)]) == []
