"""Adds up the counts of all batches, in this process or in several, with a progress bar.

The one idea: what comes back from a batch is its lengths' histogram, so that neither memory nor
what processes send each other grows with the rows.
"""

import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from truncation_guard.profiling.dataset.rows import Batch, DatasetRows, Rows
from truncation_guard.profiling.dataset.tokens import AnswerCounter, AnswerCounts

_SECONDS_WITHOUT_A_BAR = 1.0
_ROWS_WITHOUT_A_BAR = 10_000


def count_rows(
    rows: Rows, names: Sequence[str], counter: AnswerCounter, batch_size: int, progress: bool
) -> AnswerCounts:
    """Count all rows in this process.

    Args:
        rows: what to count.
        names: the columns to read.
        counter: counts a batch.
        batch_size: rows in memory at a time.
        progress: show a bar on stderr once it takes more than a second.
    """
    total = AnswerCounts()
    batches = rows.batches(names, batch_size)
    for batch, numbers in _with_bar(batches, rows.total) if progress else batches:
        total.add(counter.count(batch, numbers))
    return total


def count_rows_in_processes(
    rows: DatasetRows,
    names: Sequence[str],
    counter: AnswerCounter,
    batch_size: int,
    progress: bool,
    num_proc: int,
) -> AnswerCounts:
    """Count all rows with `datasets.Dataset.map`, in several processes."""
    dataset = rows.select(names)
    with _bars_of_datasets(progress and len(dataset) >= _ROWS_WITHOUT_A_BAR):
        counted = dataset.map(
            _count_batch,
            batched=True,
            batch_size=batch_size,
            with_indices=True,
            remove_columns=dataset.column_names,
            num_proc=min(num_proc, len(dataset)),
            fn_kwargs={"counter": counter, "numbers": rows.numbers},
            # Nothing to look up: hashing a tokenizer takes longer than many a count.
            new_fingerprint=secrets.token_hex(8),
            load_from_cache_file=False,
            keep_in_memory=True,
            desc="Counting tokens",
        )
    total = AnswerCounts()
    for row in counted.with_format(None):  # not in the format of what was counted
        lengths = dict(zip(row["lengths"], row["answers"], strict=True))
        prompt = row["longest_prompt"] if row["longest_prompt"] >= 0 else None
        parts = (row["rows"], row["skipped"], prompt, row["left_out"])
        total.add(AnswerCounts(Counter(lengths), *parts))
    return total


def _count_batch(
    batch: Mapping[str, Sequence[Any]],
    indices: Sequence[int],
    counter: AnswerCounter,
    numbers: Sequence[int] | None,
) -> dict[str, list[Any]]:
    rows = indices if numbers is None else [numbers[i] for i in indices]
    counts = counter.count(batch, rows)
    return {
        "lengths": [list(counts.lengths)],
        "answers": [list(counts.lengths.values())],
        "rows": [counts.rows],
        "skipped": [counts.skipped],
        "left_out": [counts.left_out],
        # A column of None alone would have no type.
        "longest_prompt": [-1 if counts.longest_prompt is None else counts.longest_prompt],
    }


def _with_bar(batches: Iterator[Batch], total: int | None) -> Iterator[Batch]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("counting tokens"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        # Elsewhere, in a log file, rich would leave an empty line.
        disable=not (console.is_interactive or console.is_jupyter),
    )
    task = bar.add_task("", total=total)
    start = time.monotonic()
    try:
        for batch, numbers in batches:
            yield batch, numbers
            bar.update(task, advance=len(numbers))
            if not bar.live.is_started and time.monotonic() - start > _SECONDS_WITHOUT_A_BAR:
                bar.start()
    finally:
        bar.stop()


@contextmanager
def _bars_of_datasets(shown: bool) -> Iterator[None]:
    import datasets

    if shown or datasets.is_progress_bar_enabled() is False:
        yield
        return
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.enable_progress_bars()
