"""Lengths of finished and of truncated completions, kept apart.

They are never added up: a truncated completion only shows that its length is above where it was
cut.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from truncation_guard.argument_checks import is_integer

Key = TypeVar("Key")

_BAR = 40
"""Characters of the longest bar."""

Pairs = list[tuple[int, int]]
"""(length in tokens, completions), in order of length."""


@dataclass(frozen=True, slots=True)
class Bin:
    """The completions of `first` to `last` tokens."""

    first: int
    """Shortest length in tokens that falls into it."""
    last: int
    """Longest length in tokens that falls into it."""
    ended: int
    """Finished completions."""
    cut: int
    """Truncated completions: they would have become longer."""


@dataclass(frozen=True, slots=True)
class LengthHistogram:
    """How many completions finished, and how many were truncated, at each length."""

    finished_at: Mapping[int, int] = field(default_factory=dict)
    """Length in tokens -> finished completions."""
    truncated_at: Mapping[int, int] = field(default_factory=dict)
    """Length in tokens -> truncated completions, which would have become longer."""
    finished: int = field(init=False, compare=False, repr=False)
    """Finished completions."""
    truncated: int = field(init=False, compare=False, repr=False)
    """Truncated completions."""

    def __post_init__(self) -> None:
        """Add up the completions once: a window asks for them at every batch."""
        object.__setattr__(self, "finished", sum(self.finished_at.values()))
        object.__setattr__(self, "truncated", sum(self.truncated_at.values()))

    @classmethod
    def sum_of(cls, parts: Iterable["LengthHistogram"]) -> "LengthHistogram":
        """The completions of all parts."""
        finished_at: dict[int, int] = {}
        truncated_at: dict[int, int] = {}
        for part in parts:  # a plain loop: Counter.update takes four times as long for a few keys
            for length, count in part.finished_at.items():
                finished_at[length] = finished_at.get(length, 0) + count
            for length, count in part.truncated_at.items():
                truncated_at[length] = truncated_at.get(length, 0) + count
        return cls(finished_at, truncated_at)

    @classmethod
    def from_pairs(cls, finished: Any, truncated: Any) -> "LengthHistogram":
        """The histogram that `to_pairs` was called on, from JSON.

        Raises:
            TypeError: for anything but pairs.
            ValueError: for pairs that are no lengths with their counts.
        """
        return cls(_from_pairs(finished), _from_pairs(truncated))

    def to_pairs(self) -> tuple[Pairs, Pairs]:
        """Finished, then truncated completions, as JSON values."""
        return sorted(self.finished_at.items()), sorted(self.truncated_at.items())

    def __add__(self, other: "LengthHistogram") -> "LengthHistogram":
        """The completions of both."""
        return LengthHistogram.sum_of((self, other))

    @property
    def completions(self) -> int:
        """All completions."""
        return self.finished + self.truncated

    @property
    def share(self) -> float:
        """The truncated share, of at least one completion."""
        return self.truncated / self.completions

    @property
    def tokens(self) -> set[int]:
        """Every length that occurs, in tokens."""
        parts = (self.finished_at, self.truncated_at)
        return {n for part in parts for n, count in part.items() if count}

    @property
    def longest(self) -> int:
        """The longest length in tokens, of at least one completion."""
        return max(self.tokens)

    def above(self, limit: int) -> int:
        """Completions of more tokens than `limit`."""
        parts = (self.finished_at, self.truncated_at)
        return sum(count for part in parts for n, count in part.items() if n > limit)

    def regrouped(self, at: Callable[[int], int]) -> "LengthHistogram":
        """The same completions, those of each length at another one."""
        return LengthHistogram(_regrouped(self.finished_at, at), _regrouped(self.truncated_at, at))

    def rounded_up(self, width: int) -> "LengthHistogram":
        """The same completions, each length rounded up to a multiple of `width`."""
        return self.regrouped(lambda length: -(length // -width) * width)

    def bins(self, number: int = 16) -> list[Bin]:
        """At most `number` bins of one width from 1 token to the longest length, empty ones too.

        Completions without a token fall into the first.
        """
        longest = max([*self.tokens, 1])
        width = -(longest // -number)
        binned = self.regrouped(lambda length: max(length - 1, 0) // width)
        return [
            Bin(
                place * width + 1,
                (place + 1) * width,
                binned.finished_at.get(place, 0),
                binned.truncated_at.get(place, 0),
            )
            for place in range(-(longest // -width))
        ]

    def lines(self, number: int = 16) -> list[str]:
        """The bins as text: a line for the finished completions of each, one for the truncated."""
        bins = self.bins(number)
        most = max(max(part.ended, part.cut) for part in bins)
        return [
            f"{part.first:>7}-{part.last:<7} {kind} {'#' * -(count * _BAR // -most)} {count}"
            for part in bins
            for kind, count in (("   ", part.ended), ("cut", part.cut))
            if count
        ]


def add_up(left: Mapping[Key, int], right: Mapping[Key, int]) -> dict[Key, int]:
    """The counts of both under each key."""
    return {key: left.get(key, 0) + right.get(key, 0) for key in [*left, *right]}


def _from_pairs(pairs: Any) -> Counter[int]:
    counts: Counter[int] = Counter()
    for length, count in pairs:
        if not all(is_integer(number) and number >= 0 for number in (length, count)):
            raise ValueError(f"{count!r} completions of {length!r} tokens")
        counts[length] += count
    return counts


def _regrouped(counts: Mapping[int, int], at: Callable[[int], int]) -> Counter[int]:
    regrouped: Counter[int] = Counter()
    for length, count in counts.items():
        regrouped[at(length)] += count
    return regrouped
