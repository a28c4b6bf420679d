"""Adds up the counts of all batches, with a progress bar."""

import time
from collections.abc import Iterator, Sequence

from truncation_guard.profiling.dataset.rows import Batch, Rows
from truncation_guard.profiling.dataset.tokens import AnswerCounter, AnswerCounts

_SECONDS_WITHOUT_A_BAR = 1.0


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
