"""`truncation_guard.jsonl`: the guard's own record, exact counts of every generation batch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from truncation_guard.diagnosis.readers.trl_metrics import number
from truncation_guard.diagnosis.run import LogEntry, RunTrace
from truncation_guard.lengths.histogram import LengthHistogram
from truncation_guard.lengths.sample import LengthSample
from truncation_guard.record import RecordedRun, batch_lengths, read_record

_MOST = 10**15
_LAST_PART = 5
_ENOUGH = 512
"""Completions; with fewer in the last fifth the sample reaches further back."""


def read_guard_record(path: Path) -> RunTrace:
    """The last training of a record; the last evaluation where there is none.

    Raises:
        OSError: if it cannot be read.
        ValueError: without a batch that can be read.
    """
    runs = [run for run in read_record(path) if run.batches]
    if not runs:
        raise ValueError(
            f"{path} has no generation batch. Pass the record of a run that got to its first step."
        )
    run = next((run for run in reversed(runs) if run.trained), runs[-1])
    trace = _to_trace(run, path)
    if len(runs) > 1:
        which = "" if run is runs[-1] else " that trained"
        trace.notes.append(f"The record holds {len(runs)} runs; this is the last one{which}.")
    return trace


def _to_trace(run: RecordedRun, path: Path) -> RunTrace:
    training: list[LogEntry] = []
    evaluation: list[LogEntry] = []
    batches: list[Mapping[str, Any]] = []
    unreadable = 0
    for (split, step, _), batch in sorted(run.batches.items(), key=lambda item: item[0][1:]):
        try:
            limit = None if batch["limit"] is None else _whole(batch["limit"], least=1)
            batch = {**batch, "limit": limit}
            entry = _entry(batch, _whole(step))
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
            unreadable += 1
            continue
        (training if split == "train" else evaluation).append(entry)
        if split == "train":
            batches.append(batch)
    if not training and not evaluation:
        raise ValueError(
            f"{path} has {unreadable} generation batches without their counts or lengths. Pass a "
            "record as a TruncationGuardCallback wrote it."
        )
    limits = [entry.limit for entry in training or evaluation if entry.limit is not None]
    mode = batches[-1].get("mode") if batches else run.start.get("mode")
    notes = [f"{unreadable} generation batches could not be read."] if unreadable else []
    if run.torn:
        notes.append(f"{run.torn} lines of the record are no JSON and were passed over.")
    return RunTrace(
        source="record",
        path=str(path),
        training=training,
        evaluation=evaluation,
        limit=limits[-1] if limits else None,
        mode=mode if isinstance(mode, str) else None,
        truncated_weight=number(run.start.get("truncated_weight")),
        guarded=True,
        sample=_recent_sample(batches),
        notes=notes,
    )


def _entry(batch: Mapping[str, Any], step: int | None) -> LogEntry:
    lengths = batch_lengths(batch)
    completions = lengths.completions
    causes = batch["causes"]
    silent, groups = batch["groups_without_signal"], batch["groups"]
    counted = [batch["truncated"], batch["stopped"], causes["context"], causes["tool"]]
    if max(counted) > completions or (silent or 0) > groups:
        raise ValueError("more than there are")
    for number_of in (completions, groups, silent or 0, *counted, *lengths.tokens):
        _whole(number_of)
    finished = sum(n * count for n, count in lengths.finished_at.items())
    tokens = finished + sum(n * count for n, count in lengths.truncated_at.items())
    return LogEntry(
        step=step,
        completions=completions,
        truncated=batch["truncated"] / completions,
        elsewhere=(causes["context"] + causes["tool"]) / completions,
        stopped=batch["stopped"] / completions,
        mean_length=tokens / completions,
        max_length=lengths.longest,
        ended_length=finished / lengths.finished if lengths.finished else None,
        reward=number(batch["reward"]),
        silent_groups=None if silent is None else silent / groups,
        limit=batch["limit"],
    )


def _whole(value: Any, least: int = 0) -> int:
    """A count or a length.

    Raises:
        ValueError: for anything else, and for more than any run has.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or value != int(value) or not least <= value <= _MOST:
        raise ValueError(f"{value!r} is no count")
    return int(value)


def _recent_sample(batches: Sequence[Mapping[str, Any]]) -> LengthSample | None:
    """The lengths of the last fifth of the batches under the last limit.

    The model changes during a run, and a limit has to hold what it writes at the end.
    """
    if not batches:
        return None
    under = len(batches)
    while under and batches[under - 1]["limit"] == batches[-1]["limit"]:
        under -= 1
    recent: list[LengthHistogram] = []
    completions = 0
    last = batches[under:]
    for taken, batch in enumerate(reversed(last)):
        if taken >= len(last) / _LAST_PART and completions >= _ENOUGH:
            break
        recent.append(batch_lengths(batch))
        completions += recent[-1].completions
    return LengthSample.of(LengthHistogram.sum_of(recent))
