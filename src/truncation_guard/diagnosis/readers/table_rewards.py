"""Rewards and advantages out of TRL's completions tables, where there is nothing else.

TRL's tables hold texts and no tokens, so they say nothing about lengths or endings.
"""

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any

from truncation_guard.completions_tables import reading
from truncation_guard.diagnosis.readers.trl_metrics import number
from truncation_guard.diagnosis.run import LogEntry, RunTrace

_NOT_REWARDS = ("step", "prompt", "completion", "advantage")


def read_tables(folder: Path, files: Sequence[Path]) -> RunTrace:
    """The run that completions tables tell of.

    Args:
        folder: for the trace.
        files: in the order of their steps.

    Raises:
        ValueError: for what is no parquet table or lacks a column.
    """
    training = [_entry(file) for file in files]
    notes = [
        "Completions tables hold text, not tokens: neither lengths nor endings are known from them."
    ]
    if any(entry.reward is None for entry in training):
        notes.append(
            "How the columns of rewards add up to the reward is not in the tables, so it is left "
            "out."
        )
    return RunTrace(source="tables", path=str(folder), training=training, notes=notes)


def _entry(file: Path) -> LogEntry:
    """The step of a table; its mean reward only if it has one column of rewards."""
    columns = _columns(file)
    steps, advantages = (_numbers(file, name, columns[name]) for name in ("step", "advantage"))
    rows = zip(columns["prompt"], advantages, strict=True)
    silent = [not any(row[1] for row in group) for _, group in groupby(rows, itemgetter(0))]
    rewards = [values for name, values in columns.items() if name not in _NOT_REWARDS]
    cells = rewards[0] if len(rewards) == 1 else []
    given = [value for cell in cells if (value := number(cell)) is not None]
    return LogEntry(
        step=max((step for step in steps if step is not None), default=None),
        reward=fmean(given) if given else None,
        silent_groups=fmean(silent) if silent else None,
    )


def _numbers(file: Path, name: str, values: Sequence[Any]) -> list[float | None]:
    """A column of numbers, which may be written as text; None for NaN and missing ones."""
    found = [number(value) for value in values]
    strange = [v for v, n in zip(values, found, strict=True) if n is None and isinstance(v, str)]
    if strange:
        raise ValueError(
            f"{file} has {strange[0]!r} in its column {name}, which is no number. Pass tables that "
            "TRL wrote with log_completions=True."
        )
    return found


def _columns(file: Path) -> dict[str, list[Any]]:
    """The columns that a table must have, and those of numbers."""
    from pyarrow import parquet, types

    with reading(file):
        schema = parquet.read_schema(file)
        missing = [name for name in _NOT_REWARDS if name not in schema.names]
        if missing:
            raise ValueError(
                f"{file} has no column {', '.join(missing)}, only {', '.join(schema.names)}. Pass "
                "tables that TRL wrote with log_completions=True."
            )
        numbers = [
            field.name
            for field in schema
            if types.is_floating(field.type) and field.name != "advantage"
        ]
        wanted = ["step", "prompt", "advantage", *numbers]
        columns: dict[str, list[Any]] = parquet.read_table(file, columns=wanted).to_pydict()
    return columns
