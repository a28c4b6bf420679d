"""The last completions of a training, by length. Whole batches come and go."""

from collections import deque
from dataclasses import dataclass, field

from truncation_guard.lengths.histogram import LengthHistogram


@dataclass(slots=True)
class Window:
    """The last completions, at least `size` of them once it is full."""

    size: int
    batches: deque[LengthHistogram] = field(default_factory=deque)

    def add(self, batch: LengthHistogram) -> None:
        """Take a batch in, and drop the oldest ones that the window can do without."""
        self.batches.append(batch)
        while self.completions - self.batches[0].completions >= self.size:
            self.batches.popleft()

    @property
    def full(self) -> bool:
        """Whether `size` completions have been seen."""
        return self.completions >= self.size

    @property
    def completions(self) -> int:
        """Completions in the window."""
        return sum(batch.completions for batch in self.batches)

    @property
    def truncated(self) -> int:
        """Truncated completions in the window."""
        return sum(batch.truncated for batch in self.batches)

    @property
    def share(self) -> float:
        """The truncated share."""
        return self.truncated / self.completions

    @property
    def lengths(self) -> LengthHistogram:
        """All completions of the window."""
        return LengthHistogram.sum_of(self.batches)
