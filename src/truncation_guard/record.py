"""`truncation_guard.jsonl`, the record of every generation batch, written and read.

Lines are appended and stand for themselves, so that a torn one costs one batch. A `start` line
opens each training with its settings, a `batch` line follows for each generation batch, and an
`end` line closes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from truncation_guard.batch.counts import BatchCounts
from truncation_guard.lengths.histogram import LengthHistogram
from truncation_guard.lengths.quantiles import CensoredLengths
from truncation_guard.marks_for_tests import unswept

FILE_NAME = "truncation_guard.jsonl"
_MOST_BINS = 256
_QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.99)


@dataclass(slots=True)
class RecordedRun:
    """One run, its restarts from checkpoints joined."""

    start: dict[str, Any]
    """The newest `start` line."""
    batches: dict[tuple[str, int, int], dict[str, Any]] = field(default_factory=dict)
    """(`train` or `eval`, step, number of the batch within the step) -> its newest line."""
    end: dict[str, Any] | None = None
    """The `end` line; None for a run that did not get there."""
    torn: int = 0
    """Lines that are no JSON: a process was killed while it wrote them."""

    @property
    def trained(self) -> bool:
        """Whether it has a batch of training: an evaluation on its own opens a run as well."""
        return any(split == "train" for split, _, _ in self.batches)


def append(path: Path, entry: Mapping[str, Any]) -> None:
    """Append one line, and hand it to the operating system.

    Raises:
        OSError: if the file cannot be written.
    """
    line = json.dumps(entry, allow_nan=False, separators=(",", ":")) + "\n"
    with path.open("a+b") as file:
        # A process that was killed while it wrote leaves half a line; it must not take the next
        # one with it.
        if file.tell() and not _ends_in_newline(file):
            line = "\n" + line
        file.write(line.encode())


def start_entry(
    mode: str,
    limit: int | None,
    resumed_from_step: int | None,
    truncated_weight: float | None = None,
) -> dict[str, Any]:
    """The line that opens a training; `truncated_weight` is None but in mode `downweight`."""
    return {
        "kind": "start",
        "mode": mode,
        "truncated_weight": truncated_weight,
        "limit": limit,
        "resumed_from_step": resumed_from_step,
    }


def batch_entry(counts: BatchCounts, mode: str, number: int) -> dict[str, Any]:
    """The line of one generation batch.

    Args:
        counts: the batch, over all processes.
        mode: the mode in effect.
        number: of the batch within its step, from 0.
    """
    groups = counts.groups
    return {
        "kind": "batch",
        "split": "train" if counts.training else "eval",
        "step": counts.step,
        "batch": number,
        "mode": mode,
        "limit": counts.limit,
        "completions": counts.completions,
        "terminated": counts.completions - counts.truncated - counts.stopped,
        "truncated": counts.truncated,
        "stopped": counts.stopped,
        "causes": dict(counts.causes),
        "groups": groups.groups,
        "groups_truncated": groups.truncated,
        "groups_all_truncated": groups.all_truncated,
        "groups_one_survivor": groups.one_survivor,
        "groups_without_signal": groups.without_signal,
        "reward": counts.reward,
        **_lengths(counts),
    }


def end_entry(total: BatchCounts, step: int) -> dict[str, Any]:
    """The line that closes a training at this step, with everything since its `start` line."""
    return {
        "kind": "end",
        "step": step,
        "completions": total.completions,
        "truncated": total.truncated,
        "stopped": total.stopped,
        **_lengths(total),
    }


def read_record(path: Path) -> list[RecordedRun]:
    """Every run of a file, oldest first.

    Torn lines are passed over. Where a run was resumed from a checkpoint, the batches that an
    earlier start wrote past that checkpoint are dropped: they were generated again.

    Raises:
        OSError: if the file cannot be read.
    """
    runs: list[RecordedRun] = []
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                entry = _parse(line)
            except (ValueError, RecursionError):
                if runs:
                    runs[-1].torn += bool(line.strip())
                continue
            if entry is None:
                continue
            if entry["kind"] == "start" and not (runs and entry.get("resumed_from_step")):
                runs.append(RecordedRun(entry))
            elif entry["kind"] == "start":
                _resume(runs, entry)
            elif runs and entry["kind"] == "batch":
                key = (entry["split"], entry["step"], entry["batch"])
                runs[-1].batches[key] = entry
            elif runs and entry["kind"] == "end":
                runs[-1].end = entry
    return runs


@unswept  # for the diagnosis of a finished run
def batch_lengths(batch: Mapping[str, Any]) -> LengthHistogram:
    """The lengths of a `batch` line.

    The completions of a bin count at its upper edge, those of the bin with the limit at the limit.

    Raises:
        KeyError, TypeError, ValueError: for a line that holds no lengths.
    """
    limit, width = batch["limit"], batch["lengths"]["bin_width"]
    lengths = LengthHistogram.from_pairs(batch["lengths"]["ended"], batch["lengths"]["cut"])
    if limit is None:
        return lengths
    return lengths.regrouped(lambda edge: limit if edge - width < limit < edge else edge)


def _ends_in_newline(file: Any) -> bool:
    file.seek(-1, 2)
    return bool(file.read(1) == b"\n")


def _parse(line: str) -> dict[str, Any] | None:
    entry = json.loads(line)
    if not isinstance(entry, dict) or entry.get("kind") not in ("start", "batch", "end"):
        return None
    if entry["kind"] == "start":
        resumed = entry.get("resumed_from_step")
        return entry if resumed is None or isinstance(resumed, int) else None
    if entry["kind"] == "batch":
        split, step, number = (entry.get(key) for key in ("split", "step", "batch"))
        if split not in ("train", "eval") or not (
            isinstance(step, int) and isinstance(number, int)
        ):
            return None
    return entry


def _resume(runs: list[RecordedRun], start: dict[str, Any]) -> None:
    """Go on with the newest training: a checkpoint is of a training, never of an evaluation."""
    trained = [place for place, run in enumerate(runs) if run.trained]
    run = runs.pop(trained[-1] if trained else -1)
    runs.append(run)
    resumed = start["resumed_from_step"]
    run.start, run.end = start, None
    # A checkpoint is written after the evaluation of its step and before the rollouts that follow.
    run.batches = {
        (split, step, number): entry
        for (split, step, number), entry in run.batches.items()
        if step < resumed or (split == "eval" and step == resumed)
    }


def _lengths(counts: BatchCounts) -> dict[str, Any]:
    width, binned = 1, counts.lengths
    while len(binned.tokens) > _MOST_BINS:
        width *= 2
        binned = counts.lengths.rounded_up(width)
    ended, cut = binned.to_pairs()
    sample = CensoredLengths(counts.lengths)
    return {
        "quantiles": {f"p{round(100 * q)}": sample.quantile(q) for q in _QUANTILES},
        "lengths": {
            "bin_width": width,
            "ended": ended,
            "cut": cut,
        },
    }
