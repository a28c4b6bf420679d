"""Which of the files that a run left behind to go by.

Exact counts go before means: the guard's record, then `trainer_state.json`, then a log, then
completions tables. Content decides what a file is, not its name.
"""

import codecs
import re
from pathlib import Path

from truncation_guard.completions_tables import find_tables
from truncation_guard.diagnosis.readers import same_run
from truncation_guard.diagnosis.readers.guard_record import read_guard_record
from truncation_guard.diagnosis.readers.table_rewards import read_tables
from truncation_guard.diagnosis.readers.trainer_state import read_trainer_state
from truncation_guard.diagnosis.readers.training_log import read_log
from truncation_guard.diagnosis.run import RunTrace
from truncation_guard.record import FILE_NAME

_STATE = "trainer_state.json"
_LOGS = (".log", ".txt", ".out", ".err")
_HEAD = 1 << 20
_FIRST = 1 << 13
"""Bytes; zeros further on in a text are left by a crash."""
_GLOBAL_STEP = re.compile(rb'"global_step"\s*:\s*(\d+)')
_RECORD = re.compile(rb'\s*\{[^{}]*"kind"\s*:\s*"start"')
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""PowerShell writes UTF-16 when output is redirected."""
_REMEDY = (
    f"Pass a run's output folder (with {FILE_NAME}, checkpoint-*/{_STATE}, a log or "
    f"completions/*.parquet), a {_STATE}, or a training log."
)


def read_run(path: Path) -> RunTrace:
    """The run that a file or folder tells of.

    Raises:
        FileNotFoundError: where there is none, or nothing to read in it.
        OSError: for what cannot be opened.
        ValueError: for what cannot be read, or tells nothing about rollouts.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist. {_REMEDY}")
    return _read_folder(path) if path.is_dir() else _read_file(path)


def _read_file(path: Path) -> RunTrace:
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if head.startswith(b"PAR1"):
        return read_tables(path, [path])
    encoding = next((e for mark, e in _BYTE_ORDER_MARKS.items() if head.startswith(mark)), "utf-8")
    if encoding != "utf-16" and b"\0" in head[:_FIRST]:
        raise ValueError(f"{path} is a binary file. {_REMEDY}")
    if path.name == _STATE or (head.lstrip().startswith(b"{") and b'"log_history"' in head):
        return read_trainer_state(path)
    if path.name == FILE_NAME or _RECORD.match(head):
        return read_guard_record(path)
    trace = read_log(path, encoding)
    if not trace.training and not trace.evaluation:
        raise ValueError(
            f"{path} has no metric line: no Python dict or JSON with a reward or completions/*. "
            f"{_REMEDY}"
        )
    return trace


def _read_folder(path: Path) -> RunTrace:
    record = path / FILE_NAME
    states = _states(path)
    errors: list[ValueError] = []
    found: RunTrace | None = None
    if record.is_file():
        try:
            found = read_guard_record(record)
        except ValueError as error:
            errors.append(error)
    if found is not None and states and not found.training:
        errors.append(ValueError(f"{record} holds evaluations alone."))
    elif found is not None:
        return _with_states(found, states)
    for read in (_read_furthest_state, _read_newest_log, _read_all_tables):
        try:
            trace = read(path)
        except ValueError as error:
            errors.append(error)
            continue
        if trace is not None:
            trace.notes.extend(f"Passed over: {error}" for error in errors)
            return trace
    if found is not None:
        return found
    if errors:
        raise errors[0]
    raise FileNotFoundError(f"{path} has nothing to read in it. {_REMEDY}")


def _read_all_tables(folder: Path) -> RunTrace | None:
    tables = find_tables(folder)
    return read_tables(tables[0].parent, tables) if tables else None


def _read_newest_log(folder: Path) -> RunTrace | None:
    """The newest log of a folder that has a metric line."""
    logs = [file for file in folder.iterdir() if file.suffix in _LOGS and file.is_file()]
    for log in sorted(logs, key=lambda file: (file.stat().st_mtime, file.name), reverse=True):
        try:
            trace = _read_file(log)
        except ValueError:
            continue  # another text
        if len(logs) > 1:
            trace.notes.append(f"Of the {len(logs)} logs in the folder this is the newest.")
        return trace
    return None


def _states(path: Path) -> list[Path]:
    """The states of a run, the furthest first."""
    files = [path / _STATE, *path.glob(f"checkpoint-*/{_STATE}")]
    return sorted(filter(Path.is_file, files), key=_global_step, reverse=True)


def _global_step(state: Path) -> int:
    with state.open("rb") as file:
        found = _GLOBAL_STEP.search(file.read(1 << 16))
    return -1 if found is None else int(found[1])


def _read_furthest_state(folder: Path) -> RunTrace | None:
    """The furthest state that is whole, else the part of the furthest that can be read."""
    errors: list[ValueError] = []
    partly: list[RunTrace] = []
    for state in _states(folder):
        try:
            trace = read_trainer_state(state)
        except ValueError as error:
            errors.append(error)
            continue
        if not trace.broken:
            trace.notes.extend(f"Passed over: {error}" for error in errors)
            trace.notes.extend(f"Passed over: {other.path} breaks off." for other in partly)
            return trace
        partly.append(trace)
    if errors and not partly:
        raise errors[0]
    return partly[0] if partly else None


def _with_states(record: RunTrace, states: list[Path]) -> RunTrace:
    """The record with what a state of its run adds, or the state of a newer run, or of more of it.

    A state of another run, written after the record, counts as a newer run.
    """
    recorded = Path(record.path).stat().st_mtime_ns
    earlier: list[Path] = []
    for state in sorted(states, key=lambda file: file.stat().st_mtime_ns, reverse=True):
        try:
            other = read_trainer_state(state)
        except ValueError as error:
            record.notes.append(f"Passed over: {error}")
            continue
        if not other.training:
            continue  # evaluations alone do not tell which run it is
        is_same = same_run.is_of_run(record, other)
        if is_same and not same_run.goes_on(record, other):
            same_run.add_state(record, other)
            break
        if is_same or state.stat().st_mtime_ns > recorded:
            what = "ends before this run does" if is_same else "is of an earlier run"
            other.notes.append(f"Passed over: {record.path} {what}.")
            return other
        earlier.append(state)
    if earlier:
        more = f" and {len(earlier) - 1} more are" if earlier[1:] else " is"
        record.notes.append(f"Passed over: {earlier[0]}{more} of another run.")
    return record
