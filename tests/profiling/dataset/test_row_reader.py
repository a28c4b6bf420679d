from __future__ import annotations

from typing import Any

import pytest
from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict
from support.chats import assistant, user

from truncation_guard.profiling.dataset.row_reader import Rows, open_rows

TEXTS = [f"t{i}" for i in range(7)]
CHAT = [user("q"), assistant("a")]


def read(rows: Rows, names: list[str], batch_size: int = 3) -> list[tuple[int, ...]]:
    """(row number, values...) of all rows."""
    return [
        values
        for batch, numbers in rows.batches(names, batch_size)
        for values in zip(numbers, *(batch[name] for name in names), strict=True)
    ]


def stream(rows: int = 7) -> IterableDataset:
    def generate() -> Any:
        for i in range(rows):
            yield {"a": f"t{i}", "b": i}

    return IterableDataset.from_generator(generate)


def every_kind() -> list[Any]:
    table = Dataset.from_dict({"a": TEXTS, "b": list(range(7))})
    items = [{"a": text, "b": i} for i, text in enumerate(TEXTS)]
    return [table, table.to_iterable_dataset(), stream(), items, tuple(items)]


@pytest.mark.parametrize(
    "dataset", every_kind(), ids=["table", "stream", "generator", "list", "tuple"]
)
def test_columns_and_batches_are_read_from_everything(dataset: Any) -> None:
    rows = open_rows(dataset, None)
    assert rows.columns == ["a", "b"]
    assert read(rows, ["a"]) == list(enumerate(TEXTS))
    assert read(rows, ["b", "a"], 99) == [(i, i, text) for i, text in enumerate(TEXTS)]
    assert {name: list(values) for name, values in rows.first(["b"], 2).items()} == {"b": [0, 1]}
    assert rows.first([]) == {}


@pytest.mark.parametrize("batch_size", [1, 2, 9])
def test_what_a_row_lacks_is_none(batch_size: int) -> None:
    items = [{"b": 0}, {"a": "t1"}, {"a": "t2", "b": 2}, {"c": True}]
    for dataset in (items, IterableDataset.from_generator(lambda: iter(items))):
        rows = open_rows(dataset, None)
        assert rows.columns == ["b", "a", "c"]
        assert read(rows, ["a", "b"], batch_size) == [
            (0, None, 0),
            (1, "t1", None),
            (2, "t2", 2),
            (3, None, None),
        ]


@pytest.mark.parametrize("index", range(5))
@pytest.mark.parametrize("max_samples", [1, 4, 7, 8])
def test_a_sample_keeps_the_rows_own_numbers(index: int, max_samples: int) -> None:
    rows = open_rows(every_kind()[index], None)
    rows.sample(max_samples, seed=3)
    found = read(rows, ["a"])
    assert len(found) == min(max_samples, 7)
    assert all(TEXTS[number] == text for number, text in found)
    assert found == sorted(set(found))


def test_a_sample_is_random_and_follows_the_seed() -> None:
    def numbers(seed: int) -> list[int]:
        rows = open_rows([f"t{i}" for i in range(1000)], None)
        rows.sample(10, seed)
        return [number for number, _ in read(rows, ["text"])]

    assert numbers(0) == numbers(0) != numbers(1)
    assert numbers(0) != list(range(10))


def test_a_list_and_a_table_give_the_same_sample() -> None:
    table, _, _, items, _ = every_kind()
    samples = []
    for dataset in (table, items):
        rows = open_rows(dataset, None)
        rows.sample(4, seed=5)
        samples.append(read(rows, ["a"]))
    assert samples[0] == samples[1]


def test_the_sample_of_a_stream_is_its_first_rows() -> None:
    rows = open_rows(stream(), None)
    rows.sample(3, seed=0)
    assert [number for number, _ in read(rows, ["a"])] == [0, 1, 2]
    assert rows.total == 3


@pytest.mark.parametrize(
    ("items", "column"),
    [(["a", None, "b"], "text"), ([None, None], "text"), ([CHAT, None, tuple(CHAT)], "messages")],
)
def test_a_list_of_one_kind_of_thing_is_a_column(items: list[Any], column: str) -> None:
    rows = open_rows(items, None)
    assert rows.columns == [column]
    assert read(rows, [column]) == list(enumerate(items))


