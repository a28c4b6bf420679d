"""For `processes/test_faults.py`: trainings whose guards fail, at every place."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

from support import canned, tiny
from support.distributed import folder_of, scenario
from support.faults import places
from support.faults.injecting import Fault
from support.faults.places import POINTS, fault

from truncation_guard import TruncationGuardCallback

FOLDER = folder_of("faults")


Scenario = tuple[str, Callable[[], Any]]


def train(name: str, on: dict[int, Fault], folder: str = "faulty", **kwargs: Any) -> Scenario:
    """With a fault on these ranks."""
    here = [on[canned.RANK]] if canned.RANK in on else []
    return name, lambda: places.train(FOLDER / folder, *here, **kwargs)


def evaluation_alone() -> list[str]:
    """The names of the guard's metrics, of two evaluations without a training."""
    guard = TruncationGuardCallback()
    made = canned.trainer(FOLDER / "evaluation", canned.FAULTY, guard, eval_dataset=tiny.prompts(2))
    with fault(POINTS["generated"], batch=0) if canned.RANK == 1 else nullcontext():
        metrics = [made.evaluate(), made.evaluate()]
    return [name for logged in metrics for name in logged if canned.GUARD in name]


def everything() -> Iterator[Scenario]:
    """By name."""
    yield train("no guard", {}, mode=None)
    yield train("no fault", {})
    for name, ranks in places.ONE_FAULT:
        yield train(places.one_fault(name, ranks), {rank: fault(POINTS[name]) for rank in ranks})
    for name in places.STAGES:
        yield train(f"exclude: {name} on 1", {1: fault(POINTS[name])}, mode="exclude")
    yield train(
        "generated in the first batch", {1: fault(POINTS["generated"], batch=0)}, mode="exclude"
    )
    for first, when, second in places.TWO_FAULTS:
        batch = places.FAULTY_BATCH + (when == "later ")
        on = {0: fault(POINTS[first]), 1: fault(POINTS[second], batch=batch)}
        yield train(places.two_faults(first, when, second), on)
    for name, rank in (("generated", 1), ("counted", 0)):
        yield train(f"{name} sleeps", {rank: fault(POINTS[name], seconds=1.0)})
    for name, results in places.NONSENSE.items():
        if name != "scored":
            for kind, result in results.items():
                yield train(f"{name} returns {kind}", {1: fault(POINTS[name], result)})
    for name, (rank, point, calls) in places.EVENTS.items():
        yield train(
            name,
            {rank: fault(point, batch=calls)},
            folder=name,
            eval_dataset=tiny.prompts(2),
            eval_strategy="steps",
            eval_steps=2,
            save_strategy="steps",
            save_steps=2,
        )
    yield "evaluation alone", evaluation_alone
    # Last: should the guard let one of these through, the others wait for a process that raised.
    for kind, result in places.NONSENSE["scored"].items():
        yield train(f"scored returns {kind}", {1: fault(POINTS["scored"], result)})


def scenarios() -> None:
    """Those that run by default."""
    for name, work in everything():
        if name in places.SOME:
            scenario(name, work)
