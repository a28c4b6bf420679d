"""`truncation_guard.jsonl`: what every generation batch looked like, for later.

The one idea: append-only lines that stand for themselves, so that a torn one costs one batch. A
`start` line opens each training with its settings, a `batch` line follows for each generation
batch, an `end` line closes. The writer raises what the file system raises; the callback decides
what that means.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from truncation_guard.batch.counts import BatchCounts
from truncation_guard.checks import is_integer
from truncation_guard.fault_marks import unswept
from truncation_guard.lengths.sample import LengthSample

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
    """Lines of it that are no JSON: a process was killed while it wrote them."""

    @property
    def trained(self) -> bool:
        """Whether it has a batch of training: an evaluation on its own opens a run as well."""
        return any(split == "train" for split, _, _ in self.batches)


def append(path: Path, entry: Mapping[str, Any]) -> None:
    """Append one line and hand it to the operating system.

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
    """The line that opens a training; the weight is that of mode `downweight`, None in others."""
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
        mode: what was really done about truncated completions.
        number: which batch of its step it is, from 0.
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
    """The line that closes a training at this step: everything it saw since its `start` line."""
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

    Lines that are torn or no JSON are passed over. Where a run was resumed from a checkpoint, what
    an earlier start wrote past that checkpoint is dropped: it was done again.

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
def batch_lengths(batch: Mapping[str, Any], name: str) -> Counter[int]:
    """Length in tokens -> completions of a `batch` line: those that `"ended"`, or were `"cut"`.

    Of a bin its upper edge counts, of the one that the limit is in the limit.

    Raises:
        ValueError: for what is no histogram.
    """
    limit, width = batch["limit"], batch["lengths"]["bin_width"]
    lengths: Counter[int] = Counter()
    for edge, count in batch["lengths"][name]:
        if not (is_integer(edge) and is_integer(count) and edge >= 0 and count > 0):
            raise ValueError(f"{count!r} completions of {edge!r} tokens")
        holds_limit = limit is not None and edge - width < limit < edge
        lengths[limit if holds_limit else edge] += count
    return lengths


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
    """Go on with the newest training: a checkpoint is of one, whatever was evaluated since."""
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
    width = 1
    while len({-(n // -width) for n in [*counts.ended, *counts.cut]}) > _MOST_BINS:
        width *= 2
    sample = LengthSample.from_histograms(counts.ended, counts.cut)
    return {
        "quantiles": {f"p{round(100 * q)}": sample.quantile(q) for q in _QUANTILES},
        "lengths": {
            "bin_width": width,
            "ended": _histogram(counts.ended, width),
            "cut": _histogram(counts.cut, width),
        },
    }


def _histogram(lengths: Mapping[int, int], width: int) -> list[tuple[int, int]]:
    """(upper edge in tokens, completions) of every bin that is not empty."""
    bins: dict[int, int] = {}
    for length, count in lengths.items():
        edge = -(length // -width) * width
        bins[edge] = bins.get(edge, 0) + count
    return sorted(bins.items())