def test_rows_of_a_list_may_lack_keys() -> None:
    rows = open_rows([{"a": 1}, None, {"b": 2}], None)
    assert rows.columns == ["a", "b"]
    assert read(rows, ["a", "b"]) == [(0, 1, None), (1, None, None), (2, None, 2)]


def test_a_format_that_changes_types_is_undone_and_the_users_stays() -> None:
    table = Dataset.from_dict({"a": TEXTS, "b": list(range(7))})
    formatted = table.with_format("numpy")
    rows = open_rows(formatted, None)
    assert all(type(text) is str for _, text in read(rows, ["a"]))
    assert formatted.format["type"] == "numpy"


def test_a_users_transform_is_what_is_read() -> None:
    table = Dataset.from_dict({"a": TEXTS}).with_transform(
        lambda batch: {"shout": [text.upper() for text in batch["a"]]}
    )
    rows = open_rows(table, None)
    assert rows.columns == ["shout"]
    assert read(rows, ["shout"])[6] == (6, "T6")
    rows.sample(2, seed=0)
    assert all(text == f"T{number}" for number, text in read(rows, ["shout"]))


# --- splits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [dict, DatasetDict])
def test_a_split_is_taken_by_its_name_or_because_it_is_the_only_one(wrap: Any) -> None:
    train, test = Dataset.from_dict({"a": ["x"]}), Dataset.from_dict({"a": ["y"]})
    assert read(open_rows(wrap({"train": train, "test": test}), "test"), ["a"]) == [(0, "y")]
    assert read(open_rows(wrap({"train": train}), None), ["a"]) == [(0, "x")]


def test_splits_may_be_streams() -> None:
    splits = IterableDatasetDict({"train": stream(1)})
    assert read(open_rows(splits, None), ["a"]) == [(0, "t0")]


# --- what is refused ----------------------------------------------------------------------------

TABLE = Dataset.from_dict({"a": ["x"]})


@pytest.mark.parametrize(
    ("dataset", "split", "kind", "text"),
    [
        (
            DatasetDict({"train": TABLE, "test": TABLE}),
            None,
            ValueError,
            "`dataset` has several splits. Pass one of `train`, `test` as `split`.",
        ),
        (
            DatasetDict({"train": TABLE, "test": TABLE}),
            "dev",
            ValueError,
            "There is no split 'dev'. Pass one of `train`, `test` as `split`.",
        ),
        (
            DatasetDict({"train": TABLE}),
            "dev",
            ValueError,
            "There is no split 'dev'. Pass one of `train` as `split`.",
        ),
        (DatasetDict(), None, ValueError, "`dataset` is empty. Pass one with at least one row."),
        (
            TABLE,
            "train",
            ValueError,
            "`split` is 'train', but the data set has no splits. Leave it out.",
        ),
        (
            {"answer": ["a", "b"]},
            None,
            TypeError,
            "`dataset` is a dict whose values are no data sets. Pass datasets.Dataset.from_dict of "
            "it if they are columns, or a list of it if it is a row.",
        ),
        (
            "openai/gsm8k",
            None,
            TypeError,
            "`dataset` must be a Dataset, an IterableDataset, a DatasetDict or a list, got str. "
            "Load a file with datasets.load_dataset.",
        ),
        (
            [1, 2],
            None,
            TypeError,
            "`dataset` is a list of int. Pass texts, rows (dicts) or conversations (lists of "
            "messages).",
        ),
        (
            ["a", None, {"answer": "b"}],
            None,
            TypeError,
            "Row 2 of the list is of type dict, earlier ones are of type str. Pass texts, rows "
            "(dicts) or lists of messages only.",
        ),
        ([], None, ValueError, "`dataset` is empty. Pass one with at least one row."),
        ([{}], None, ValueError, "`dataset` is empty. Pass one with at least one row."),
        (
            Dataset.from_dict({"a": []}),
            None,
            ValueError,
            "`dataset` is empty. Pass one with at least one row.",
        ),
        (
            IterableDataset.from_generator(lambda: iter(())),
            None,
            ValueError,
            "`dataset` is empty. Pass one with at least one row.",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(
    dataset: Any, split: str | None, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind) as error:
        open_rows(dataset, split)
    assert str(error.value) == text


def test_a_stream_that_turns_out_to_be_empty_has_no_first_rows() -> None:
    empty = TABLE.to_iterable_dataset().filter(lambda row: False)
    assert open_rows(empty, None).first(["a"]) == {"a": []}
