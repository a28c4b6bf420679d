"""Metric lines out of a plain training log.

The one idea: a log is anything with metric lines in between, so nothing is expected of a line: what
reads as an entry of `Trainer` is one, and half of an entry is better than none.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from truncation_guard.diagnosis.restarts import drop_what_was_done_again
from truncation_guard.diagnosis.trace import RunTrace, Window, to_window

_ENTRY = re.compile(r"\{[^{}]*\}")
_OPEN = re.compile(r"\{\s*(?:['\"][^{}]*)?$")
_PAIR = re.compile(
    r"""['"]([^'"]+)['"]\s*:\s*(?:'([^']*)'|"([^"]*)"|([^,'"{}()]*(?:\([^()]*\))?))\s*(?=[,}])"""
)
_BAR = re.compile(r"\b(\d+)/(\d+) \[")
_STEP = re.compile(r"\b(?:global_?)?step['\"]?\s*[:= ]\s*(\d+)\b", re.IGNORECASE)
_PREFIX = 200
_WARN = re.compile(r"\[truncation-guard\] WARN (\S+) step=\d+ mode=(\S+) ([^|]*)")
_LIMIT = re.compile(r"max_completion_length['\"]?\s*[=: ]\s*(\d+)\b")
_MASKED = re.compile(r"mask_truncated_completions['\"]?\s*[=: ]\s*(True|true|False|false)")
_PILE = 0.2
"""Share of the entries whose longest completion has one length, where a limit is near."""
_OF_A_TRAINER = ("epoch", "loss", "grad_norm", "learning_rate", "reward_std", "step", "eval_loss")
"""One of these is in every entry that `Trainer` prints, or in what is left of it."""
_LONGEST_ENTRY = 20_000
"""Characters; a brace that stands open for longer is none of an entry."""


@dataclass(slots=True, eq=False)
class _Entry:
    training: bool
    window: Window
    bar: tuple[int, int] | None = None
    """Steps done and to do, of the progress bar that is drawn again after the entry."""


@dataclass(slots=True)
class _Log:
    entries: list[_Entry] = field(default_factory=list)
    warned: list[tuple[int, str]] = field(default_factory=list)
    """Number of entries before it, and the code."""
    mode: str | None = None
    guarded: bool = False
    masked: bool | None = None
    limit: int | None = None
    with_tools: bool = False
    cut: int = 0


def read_log(path: Path, encoding: str) -> RunTrace:
    """The run that a plain log tells of; the last one where there are several.

    Metric lines are Python dicts or JSON, with numbers or text for values, alone in a line or
    behind a prefix or a progress bar, over one line or several. Of an entry that was cut what is
    left counts. The log is read once, line by line.

    Raises:
        OSError: if it cannot be read.
    """
    log = _Log()
    with path.open(encoding=encoding, errors="replace") as file:
        for text in _pieces(file, log):
            _take(text, log)
    return _to_trace(log, path)


def _pieces(lines: Iterable[str], log: _Log) -> Iterator[str]:
    """The text of every entry; all else is looked at on the way."""
    waiting = ""
    for line in lines:
        if "max_completion_length" in line or "truncat" in line:
            _look_for_settings(line, log)
        if waiting:
            together = waiting + line.rstrip("\n")
            closes = "}" in line and "{" not in line.split("}", 1)[0]
            if closes or ("{" not in line and len(together) < _LONGEST_ENTRY):
                waiting, line = "", together
            else:
                yield waiting
                waiting = ""
        before, brace, _ = line.partition("{")
        if log.entries and log.entries[-1].bar is None and (bar := _BAR.search(before)):
            log.entries[-1].bar = (int(bar[1]), int(bar[2]))
        if not brace:
            if "}" in line:
                yield line  # the end of an entry whose beginning is gone
            continue
        for found in _ENTRY.finditer(line):
            yield _with_step(line, found) if found.start() else found[0]
        opened = _OPEN.search(line) if line.rfind("{") > line.rfind("}") else None
        waiting = opened[0].rstrip("\n") if opened else ""
    if waiting:
        yield waiting


def _with_step(line: str, entry: re.Match[str]) -> str:
    """The entry, with the step that stands before it: outside of nested JSON, or in a prefix."""
    before = line[max(entry.start() - _PREFIX, 0) : entry.start()]
    step = _STEP.search(before)
    return entry[0] if step is None else f"{{'step': {step[1]}, {entry[0][1:]}"


