"""Faults into every function of the guard, one at a time, and what each of them did.

It is the same loop on one process and on several, where one of them has the fault. What a training
without a guard makes of the same state is worked out once for each state that occurs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from support import canned
from support.faults import courses
from support.faults.courses import FAULTY_BATCH, Measured, Outcome, OwnLoss
from support.faults.injecting import CONTAINS, Call, Fault, functions, hangs, raises

COURSES: dict[str, dict[str, Any]] = {
    "plain": {},
    "evaluations and checkpoints": {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_strategy": "steps",
        "save_steps": 2,
    },
    "resumed": {"max_steps": 4, "from_checkpoint": 2},
    "conversations": {"prompts": courses.CHATS, "max_steps": 2},
    "every verdict": {"batches": courses.VERDICTS, "options": {"raise_limit_to": None}},
    "measured only": {"base": Measured, "max_steps": 1},
    "a loss of its own": {"base": OwnLoss, "max_steps": 1},
    "evaluation alone": {"work": lambda made: made.evaluate()},
    "prediction alone": {"work": lambda made: made.predict(made.eval_dataset)},
}
"""Arguments of `courses.run`. `from_checkpoint`: of the course before that writes checkpoints."""


class Sweep:
    """The trainings of one course.

    Args:
        course: its name.
        folder: shared by all courses.
    """

    def __init__(self, course: str, folder: Path) -> None:
        self._arguments = dict(COURSES[course])
        self._folder = folder / "run"
        step = self._arguments.pop("from_checkpoint", None)
        if step is not None:
            checkpoint = str(self._folder / f"checkpoint-{step}")
            self._arguments["work"] = lambda made: made.train(resume_from_checkpoint=checkpoint)
        self._functions = functions()
        self._continued: dict[Any, str] = {}
        self.calls: list[list[Call]] = []
        """Of each process."""
        calls: list[Call] = []
        self.calm = self._run(calls=calls)
        self.calls = gather(calls)
        self.after_a_fault: list[Call] = []
        """Of this process, in a training in which one of all does fail."""
        contained = [call for call in calls if call.container == CONTAINS]
        fault = Fault(self._functions[contained[0].function], contained[0].number, raises)
        faults = [] if canned.RANK else [fault]
        elsewhere = folder / "failed"  # the checkpoints of the calm one stay
        courses.run(elsewhere, *faults, **self._arguments, calls=self.after_a_fault)

    def targets(self, known: set[Any], *, each_event: bool) -> list[tuple[int, Call]]:
        """Process and call, for each function that somebody would contain a fault of.

        The processes take turns, where more than one calls the function.

        Args:
            known: what has been a target before; more comes to it.
            each_event: one for each event of the trainer that a function serves.
        """
        chosen: dict[Any, dict[int, Call]] = {}
        for rank, calls in enumerate(self.calls):
            for call in calls:
                key = (call.function, call.entry) if each_event else call.function
                if call.container is None or not call.is_swept or key in known:
                    continue
                on = chosen.setdefault(key, {})
                if rank not in on or (on[rank].batch <= FAULTY_BATCH < call.batch):
                    on[rank] = call
        known.update(chosen)
        ranks = [sorted(on)[number % len(on)] for number, on in enumerate(chosen.values())]
        return [(rank, on[rank]) for rank, on in zip(ranks, chosen.values(), strict=True)]

    def summary(self) -> dict[str, Any]:
        """What this process called, and what of that nobody would contain a fault of."""
        mine = self.calls[canned.RANK]
        bare = {(c.entry, c.function) for c in mine if c.container is None and c.is_swept}
        return {
            "functions": sorted({call.function for call in mine}),
            "entries": sorted({call.entry for call in mine}),
            "bare": sorted(bare),
            "after a fault": sorted({call.function for call in self.after_a_fault}),
            "left out": sorted({c.function for c in mine if c.container and not c.is_swept}),
        }

    def may_return_nonsense(self, call: Call) -> bool:
        """Not the containment itself, which nobody checks, nor what never returns anything."""
        returned = self._functions[call.function].__annotations__.get("return")
        is_containment = call.function.startswith("guard.fault_barrier.")
        return not is_containment and returned not in (None, "None")

    def put(self, rank: int, call: Call, instead: Callable[..., Any]) -> dict[str, Any]:
        """One training with this fault on this process: what all processes know of it."""
        function = self._functions[call.function]
        faults = [Fault(function, call.number, instead)] if rank == canned.RANK else []
        found = self._run(*faults)
        everybody = gather(found)
        settled = max([call.batch, *(n for each in everybody for n in each.failed_in)])
        as_without = as_with = None
        if settled < len(found.before) - 1:  # else no batch is left to compare
            as_without = self._continue(found, settled, guarded=False) == found.weights
            as_with = self._continue(found, settled, guarded=True) == found.weights
        return {
            "fault": f"{call.function} in {call.entry}, on {rank}",
            "goes_on": call.container != CONTAINS,
            "fired": all(fault.fired for fault in faults),
            "to_the_end": found.steps == self.calm.steps and found.finite,
            "tracebacks": sum(len(each.failed_in) for each in everybody),
            "alike": len({each.limits_and_weights for each in everybody}) == 1,
            "as_without": as_without,
            "as_with": as_with,
        }

    def hang(self, targets: list[tuple[int, Call]], seconds: float) -> dict[str, Any]:
        """A training in which each of these functions hangs once, on its process."""
        here = [call for rank, call in targets if rank == canned.RANK]
        faults = [Fault(self._functions[c.function], c.number, hangs(seconds)) for c in here]
        found = self._run(*faults)
        return {
            "fired": [fault.fired for fault in faults],
            "as_calm": found.limits_and_weights == self.calm.limits_and_weights,
            "tracebacks": len(found.failed_in),
        }

    def _continue(self, found: Outcome, batch: int, guarded: bool) -> str:
        """The weights at the end of a training that goes on from those before this batch."""
        state = found.before[batch]
        key = (
            batch,
            guarded,
            str(gather((courses.fingerprint([*state[0], state[1]]), found.limits))),
        )
        if key not in self._continued:
            self._continued[key] = self._run(
                guarded=guarded, go_on=(batch, state), limits=found.limits
            ).weights
        return self._continued[key]

    def _run(self, *faults: Fault, **arguments: Any) -> Outcome:
        return courses.run(self._folder, *faults, **(self._arguments | arguments))


def gather(mine: Any) -> list[Any]:
    """What each process has, on all of them."""
    if canned.PROCESSES == 1:
        return [mine]
    everybody: list[Any] = [None] * canned.PROCESSES
    torch.distributed.all_gather_object(everybody, mine)
    return everybody


def another(result: Any) -> Any:
    """Of the same kind, and wrong."""
    if isinstance(result, bool):
        return not result
    if isinstance(result, (int, float)):
        return -result - 1
    if isinstance(result, torch.Tensor):
        return result.flip(0)[1:] if result.dim() else ~result.bool()
    if isinstance(result, str):
        return "nonsense {"
    if isinstance(result, Mapping):
        return {"nonsense": object()}
    if isinstance(result, (list, tuple, set, frozenset)):
        return type(result)()
    return object()


KINDS: dict[str, Callable[[Callable[[], Any]], Any]] = {
    "raises": raises,
    "returns None": lambda work: (work(), None)[1],
    "returns text": lambda work: (work(), "nonsense")[1],
    "returns another": lambda work: another(work()),
}
