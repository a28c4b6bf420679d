"""The rows of a data set, whatever it comes as, read batch by batch.

The one idea: `Dataset`, stream and list differ in how a batch is read and a sample is taken, and in
nothing else; so that is all that they define here.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from truncation_guard.profiling.dataset.columns import listed

EMPTY = "`dataset` is empty. Pass one with at least one row."
_FIRST = 100
"""Rows by which it is decided how the rest is read."""

Batch = tuple[Mapping[str, Sequence[Any]], Sequence[int]]
"""(column -> values, the rows' numbers)."""


class Rows(ABC):
    """What can be read of a data set.

    Args:
        columns: the names of its columns.
        total: number of its rows; None: not known.
    """

    kind: ClassVar[str]
    """What it is called in error texts."""

    def __init__(self, columns: Sequence[str], total: int | None) -> None:
        self.columns = list(columns)
        self.total = total
        """Rows to read; None: not known."""
        self.numbers: Sequence[int] | None = None
        """The numbers of the sampled rows; None: no sample was taken."""

    def first(self, names: Sequence[str], rows: int = _FIRST) -> Mapping[str, Sequence[Any]]:
        """The values of the first rows in these columns, fewer where there are not as many."""
        for batch, _ in self.batches(names, rows) if names else ():
            return batch
        return {name: [] for name in names}

    @abstractmethod
    def batches(self, names: Sequence[str], batch_size: int) -> Iterator[Batch]:
        """The values of these columns, batch by batch."""

    def sample(self, max_samples: int, seed: int) -> None:
        """Keep a random sample, of a stream the first rows; all where there are no more."""
        if self.total is not None and max_samples < self.total:
            chosen = random.Random(seed).sample(range(self.total), max_samples)
            self.numbers = sorted(chosen)
            self.total = max_samples


class ListRows(Rows):
    """A list of texts, of rows or of conversations."""

    kind = "a list"

    def __init__(self, items: Sequence[Any]) -> None:
        wanted = next((_item_kind(item) for item in items if item is not None), str)
        for row, item in enumerate(items):
            if item is not None and _item_kind(item) is not wanted:
                raise TypeError(
                    f"Row {row} of the list is of type {type(item).__name__}, earlier ones are of "
                    f"type {wanted.__name__}. Pass texts, rows (dicts) or lists of messages only."
                )
        self._items = items
        names: dict[type, str] = {str: "text", list: "messages"}
        self._single = names.get(wanted)
        columns = (
            [self._single] if self._single else dict.fromkeys(k for i in items for k in i or ())
        )
        super().__init__([*columns], len(items))

    def batches(self, names: Sequence[str], batch_size: int) -> Iterator[Batch]:
        """The values of these columns, batch by batch."""
        numbers = range(len(self._items)) if self.numbers is None else self.numbers
        for start in range(0, len(numbers), batch_size):
            rows = numbers[start : start + batch_size]
            items = [self._items[row] for row in rows]
            if self._single:
                yield {self._single: items}, rows
            else:
                yield {name: [(item or {}).get(name) for item in items] for name in names}, rows


class DatasetRows(Rows):
    """A `datasets.Dataset`."""

    kind = "a `Dataset`"

    def __init__(self, dataset: Any) -> None:
        # What a user's own transform makes of a row is what training gets, and may have columns of
        # its own; other formats only change the values' types.
        self._is_transformed = dataset.format["type"] == "custom"
        self._dataset = dataset if self._is_transformed else dataset.with_format(None)
        columns = dataset.column_names
        if self._is_transformed and len(dataset):
            columns = [*dataset[0]]
        super().__init__(columns, len(dataset))

    def batches(self, names: Sequence[str], batch_size: int) -> Iterator[Batch]:
        """The values of these columns, batch by batch."""
        start = 0
        for batch in self.select(names).iter(batch_size):
            rows = range(start, start + len(batch[names[0]]))
            yield batch, rows if self.numbers is None else self.numbers[rows.start : rows.stop]
            start = rows.stop

    def select(self, names: Sequence[str]) -> Any:
        """These columns of the rows to read, as a `Dataset`."""
        chosen = self._dataset if self.numbers is None else self._dataset.select(self.numbers)
        return chosen if self._is_transformed else chosen.select_columns([*names])


class StreamRows(Rows):
    """A `datasets.IterableDataset`."""

    kind = "an `IterableDataset`"

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset.with_format(None)
        columns = dataset.column_names
        # Of a generator's rows nothing is known before, and each may have columns of its own.
        self._is_open = columns is None
        if columns is None:
            columns = dict.fromkeys(name for row in self._dataset.take(_FIRST) for name in row)
        super().__init__([*columns], None)

    def sample(self, max_samples: int, seed: int) -> None:
        """Keep the first rows: a random sample would have to read all of them."""
        self._dataset = self._dataset.take(max_samples)
        self.total = max_samples

    def batches(self, names: Sequence[str], batch_size: int) -> Iterator[Batch]:
        """The values of these columns, batch by batch."""
        start = 0
        # `select_columns` fails at a row that lacks one of them.
        chosen = self._dataset if self._is_open else self._dataset.select_columns([*names])
        for batch in chosen.iter(batch_size):
            rows = range(start, start + len(next(iter(batch.values()))))
            yield {name: batch.get(name) or [None] * len(rows) for name in names}, rows
            start = rows.stop


def open_rows(dataset: Any, split: str | None) -> Rows:
    """Find out what was passed.

    Raises:
        TypeError: for what is no data set, and for a list of different things.
        ValueError: for a split that is missing, or not there, and for an empty data set.
    """
    from datasets import Dataset, IterableDataset

    if isinstance(dataset, Mapping):
        dataset = _choose_split(dataset, split)
    elif split is not None:
        raise ValueError(f"`split` is {split!r}, but the data set has no splits. Leave it out.")
    rows: Rows
    if isinstance(dataset, Dataset):
        rows = DatasetRows(dataset)
    elif isinstance(dataset, IterableDataset):
        rows = StreamRows(dataset)
    elif isinstance(dataset, (list, tuple)):
        rows = ListRows(dataset)
    else:
        raise TypeError(
            "`dataset` must be a Dataset, an IterableDataset, a DatasetDict or a list, got "
            f"{type(dataset).__name__}. Load a file with datasets.load_dataset."
        )
    if not rows.columns or rows.total == 0:
        raise ValueError(EMPTY)
    return rows


def _choose_split(splits: Mapping[Any, Any], split: str | None) -> Any:
    from datasets import Dataset, IterableDataset

    if not all(isinstance(part, (Dataset, IterableDataset)) for part in splits.values()):
        raise TypeError(
            "`dataset` is a dict whose values are no data sets. Pass datasets.Dataset.from_dict of "
            "it if they are columns, or a list of it if it is a row."
        )
    if not splits:
        raise ValueError(EMPTY)
    if split is None and len(splits) == 1:
        return next(iter(splits.values()))
    if split not in splits:
        problem = (
            "`dataset` has several splits" if split is None else f"There is no split {split!r}"
        )
        raise ValueError(f"{problem}. Pass one of {listed(splits)} as `split`.")
    return splits[split]


def _item_kind(item: Any) -> type:
    for kind, accepted in ((str, str), (dict, Mapping), (list, (list, tuple))):
        if isinstance(item, accepted):
            return kind
    raise TypeError(
        f"`dataset` is a list of {type(item).__name__}. Pass texts, rows (dicts) or conversations "
        "(lists of messages)."
    )
