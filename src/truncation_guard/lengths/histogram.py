"""Lengths in bins, and as lines of text.

The one idea: what ended and what was cut are never added up, because the lengths of the cut ones
are not their lengths.
"""

from collections.abc import Mapping
from dataclasses import dataclass

_BAR = 40


@dataclass(frozen=True, slots=True)
class Bin:
    """The completions of `first` to `last` tokens."""

    first: int
    """Shortest length in tokens that falls into it."""
    last: int
    """Longest length in tokens that falls into it."""
    ended: int
    """Completions that ended by themselves."""
    cut: int
    """Truncated completions: they would have become longer."""


def bin_lengths(ended: Mapping[int, int], cut: Mapping[int, int], bins: int) -> list[Bin]:
    """Bins of one width from 1 token to the longest length, empty ones included.

    Args:
        ended: length in tokens -> number of completions that ended by themselves at it.
        cut: length in tokens -> number of truncated completions.
        bins: at most so many. Completions without a token fall into the first.
    """
    longest = max([*ended, *cut, 1])
    width = -(longest // -bins)
    counts = [[0, 0] for _ in range(-(longest // -width))]
    for kind, lengths in enumerate((ended, cut)):
        for length, count in lengths.items():
            counts[max(length - 1, 0) // width][kind] += count
    return [Bin(i * width + 1, (i + 1) * width, *pair) for i, pair in enumerate(counts)]


def histogram_lines(bins: list[Bin]) -> list[str]:
    """One line for each kind of completions in a bin, where there are any."""
    most = max(max(part.ended, part.cut) for part in bins) or 1
    return [
        f"{part.first:>7}-{part.last:<7} {kind} {'#' * -(count * _BAR // -most)} {count}"
        for part in bins
        for kind, count in (("   ", part.ended), ("cut", part.cut))
        if count
    ]
