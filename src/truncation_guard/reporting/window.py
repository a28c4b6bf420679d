"""The last completions of a training, by length.

The one idea: whole batches come and go, so that what is kept is two histograms for each.
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from truncation_guard.batch.counts import BatchCounts


@dataclass(slots=True)
class Window:
    """The last completions, at least `size` of them once it is full."""

    size: int
    batches: deque[tuple[Counter[int], Counter[int]]] = field(default_factory=deque)
    """For each batch, length in tokens -> completions that ended at it, and that were cut at it."""

    def add(self, batch: BatchCounts) -> None:
        """Take a batch in, and drop the oldest ones that the window can do without."""
        self.batches.append((Counter(batch.ended), Counter(batch.cut)))
        while self.completions - sum(part.total() for part in self.batches[0]) >= self.size:
            self.batches.popleft()

    @property
    def full(self) -> bool:
        """Whether `size` completions have been seen."""
        return self.completions >= self.size

    @property
    def completions(self) -> int:
        """Completions in the window."""
        return sum(part.total() for batch in self.batches for part in batch)

    @property
    def truncated(self) -> int:
        """Truncated completions in the window."""
        return sum(cut.total() for _, cut in self.batches)

    @property
    def share(self) -> float:
        """Share of truncated completions."""
        return self.truncated / self.completions

    @property
    def ended(self) -> Counter[int]:
        """Length in tokens -> completions that ended by themselves."""
        return sum((ended for ended, _ in self.batches), Counter[int]())

    @property
    def cut(self) -> Counter[int]:
        """Length in tokens -> truncated completions."""
        return sum((cut for _, cut in self.batches), Counter[int]())


def to_pairs(lengths: Mapping[int, int]) -> list[tuple[int, int]]:
    """(length in tokens, completions) in order of length, for JSON."""
    return sorted(lengths.items())


def from_pairs(pairs: Any) -> Counter[int]:
    """What `to_pairs` was given.

    Raises:
        Exception: of whatever kind, for what is none of its results.
    """
    lengths = Counter({int(length): int(count) for length, count in pairs})
    if any(length < 0 or count < 0 for length, count in lengths.items()):
        raise ValueError(f"negative lengths or counts: {pairs!r}")
    return lengths
