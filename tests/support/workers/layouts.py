"""For `processes/test_layouts.py`: the same trainings on two and on four processes."""

import json
from typing import Any

import torch
from support import canned, tiny
from support.distributed import folder_of, scenario
from support.faults import courses, places
from support.faults.injecting import Fault, functions, raises

from truncation_guard import TruncationGuardCallback
from truncation_guard.record import FILE_NAME

FOLDER = folder_of("layouts")
LAST = canned.PROCESSES - 1


def train(name: str, *faults: Fault, **arguments: Any) -> dict[str, Any]:
    found = courses.run(FOLDER / name, *faults, **arguments)
    if canned.RANK == 0:
        torch.save(found.before[-1][0], FOLDER / f"{name}.pt")
    return {
        "limits": found.limits,
        "weights": found.weights,
        "steps": found.steps,
        "tracebacks": len(found.failed_in),
    }


def fault_on_the_last(function: str, number: int) -> dict[str, Any]:
    faults = [Fault(functions()[function], number, raises)] if canned.RANK == LAST else []
    return train("fault", *faults)


def uneven() -> dict[str, Any]:
    """Seven prompts to train on, five to evaluate on, three in a batch of all processes."""
    seen: list[Any] = []

    def reward(completion_ids: Any, **kwargs: Any) -> list[float]:
        seen.append([list(ids) for ids in completion_ids])
        return [len(ids) % 3 / 2 for ids in completion_ids]

    args = tiny.config(
        FOLDER / "uneven",
        per_device_train_batch_size=12 // canned.PROCESSES,
        per_device_eval_batch_size=12 // canned.PROCESSES,
        max_steps=-1,
        num_train_epochs=2,
        ddp_timeout=canned.COLLECTIVE_TIMEOUT,
    )
    rows = [*canned.TWELVE_IN_FOURS.rollouts, tiny.T8, tiny.E3, tiny.T8, tiny.T8, tiny.E3]
    made = tiny.trainer(
        args,
        reward,
        [TruncationGuardCallback(mode="exclude")],
        rows,
        train_dataset=tiny.prompts(7),
        eval_dataset=tiny.prompts(5),
    )
    made.train()
    made.evaluate()
    record = [json.loads(line) for line in (FOLDER / "uneven" / FILE_NAME).open()]
    return {"rows": seen, "record": [line for line in record if line["kind"] == "batch"]}


def scenarios() -> None:
    """On any number of processes."""
    scenario("everything", lambda: train("everything"))
    scenario("one-sided", lambda: train("one-sided", batches=courses.ONE_SIDED))
    for stage in places.STAGES[:2]:
        name = f"guard.batch_stages.BatchStages.{stage}"
        scenario(f"{stage} fails", lambda name=name: fault_on_the_last(name, 1))
    scenario("uneven", uneven)
