"""What `test_stages.py` wants to know of two processes: trainings whose guards fail."""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from support import canned, fault_places, tiny
from support.distributed import quit_now, scenario, settle_down
from support.fault_places import POINTS, fault
from support.injecting import Fault

from truncation_guard import TruncationGuardCallback

FOLDER = Path(sys.argv[1])


def train(name: str, on: dict[int, Fault], folder: str = "faulty", **kwargs: Any) -> None:
    """A scenario with a fault on these ranks."""
    here = [on[canned.RANK]] if canned.RANK in on else []
    scenario(name, lambda: fault_places.train(FOLDER / folder, *here, **kwargs))


def evaluation_alone() -> list[str]:
    """The names of the guard's metrics, of two evaluations without a training."""
    guard = TruncationGuardCallback()
    made = canned.trainer(FOLDER / "evaluation", canned.FAULTY, guard, eval_dataset=tiny.prompts(2))
    with fault(POINTS["describe"], batch=0) if canned.RANK == 1 else nullcontext():
        metrics = [made.evaluate(), made.evaluate()]
    return [name for logged in metrics for name in logged if canned.GUARD in name]


def everything() -> None:
    train("no guard", {}, mode=None)
    train("no fault", {})
    for name, ranks in fault_places.ONE_FAULT:
        train(fault_places.scenario(name, ranks), {rank: fault(POINTS[name]) for rank in ranks})
    for name in fault_places.STAGES:
        train(f"exclude: {name} on 1", {1: fault(POINTS[name])}, mode="exclude")
    train("describe in the first batch", {1: fault(POINTS["describe"], batch=0)}, mode="exclude")
    for first, when, second in fault_places.TWO_FAULTS:
        batch = fault_places.FAULTY_BATCH + (when == "later ")
        on = {0: fault(POINTS[first]), 1: fault(POINTS[second], batch=batch)}
        train(f"{first} on 0, {when}{second} on 1", on)
    for name, rank in (("describe", 1), ("report", 0)):
        train(f"{name} sleeps", {rank: fault(POINTS[name], seconds=1.0)})
    for name, results in fault_places.NONSENSE.items():
        if name != "changes":
            for kind, result in results.items():
                train(f"{name} returns {kind}", {1: fault(POINTS[name], result)})
    for name, (rank, point, calls) in fault_places.EVENTS.items():
        train(
            name,
            {rank: fault(point, batch=calls)},
            folder=name,
            eval_dataset=tiny.prompts(2),
            eval_strategy="steps",
            eval_steps=2,
            save_strategy="steps",
            save_steps=2,
        )
    scenario("evaluation alone", evaluation_alone)
    # Last: should the guard let one of these through, the others wait for a process that raised.
    for kind, result in fault_places.NONSENSE["changes"].items():
        train(f"changes returns {kind}", {1: fault(POINTS["changes"], result)})


if __name__ == "__main__":
    settle_down()
    everything()
    quit_now()
