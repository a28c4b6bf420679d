from __future__ import annotations

import random
from collections import Counter
from typing import Any

import datasets
import pytest
from datasets import Dataset
from rich.console import Console
from support import chats
from support.chats import units, user

from truncation_guard.profiling.dataset import totals
from truncation_guard.profiling.dataset.rows import DatasetRows, open_rows
from truncation_guard.profiling.dataset.tokens import AnswerCounter, AnswerCounts
from truncation_guard.profiling.dataset.totals import count_rows, count_rows_in_processes

# Python 3.12 and later say so of every fork of a process in which a library runs threads.
pytestmark = pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")

CHANCE = random.Random(0)
TEXTS = ["x" * CHANCE.randrange(40) for _ in range(101)]


def table() -> Dataset:
    return Dataset.from_dict({"answer": TEXTS, "prompt": [[user(text)] for text in TEXTS]})


def counter(context_window: int | None = None) -> AnswerCounter:
    return AnswerCounter("answer", chats.tokenizer(), context_window=context_window)


def expected(texts: list[str]) -> Counter[int]:
    return Counter(units(text) + 1 for text in texts if text)


@pytest.mark.parametrize("batch_size", [1, 7, 101, 1000])
@pytest.mark.parametrize("progress", [True, False])
def test_all_batches_are_added_up(batch_size: int, progress: bool) -> None:
    counts = count_rows(open_rows(TEXTS, None), ["text"], text_counter(), batch_size, progress)
    assert counts == AnswerCounts(expected(TEXTS), 101, TEXTS.count(""), None)


def text_counter() -> AnswerCounter:
    return AnswerCounter("text", chats.tokenizer())


@pytest.mark.parametrize("context_window", [None, 500])
@pytest.mark.parametrize("sampled", [False, True])
def test_several_processes_count_the_same(context_window: int | None, sampled: bool) -> None:
    results = []
    for in_processes in (True, False):
        rows = open_rows(table(), None)
        assert isinstance(rows, DatasetRows)
        if sampled:
            rows.sample(40, seed=0)
        arguments: Any = (rows, ["answer", "prompt"], counter(context_window), 9, False)
        results.append(
            count_rows_in_processes(*arguments, 2) if in_processes else count_rows(*arguments)
        )
    assert results[0] == results[1]
    assert results[0].rows == (40 if sampled else 101)
    assert (results[0].longest_prompt is None) == (context_window is None)


@pytest.mark.parametrize("context_window", [None, 99])
def test_what_a_process_sends_back_is_a_histogram(context_window: int | None) -> None:
    batch = {"answer": ["a", None, "bc", "d"], "prompt": ["q"] * 4}
    sent = totals._count_batch(batch, [0, 1, 2, 3], counter(context_window), None)
    assert sent == {
        "lengths": [[2, 3]],
        "answers": [[2, 1]],
        "rows": [4],
        "skipped": [1],
        "left_out": [0],
        "longest_prompt": [-1 if context_window is None else 1],
    }
    with pytest.raises(TypeError, match=r"row 7 holds 3 \(int\)"):
        totals._count_batch({"answer": [3]}, [1], counter(), [5, 7])


def test_more_processes_than_rows_are_no_more_than_rows() -> None:
    rows = open_rows(Dataset.from_dict({"text": ["a", "b"]}), None)
    assert isinstance(rows, DatasetRows)
    counts = count_rows_in_processes(rows, ["text"], text_counter(), 10, False, 16)
    assert counts == AnswerCounts(Counter([2, 2]), 2, 0, None)


def test_a_row_that_is_refused_in_another_process_is_named_by_its_own_number() -> None:
    prompts = [[user("a")]] * 30 + [[user("a" * 99)]]
    rows = open_rows(Dataset.from_dict({"answer": ["b"] * 31, "prompt": prompts}), None)
    assert isinstance(rows, DatasetRows)
    with pytest.raises(ValueError, match=r"^The prompt of row 30 has \d+ tokens, which leaves"):
        count_rows_in_processes(rows, ["answer", "prompt"], counter(99), 4, False, 2)


def test_nothing_is_cached_and_the_bars_of_datasets_are_as_before(
    capfd: pytest.CaptureFixture[str],
) -> None:
    rows = open_rows(Dataset.from_dict({"text": ["a", "b", "c"]}), None)
    assert isinstance(rows, DatasetRows)
    assert datasets.is_progress_bar_enabled()
    for progress in (False, True):
        count_rows_in_processes(rows, ["text"], text_counter(), 2, progress, 2)
        assert "Counting tokens" not in capfd.readouterr().err
        assert datasets.is_progress_bar_enabled()


def test_long_work_in_processes_shows_the_bar_of_datasets(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(totals, "_ROWS_WITHOUT_A_BAR", 3)
    rows = open_rows(Dataset.from_dict({"text": ["a", "b", "c"]}), None)
    assert isinstance(rows, DatasetRows)
    count_rows_in_processes(rows, ["text"], text_counter(), 2, True, 2)
    assert "Counting tokens (num_proc=2)" in capfd.readouterr().err


# --- the bar ------------------------------------------------------------------------------------


def bar_output(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    seconds: float,
    is_terminal: bool = True,
) -> str:
    # Not by FORCE_COLOR: `map` with several processes replaces `os.environ`, and rich keeps the
    # old one (datasets 5.2).
    monkeypatch.setattr(Console, "is_terminal", is_terminal)
    monkeypatch.setattr(Console, "is_dumb_terminal", False)
    monkeypatch.setattr(totals, "_SECONDS_WITHOUT_A_BAR", seconds)
    count_rows(open_rows(TEXTS, None), ["text"], text_counter(), 50, True)
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_long_work_shows_a_bar_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "counting tokens" in bar_output(monkeypatch, capsys, seconds=0.0)


def test_short_work_shows_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bar_output(monkeypatch, capsys, seconds=60.0) == ""


def test_a_log_file_gets_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bar_output(monkeypatch, capsys, seconds=0.0, is_terminal=False) == ""


def test_an_error_takes_the_bar_down(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(totals, "_SECONDS_WITHOUT_A_BAR", 0.0)
    rows = open_rows([{"a": "x"}, {"a": "y"}, {"a": 3}], None)
    with pytest.raises(TypeError, match=r"^Column `a` must hold text, but row 2 holds 3"):
        count_rows(rows, ["a"], AnswerCounter("a", chats.tokenizer()), 1, True)
