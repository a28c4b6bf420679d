"""The prompts that a profile of rollouts samples from.

Whatever can fail on one process alone, reading and tokenizing, comes before a collective in which
every process says how it went, so that none of them waits for one that has left.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from truncation_guard.trainer import sampling
from truncation_guard.trainer.sampling import Row


@dataclass(frozen=True, slots=True)
class Prompts:
    """The rows of the data set that are sampled from, the same on every process."""

    rows: Sequence[Row]
    longest: int
    """Tokens of the longest prompt; 0 where only a rollout itself shows it."""
    notes: Sequence[str]


def draw_prompts(trainer: Any, num_prompts: int, seed: int) -> Prompts:
    """Draw prompts from the training data and measure them, the same on every process.

    Args:
        trainer: a GRPOTrainer or RLOOTrainer; all processes make this call together.
        num_prompts: how many, over all processes.
        seed: of the draw.

    Raises:
        ValueError: for an empty data set.
        RuntimeError: where another process failed; whatever a process fails with is raised there.
    """
    rows: list[Row] = []
    notes: list[str] = []
    failure, longest = None, 0
    try:
        rows, notes = _draw(trainer, num_prompts, seed)
        step = trainer.args.generation_batch_size // trainer.accelerator.num_processes
        for start in range(0, len(rows), step):
            lengths = sampling.prompt_lengths(trainer, rows[start : start + step])
            longest = max(longest, *(lengths or [0]))
    except Exception as error:
        failure = error
    figures = torch.tensor([[failure is not None, len(rows), longest]])
    gathered = trainer.accelerator.gather(figures.to(trainer.accelerator.device)).cpu()
    if failure is not None:
        raise failure
    if gathered[:, 0].any():
        raise RuntimeError("Another process could not prepare its prompts: its log says why.")
    if gathered[:, 1].unique().numel() > 1:
        raise RuntimeError(
            f"The processes read {gathered[:, 1].tolist()} prompts from their data sets. Give each "
            "process the whole data set, as TRL wants it, or pass a smaller `num_prompts`."
        )
    return Prompts(rows, int(gathered[:, 2].max()), notes)


def _draw(trainer: Any, num_prompts: int, seed: int) -> tuple[list[Row], list[str]]:
    dataset = sampling.training_dataset(trainer)
    is_stream = not hasattr(dataset, "__len__")
    if is_stream:
        rows = list(islice(dataset, num_prompts))
    else:
        size = len(dataset)
        chosen = random.Random(seed).sample(range(size), min(num_prompts, size))
        rows = [dataset[index] for index in chosen]
    if not rows:
        raise ValueError("`trainer.train_dataset` is empty. Pass one with prompts.")
    if "prompt" not in rows[0]:
        raise ValueError(
            f"`trainer.train_dataset` has no column `prompt`, only {list(rows[0])}. Rename the one "
            "that holds the prompts."
        )
    notes: list[str] = []
    if len(rows) < num_prompts:
        notes.append(f"The data set has only {len(rows)} prompts, so all of them were used.")
    elif is_stream:
        notes.append(f"The data set is a stream: these are its first {len(rows)} prompts.")
    return rows, notes
