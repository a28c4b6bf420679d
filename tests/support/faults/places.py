"""Places where the guard can be made to fail, and the failures.

The faulty call is the one of the second generation batch, so that a guard that works
comes first and what is left of it comes after.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from support import canned
from support.faults.injecting import Fault, hangs, raises

from truncation_guard import TruncationGuardCallback, callback, record
from truncation_guard.batch import counts
from truncation_guard.guard import batch_stages
from truncation_guard.reporting import monitor, reporter, warn_lines
from truncation_guard.trainer import settings

FAULTY_BATCH = 1
BATCHES = 4


@dataclass(frozen=True)
class Point:
    """A function of the guard that runs once in each generation batch."""

    owner: Any
    name: str
    calls_before: int = 0
    """Before the first batch."""


PREFLIGHT = int(canned.RANK == 0)
"""Calls by the check of the set-up, which one process makes."""
BEFORE_THE_COLLECTIVE = {
    # `tiny.capture` is a wrapper around the guard's, which gets another one: two calls each time.
    "begin": Point(batch_stages.BatchStages, "begin", calls_before=1),
    "generated": Point(batch_stages.BatchStages, "generated"),
    "generation_rules": Point(settings, "generation_rules", PREFLIGHT),
    "get_num_generations": Point(settings, "get_num_generations", PREFLIGHT),
    "describe_completions": Point(batch_stages, "describe_completions"),
    "masked_by_trainer": Point(settings, "masked_by_trainer"),
}
BEFORE_THE_ADVANTAGES = {
    "rewarded": Point(batch_stages.BatchStages, "rewarded"),
    "the mode's rewards": Point(batch_stages, "guard_rewards"),
    "advantage_weights": Point(batch_stages, "advantage_weights"),
    "loss_divides_by_rows": Point(settings, "loss_divides_by_rows"),
    "scored": Point(batch_stages.BatchStages, "scored"),
}
BEFORE_THE_METRICS = {
    "counted": Point(batch_stages.BatchStages, "counted"),
    "logged_advantages": Point(settings, "logged_advantages"),
    "to_host": Point(batch_stages, "to_host"),
    "count_groups": Point(counts, "count_groups"),
    "replace_logged_advantages": Point(settings, "replace_logged_advantages"),
    "batch_metrics": Point(callback, "batch_metrics"),
    "log_metrics": Point(settings, "log_metrics"),
}
AFTER_THE_METRICS = {
    "Reporter.batch": Point(reporter.Reporter, "batch"),
    "TruncationMonitor.update": Point(monitor.TruncationMonitor, "update"),
}
ON_THE_MAIN_PROCESS = {
    "record.append": Point(record, "append", calls_before=1),
    "warn_line": Point(warn_lines, "warn_line"),
}
POINTS = (
    BEFORE_THE_COLLECTIVE
    | BEFORE_THE_ADVANTAGES
    | BEFORE_THE_METRICS
    | AFTER_THE_METRICS
    | ON_THE_MAIN_PROCESS
)
EVENTS = {
    "end_evaluation": (1, Point(reporter.Reporter, "end_evaluation"), 0),
    "saving": (0, Point(monitor.TruncationMonitor, "state"), 1),
    "end_training": (1, Point(reporter.Reporter, "end_training"), 0),
}
"""Event of the trainer -> the rank whose guard fails, where, and calls before that one."""
STAGES = ("generated", "rewarded", "scored", "counted", "Reporter.batch")

ONE_FAULT = [
    (name, ranks)
    for name in POINTS
    for ranks in ((0,), (1,), (0, 1))
    if name in STAGES or ranks == ((0,) if name in ON_THE_MAIN_PROCESS else (1,))
]
"""Function, and the ranks that it fails on."""
TWO_FAULTS = [
    *((first, "", second) for first, second in itertools.permutations(STAGES, 2)),
    *((first, "later ", second) for first in ("rewarded", "counted") for second in STAGES),
]
"""What fails on rank 0, and what on rank 1: in the same batch, or in the one after it."""

NONSENSE: dict[str, dict[str, Callable[[Any], Any]]] = {
    "generated": {
        "None": lambda rows: None,
        "text": lambda rows: "nonsense",
        "another shape": lambda rows: rows[:-1],
        "another dtype": lambda rows: rows.float(),
    },
    "rewarded": {
        "None": lambda rewards: None,
        "text": lambda rewards: "nonsense",
        "another shape": lambda rewards: rewards[:-1],
        "another dtype": lambda rewards: rewards.double(),
    },
    "scored": {
        "None": lambda changes: None,
        "text": lambda changes: "nonsense",
        "another shape": lambda changes: {"advantages": changes["advantages"][:-1]},
        "no tensor": lambda changes: {"advantages": None},
    },
}


def one_fault(name: str, ranks: tuple[int, ...]) -> str:
    """The name of the scenario."""
    return f"{name} on {' and '.join(map(str, ranks))}"


def two_faults(first: str, when: str, second: str) -> str:
    """The name of the scenario."""
    return f"{first} on 0, {when}{second} on 1"


SOME = {
    "no guard",
    "no fault",
    *(one_fault(name, (1,)) for name in STAGES),
    "exclude: rewarded on 1",
    "generated in the first batch",
    two_faults("generated", "", "counted"),
    two_faults("rewarded", "later ", "scored"),
    *EVENTS,
    "evaluation alone",
    "scored returns another shape",
}
"""Names of the scenarios that run by default."""


def fault(
    point: Point,
    result: Callable[[Any], Any] | None = None,
    batch: int = FAULTY_BATCH,
    seconds: float = 0.0,
) -> Fault:
    """A fault in one call of a function.

    Args:
        point: where.
        result: from what the function returned to what it returns instead; None: it raises.
        batch: in which generation batch, from 0: so many calls go well.
        seconds: to sleep before it returns as it should.
    """
    instead = raises
    if seconds:
        instead = hangs(seconds)
    elif result is not None:
        instead = lambda work: result(work())  # noqa: E731
    return Fault(getattr(point.owner, point.name), point.calls_before + batch, instead)


def train(
    folder: Any, *faults: Fault, mode: str | None = "downweight", **overrides: Any
) -> dict[str, Any]:
    """Train through the faults; see `canned.train`.

    Args:
        folder: for the record.
        faults: on this process.
        mode: the guard's; None: without a guard.
        overrides: for `canned.trainer`.
    """
    guard = None if mode is None else TruncationGuardCallback(mode=mode, cooldown=0)
    made = canned.trainer(
        folder, canned.FAULTY, guard, **({"max_steps": BATCHES, "loss_type": "dapo"} | overrides)
    )
    counted = canned.Collectives()
    with ExitStack() as stack:
        for each in faults:
            stack.enter_context(each)
        with counted:
            result = canned.train(made)
    return result | {
        "fired": [each.fired for each in faults],
        "collectives": sum(counted.counts.values()),
        "weights": fingerprint(made),
    }


def fingerprint(made: Any) -> str:
    """The same for the same weights, bit for bit."""
    return hashlib.sha256(canned.weights(made).numpy().tobytes()).hexdigest()
