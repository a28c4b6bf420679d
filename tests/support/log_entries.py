"""Entries of a log made up by their figures, and what the diagnosis finds in them."""

from __future__ import annotations

from typing import Any

from truncation_guard.diagnosis.checklist import find_all
from truncation_guard.diagnosis.finding import Finding
from truncation_guard.diagnosis.measurements import measure
from truncation_guard.diagnosis.run import LogEntry, RunTrace
from truncation_guard.diagnosis.verdict import judge

LIMIT = 100
RISES = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
FLAT = [0.5] * 10


def entries(ratios: list[float | None], **figures: Any) -> list[LogEntry]:
    """Log entries whose unfinished completions all stand at the limit; lists give one each."""
    made = []
    for number, ratio in enumerate(ratios):
        each = {
            name: value[number] if isinstance(value, list) else value
            for name, value in figures.items()
        }
        if ratio is not None:
            each |= {"ratio": ratio, "max_length": float(LIMIT) if ratio else 60.0}
            each = {"mean_length": LIMIT * ratio + 50 * (1 - ratio)} | each
        made.append(LogEntry(step=float(number + 1), **each))
    return made


def trace(training: list[LogEntry], **details: Any) -> RunTrace:
    return RunTrace(**({"source": "log", "path": "x", "training": training} | details))


def found(run: RunTrace) -> dict[str, Finding]:
    return {finding.code: finding for finding in find_all(run, measure(run))}


def answer(run: RunTrace, code: str) -> tuple[str, str, str]:
    finding = found(run)[code]
    return finding.severity, finding.fact, finding.remedy


def verdict(run: RunTrace) -> str:
    measures = measure(run)
    return str(judge(run, measures, find_all(run, measures)))
