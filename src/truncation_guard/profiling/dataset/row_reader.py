"""The rows of a `Dataset`, a stream or a list, batch by batch."""

import random
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from truncation_guard.profiling.dataset.answer_column import listed

EMPTY = "`dataset` is empty. Pass one with at least one row."
_FIRST = 100
"""Rows by which it is decided how the rest is read."""

Batch = tuple[Mapping[str, Sequence[Any]], Sequence[int]]
"""(column -> values, the rows' numbers)."""


class Rows:
    """The rows of a data set, or a sample of them.

    Args:
        dataset: a `Dataset`, an `IterableDataset` or an `_Items`.
        columns: the names of its columns.
        total: number of its rows; None: not known.
        has_columns: False where rows come with columns of their own, which `select_columns` would
            miss.
    """

    def __init__(
        self, dataset: Any, columns: Iterable[str], total: int | None, *, has_columns: bool = True
    ) -> None:
        self.columns = [*columns]
        self.total = total
        """Rows to read; None: not known."""
        self._dataset = dataset
        self._has_columns = has_columns
        self._numbers: Sequence[int] = range(sys.maxsize)

    def first(self, names: Sequence[str], rows: int = _FIRST) -> Mapping[str, Sequence[Any]]:
        """The values of the first rows in these columns, fewer where there are not as many."""
        for batch, _ in self.batches(names, rows) if names else ():
            return batch
        return {name: [] for name in names}

    def batches(self, names: Sequence[str], batch_size: int) -> Iterator[Batch]:
        """The values of these columns, None where a row lacks one."""
        dataset = self._dataset.select_columns([*names]) if self._has_columns else self._dataset
        start = 0
        for batch in dataset.iter(batch_size):
            end = start + len(next(iter(batch.values())))
            lacking = [None] * (end - start)
            yield {name: batch.get(name, lacking) for name in names}, self._numbers[start:end]
            start = end

    def sample(self, max_samples: int, seed: int) -> None:
        """Keep a random sample, of a stream the first rows; all where there are no more."""
        if self.total is None:  # a random sample would have to read all of it
            self._dataset = self._dataset.take(max_samples)
            self.total = max_samples
        elif max_samples < self.total:
            self._numbers = sorted(random.Random(seed).sample(range(self.total), max_samples))
            self._dataset = self._dataset.select(self._numbers)
            self.total = max_samples


@dataclass(frozen=True, slots=True)
class _Items:
    """A list, with the methods of a `Dataset` that are used here.

    `Dataset.from_list` would drop columns that the first row lacks, and refuse what a list may
    hold and Arrow may not: NaN among texts, say, or arguments of tool calls of several types.
    """

    items: Sequence[Any]
    columns: Sequence[str]
    are_rows: bool
    """False where each item is the value of the only column."""

    def select_columns(self, names: list[str]) -> "_Items":
        return replace(self, columns=names)

    def select(self, numbers: Iterable[int]) -> "_Items":
        return replace(self, items=[self.items[number] for number in numbers])

    def iter(self, batch_size: int) -> Iterator[dict[str, Sequence[Any]]]:
        for start in range(0, len(self.items), batch_size):
            items = self.items[start : start + batch_size]
            if self.are_rows:
                yield {name: [(item or {}).get(name) for item in items] for name in self.columns}
            else:
                yield {self.columns[0]: items}


def open_rows(dataset: Any, split: str | None) -> Rows:
    """The rows of any supported data set.

    Raises:
        TypeError: for what is no data set, and for a list of different things.
        ValueError: for a split that is missing, or not there, and for an empty data set.
    """
    from datasets import Dataset, IterableDataset

    if isinstance(dataset, Mapping):
        dataset = _choose_split(dataset, split)
    elif split is not None:
        raise ValueError(f"`split` is {split!r}, but the data set has no splits. Leave it out.")
    if isinstance(dataset, Dataset):
        rows = _of_dataset(dataset)
    elif isinstance(dataset, IterableDataset):
        rows = _of_stream(dataset)
    elif isinstance(dataset, (list, tuple)):
        rows = _of_list(dataset)
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


def _of_dataset(dataset: Any) -> Rows:
    # What a user's own transform makes of a row is what training gets, and may have columns of its
    # own; other formats only change the values' types.
    if dataset.format["type"] != "custom":
        return Rows(dataset.with_format(None), dataset.column_names, len(dataset))
    columns = dataset[0] if len(dataset) else dataset.column_names
    return Rows(dataset, columns, len(dataset), has_columns=False)


def _of_stream(dataset: Any) -> Rows:
    stream = dataset.with_format(None)
    if dataset.column_names is not None:
        return Rows(stream, dataset.column_names, None)
    # Of a generator's rows nothing is known before, and each may have columns of its own.
    columns = dict.fromkeys(name for row in stream.take(_FIRST) for name in row)
    return Rows(stream, columns, None, has_columns=False)


def _of_list(items: Sequence[Any]) -> Rows:
    wanted = next((_item_kind(item) for item in items if item is not None), str)
    for row, item in enumerate(items):
        if item is not None and _item_kind(item) is not wanted:
            raise TypeError(
                f"Row {row} of the list is of type {type(item).__name__}, earlier ones are of "
                f"type {wanted.__name__}. Pass texts, rows (dicts) or lists of messages only."
            )
    if wanted is dict:
        columns = [*dict.fromkeys(name for item in items for name in item or ())]
    else:
        columns = ["text" if wanted is str else "messages"]
    return Rows(_Items(items, columns, wanted is dict), columns, len(items))


def _item_kind(item: Any) -> type:
    for kind, accepted in ((str, str), (dict, Mapping), (list, (list, tuple))):
        if isinstance(item, accepted):
            return kind
    raise TypeError(
        f"`dataset` is a list of {type(item).__name__}. Pass texts, rows (dicts) or conversations "
        "(lists of messages)."
    )