def _take(text: str, log: _Log) -> None:
    if "reward" not in text and "completion" not in text and "truncation_guard" not in text:
        return
    metrics = _parse(text)
    printed = any(isinstance(value, str) for value in metrics.values())
    found = to_window(metrics, printed=printed)
    if found is None:
        return
    training, window, called = found
    shares = (window.mean_length, window.ratio, window.truncated)
    if not any(name in metrics for name in _OF_A_TRAINER) and shares == (None, None, None):
        return  # a reward that something else printed
    log.with_tools |= called
    log.cut += not (text.startswith("{") and text.endswith("}"))
    log.entries.append(_Entry(training, window))


def _parse(text: str) -> dict[str, Any]:
    """The pairs of an entry; of one that is cut those that are whole."""
    try:
        parsed = json.loads(text.replace("'", '"'))
    except (ValueError, RecursionError):
        pass
    else:
        return parsed if isinstance(parsed, dict) else {}
    pairs = _PAIR.findall(text)
    return {name: single or double or bare.strip() for name, single, double, bare in pairs}


def _look_for_settings(line: str, log: _Log) -> None:
    if "[truncation-guard]" in line:
        log.guarded = True
        warn = _WARN.search(line)
        if warn:
            log.warned.append((len(log.entries), warn[1]))
            log.mode = warn[2]
            limit = re.search(r"\blimit=(\d+)", warn[3])
            log.limit = int(limit[1]) if limit else log.limit
        return
    if limit := _LIMIT.search(line):
        log.limit = int(limit[1])
    if masked := _MASKED.search(line):
        log.masked = masked[1].lower() == "true"


def _to_trace(log: _Log, path: Path) -> RunTrace:
    kept, notes = drop_what_was_done_again(log.entries, lambda entry: entry.window.epoch)
    if log.cut:
        notes.append(f"Of {log.cut} entries that are cut only a part could be read.")
    first = len(log.entries) if not kept else log.entries.index(kept[0])
    steps_known = _set_steps(kept)
    if not steps_known:
        notes.append("The log does not tell its steps: its entries are numbered instead.")
    training = [entry.window for entry in kept if entry.training]
    recorded = [window.limit for window in training if window.limit is not None]
    guarded = log.guarded or any(entry.window.truncated is not None for entry in kept)
    limit = recorded[-1] if recorded else _possible(log.limit, training)
    return RunTrace(
        source="log",
        path=str(path),
        training=training,
        evaluation=[entry.window for entry in kept if not entry.training],
        steps_known=steps_known,
        limit=limit,
        limits=tuple(dict.fromkeys(recorded)) or (() if limit is None else (limit,)),
        mode=log.mode,
        guarded=guarded,
        masked=log.masked,
        warned=Counter(code for position, code in log.warned if position >= first),
        with_tools=log.with_tools,
        notes=notes,
    )


def _possible(limit: int | None, training: list[Window]) -> int | None:
    """A limit that is written somewhere in the log, unless the lengths speak against it.

    Completions may be longer, or unfinished ones pile up at another length: then what the log
    mentions is not the limit of this run.
    """
    lengths = [window.max_length for window in training if window.max_length is not None]
    longest = max(lengths, default=0)
    if limit is None or longest > limit:
        return None
    at_longest = [window for window in training if window.max_length == longest]
    piles_up = len(at_longest) >= max(2, _PILE * len(lengths)) and all(w.ratio for w in at_longest)
    return None if longest < limit and piles_up else limit


def _set_steps(entries: list[_Entry]) -> bool:
    """Number the entries by steps where all of them tell theirs, else from 1 on."""
    trained = any(entry.training for entry in entries)
    totals = Counter(
        entry.bar[1] for entry in entries if entry.bar is not None and entry.training is trained
    )
    total = max(totals, key=lambda n: totals[n], default=0)
    steps: list[float | None] = []
    for entry in entries:
        by_bar = entry.bar[0] if entry.bar is not None and entry.bar[1] == total else None
        step = by_bar if entry.window.step is None else entry.window.step
        if step is None and trained and not entry.training:
            step = steps[-1] if steps else 0.0  # its bar is that of the evaluation
        steps.append(step)
    known = [step for step in steps if step is not None]
    steps_known = len(known) == len(steps) and known == sorted(known)
    number = 0
    for entry, step in zip(entries, steps, strict=True):
        number += entry.training or not trained
        entry.window.step = step if steps_known else float(max(number, 1))
    return steps_known
