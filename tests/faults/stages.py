"""Places where the guard can be made to fail, and the failures.

The one idea: the faulty call is the one of the second generation batch, so that a guard that works
comes first and what is left of it comes after.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from integration import canned

from truncation_guard import (
    TruncationGuardCallback,
    callback,
    groups,
    guarding,
    messages,
    monitor,
    record,
    reporting,
    trainer_facts,
)

FAULTY_BATCH = 1
BATCHES = 4


@dataclass(frozen=True)
class Point:
    """A function of the guard that runs once in each generation batch."""

    owner: Any
    name: str
    calls_before: int = 0
    """Before the first batch."""


BEFORE_THE_COLLECTIVE = {
    # `tiny.capture` is a wrapper around the guard's, which gets another one: two calls each time.
    "begin": Point(guarding.BatchGuard, "begin", calls_before=1),
    "describe": Point(guarding.BatchGuard, "describe"),
    "generation_rules": Point(trainer_facts, "generation_rules"),
    "get_num_generations": Point(trainer_facts, "get_num_generations"),
    "describe_completions": Point(guarding, "describe_completions"),
    "masked_by_trainer": Point(trainer_facts, "masked_by_trainer"),
}
BEFORE_THE_ADVANTAGES = {
    "take": Point(guarding.BatchGuard, "take"),
    "guard_rewards": Point(guarding.BatchGuard, "guard_rewards"),
    "the mode's rewards": Point(guarding, "guard_rewards"),
    "advantage_weights": Point(guarding, "advantage_weights"),
    "loss_divides_by_rows": Point(trainer_facts, "loss_divides_by_rows"),
    "changes": Point(guarding.BatchGuard, "changes"),
}
BEFORE_THE_METRICS = {
    "report": Point(guarding.BatchGuard, "report"),
    "logged_advantages": Point(trainer_facts, "logged_advantages"),
    "group_counts": Point(groups.GatheredRollouts, "group_counts"),
    "replace_logged_advantages": Point(trainer_facts, "replace_logged_advantages"),
    "batch_metrics": Point(callback, "batch_metrics"),
    "log_metrics": Point(trainer_facts, "log_metrics"),
}
AFTER_THE_METRICS = {
    "Reporter.batch": Point(reporting.Reporter, "batch"),
    "TruncationMonitor.update": Point(monitor.TruncationMonitor, "update"),
}
ON_THE_MAIN_PROCESS = {
    "record.append": Point(record, "append", calls_before=1),
    "warn_line": Point(messages, "warn_line"),
}
POINTS = (
    BEFORE_THE_COLLECTIVE
    | BEFORE_THE_ADVANTAGES
    | BEFORE_THE_METRICS
    | AFTER_THE_METRICS
    | ON_THE_MAIN_PROCESS
)
EVENTS = {
    "end_evaluation": (1, Point(reporting.Reporter, "end_evaluation"), 0),
    "saving": (0, Point(monitor.TruncationMonitor, "state"), 1),
    "end_training": (1, Point(reporting.Reporter, "end_training"), 0),
}
"""Event of the trainer -> the rank whose guard fails, where, and calls before that one."""
STAGES = ("describe", "take", "guard_rewards", "changes", "report", "Reporter.batch")

ONE_FAULT = [
    (name, ranks)
    for name in POINTS
    for ranks in ((0,), (1,), (0, 1))
    if (name not in ON_THE_MAIN_PROCESS or ranks == (0,)) and (name in STAGES or ranks != (0, 1))
]
"""Function, and the ranks that it fails on."""
TWO_FAULTS = [
    *((first, "", second) for first, second in itertools.permutations(STAGES, 2)),
    *((first, "later ", second) for first in ("take", "report") for second in STAGES),
]
"""What fails on rank 0, and what on rank 1: in the same batch, or in the one after it."""

NONSENSE: dict[str, dict[str, Callable[[Any], Any]]] = {
    "describe": {
        "None": lambda rows: None,
        "text": lambda rows: "nonsense",
        "another shape": lambda rows: rows[:-1],
        "another dtype": lambda rows: rows.float(),
    },
    "guard_rewards": {
        "None": lambda rewards: None,
        "text": lambda rewards: "nonsense",
        "another shape": lambda rewards: rewards[:-1],
        "another dtype": lambda rewards: rewards.double(),
    },
    "changes": {
        "None": lambda changes: None,
        "text": lambda changes: "nonsense",
        "another shape": lambda changes: {"advantages": changes["advantages"][:-1]},
        "no tensor": lambda changes: {"advantages": None},
    },
}


def scenario(name: str, ranks: tuple[int, ...]) -> str:
    """The name of the scenario with one fault."""
    return f"{name} on {' and '.join(map(str, ranks))}"


class Fault:
    """While entered, one call of a function fails.

    Args:
        point: where.
        result: from what the function returned to what it returns instead; None: it raises.
        batch: in which generation batch, from 0: so many calls go well.
        seconds: to sleep before it returns as it should.
    """

    def __init__(
        self,
        point: Point,
        result: Callable[[Any], Any] | None = None,
        batch: int = FAULTY_BATCH,
        seconds: float = 0.0,
    ) -> None:
        self._point = point
        self._result = result
        self._seconds = seconds
        self._left = point.calls_before + batch
        self.fired = False

    def __enter__(self) -> Fault:
        original = getattr(self._point.owner, self._point.name)
        self._original = original

        def faulty(*args: Any, **kwargs: Any) -> Any:
            self._left -= 1
            if self._left != -1:
                return original(*args, **kwargs)
            self.fired = True
            if self._seconds:
                time.sleep(self._seconds)
                return original(*args, **kwargs)
            if self._result is None:
                raise ValueError("injected")
            return self._result(original(*args, **kwargs))

        # The guard names what returned nonsense.
        faulty.__qualname__ = original.__qualname__
        setattr(self._point.owner, self._point.name, faulty)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        setattr(self._point.owner, self._point.name, self._original)


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
    try:
        for fault in faults:
            fault.__enter__()
        with counted:
            result = canned.train(made)
    finally:
        for fault in reversed(faults):
            fault.__exit__(None, None, None)
    return result | {
        "fired": [fault.fired for fault in faults],
        "collectives": sum(counted.counts.values()),
        "weights": fingerprint(made),
    }


def fingerprint(made: Any) -> str:
    """The same for the same weights, bit for bit."""
    return hashlib.sha256(canned.weights(made).numpy().tobytes()).hexdigest()
