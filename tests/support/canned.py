"""Trainings with canned rollouts and rewards that are the same on any number of processes.

A `Batch` says what all processes together see, and each one takes its share. Workers
train it on their processes; tests train it on one, for what must come out.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from support import tiny
from support.distributed import COLLECTIVE_TIMEOUT
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import TrainerCallback

RANK = int(os.environ.get("RANK", "0"))
PROCESSES = int(os.environ.get("WORLD_SIZE", "1"))
GUARD = "truncation_guard/"


@dataclass(frozen=True)
class Batch:
    """A generation batch of all processes, over and over."""

    rollouts: Sequence[Sequence[int]]
    rewards: Sequence[float]
    num_generations: int

    @property
    def rows(self) -> int:
        """Completions of all processes."""
        return len(self.rollouts)

    @property
    def kept(self) -> list[bool]:
        """The rows that end on the stop token."""
        return [row[-1] == tiny.EOS for row in self.rollouts]


CASE_5 = Batch([tiny.E3] * 3 + [tiny.T8] * 3, [1.0, 0.0, 1.0, 0.0, 1.0, 0.0], 2)

_TWELVE = [
    [5, 6, 1],
    [7, 8, 9, 1],
    [5, 6, 7, 8, 9, 10, 11, 12],
    [10, 11, 12, 13, 1],
    [6, 1],
    [9, 7, 5, 3, 1],
    [4, 5, 6, 7, 8, 1],
    [12, 11, 10, 9, 8, 7, 6, 5],
    [3, 4, 5, 6, 7, 8, 9, 10],
    [13, 12, 1],
    [8, 8, 8, 8, 8, 8, 8, 8],
    [15, 14, 13, 12, 11, 10, 9, 8],
]
_REWARDS = [1.0, 0.25, 0.5, 0.0, 0.75, 0.0, 1.0, 0.5, 0.0, 1.0, 0.25, 0.5]
TWELVE_IN_FOURS = Batch(_TWELVE, _REWARDS, 4)
"""Rows 2, 7, 8, 10 and 11 are cut off. Over two processes the second group straddles, and they keep
5 and 2 rows of 6."""
TWELVE_IN_SIXES = Batch(_TWELVE, _REWARDS, 6)
"""Over three processes both groups straddle."""
FAULTY = Batch(
    [[5, 6, 1], [7, 1], tiny.T8, tiny.T8, [5, 1], tiny.T8, tiny.T8, [6, 7, 8, 1]], [1.0, 0.0] * 4, 4
)
"""For faults: on each half of the rows every mode gives other advantages."""
ONE_SIDED = Batch(
    [*_TWELVE[:6], [4, 5, 6, 7, 8, 9, 10, 11], *_TWELVE[7:9], tiny.T8, *_TWELVE[10:]], _REWARDS, 4
)
"""Over two processes the second one has truncated rows only."""
LAYOUTS = {"rows kept on both": TWELVE_IN_FOURS, "rows kept on one": ONE_SIDED}

MODES = ("observe", "downweight", "exclude", "penalize")
MODE_SETTINGS = {"truncated_weight": 0.25, "truncated_reward": -0.5}
"""By which each mode does something of its own."""


def trainer(
    folder: Path | str, batch: Batch, guard: Any = None, *, micro_batches: int = 1, **overrides: Any
) -> Any:
    """A real trainer, one optimizer step for each generation batch; see `tiny.trainer`."""
    made_of = {
        name: overrides.pop(name)
        for name in ("model", "callbacks", "eval_dataset")
        if name in overrides
    }
    rows_here = batch.rows // PROCESSES // micro_batches
    settings = {
        "per_device_train_batch_size": rows_here,
        "per_device_eval_batch_size": batch.rows // PROCESSES,
        "gradient_accumulation_steps": micro_batches,
        "num_generations": batch.num_generations,
        "ddp_timeout": COLLECTIVE_TIMEOUT,
    }
    callbacks = [*([] if guard is None else [guard]), *made_of.pop("callbacks", [])]
    args = tiny.config(folder, **(settings | overrides))
    return tiny.trainer(args, shared(batch.rewards), callbacks, batch.rollouts, **made_of)


def shared(values: Sequence[float]) -> Callable[..., list[float]]:
    """A reward function that gives the rows of all processes these values, over and over."""
    numbers = itertools.cycle(values)

    def reward(completions: Sequence[Any], **kwargs: Any) -> list[float]:
        everybody = list(itertools.islice(numbers, len(completions) * PROCESSES))
        return everybody[RANK * len(completions) : (RANK + 1) * len(completions)]

    return reward


def train(made: Any, outputs: list[dict[str, Any]] | None = None, **kwargs: Any) -> dict[str, Any]:
    """Train to the end; what the trainer went on with after each batch, and what it logged.

    Args:
        made: the trainer.
        outputs: what `tiny.capture` gave for it; None: capture here.
        kwargs: for its `train`.
    """
    outputs = tiny.capture(made) if outputs is None else outputs
    made.train(**kwargs)
    return seen(made, outputs)


def seen(made: Any, outputs: list[dict[str, Any]]) -> dict[str, Any]:
    """This process's share of each generation batch, and the log, as JSON values."""
    return {
        "advantages": [output["advantages"].tolist() for output in outputs],
        "num_items": [
            int(output["num_items_in_batch"]) if "num_items_in_batch" in output else None
            for output in outputs
        ],
        "masked_rows": [
            int((output["tool_mask"] == 0).all(dim=1).sum()) if "tool_mask" in output else 0
            for output in outputs
        ],
        "metrics": [
            {name: value for name, value in entry.items() if GUARD in name}
            | {"step": entry["step"]}
            for entry in made.state.log_history
            if "loss" in entry or "eval_loss" in entry
        ],
        "steps": made.state.global_step,
    }


def weights(made: Any) -> torch.Tensor:
    """All parameters in one tensor."""
    model = made.accelerator.unwrap_model(made.model)
    return torch.cat([p.detach().flatten().double() for p in model.parameters()])


class Collectives(TorchDispatchMode):
    """Counts the collectives of torch.distributed while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace == "c10d":
            self.counts[func._schema.name] += 1
        return func(*args, **(kwargs or {}))


class AtStep(TrainerCallback):
    """Does something after an optimizer step."""

    def __init__(self, step: int, work: Callable[[], Any]) -> None:
        self.step = step
        self.work = work

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            self.work()
