"""The guard's stages over a batch that lies on so many processes, without a model and without them.

The processes are slices of one batch. What TRL does between the stages is written
down here in plain Python, apart from the guard.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from support.stand_ins import stand_in
from torch import Tensor
from trl import GRPOTrainer

from truncation_guard.batch.counts import BatchCounts
from truncation_guard.guard.batch_stages import BatchStages
from truncation_guard.options import GuardOptions

LIMIT = 8


@dataclass(frozen=True)
class Batch:
    """A generation batch of all processes."""

    completions: list[list[int]]
    rewards: list[list[float]]
    """Of each reward function; NaN where it abstains."""
    group_size: int

    @property
    def truncated(self) -> list[bool]:
        """By the words of the design: at the limit, and not on the stop token."""
        return [len(row) >= LIMIT and row[-1] != 1 for row in self.completions]


@dataclass(frozen=True)
class Guarded:
    """What the trainer goes on with, all processes together."""

    rewards: Tensor
    advantages: list[float]
    tokens: int
    """The denominator of the loss."""
    in_loss: list[bool]
    """The rows that the loss mask leaves in."""
    changed: set[str]
    """What the guard replaced in the trainer's batch."""
    counts: list[BatchCounts]
    """Of each process."""


def through(batch: Batch, processes: int = 1, loss: str = "dapo", **options: Any) -> Guarded:
    """All stages of a batch of training.

    Args:
        batch: its rows have to be divisible by `processes`.
        processes: how many it lies on.
        loss: a `loss_type` of GRPO.
        options: the guard's `mode`, `truncated_weight`, `truncated_reward`.
    """
    share = len(batch.completions) // processes
    parts = [slice(p * share, (p + 1) * share) for p in range(processes)]
    trainers = [_trainer(p, processes, batch, loss) for p in range(processes)]
    counts: list[BatchCounts] = []
    defaults = {
        "mode": "downweight",
        "truncated_weight": 0.0,
        "truncated_reward": 0.0,
        "warn_above": None,
        "window": 64,
        "cooldown": 0,
        "coverage": 0.95,
        "histogram_every": None,
        "record": False,
    }
    settings = GuardOptions(**(defaults | options))
    guards = [BatchStages(settings, in_order=True, longest_prompt=0) for _ in trainers]
    described = []
    for guard, trainer, part in zip(guards, trainers, parts, strict=True):
        ids = batch.completions[part]
        guard.begin(trainer)
        described.append(guard.generated(trainer, ([[3]] * len(ids), ids, None, [""] * len(ids))))
    gathered = torch.cat(described)
    seen: list[Tensor] = []
    for guard, trainer in zip(guards, trainers, strict=True):
        seen.append(guard.rewarded(trainer, gathered, torch.tensor(batch.rewards)))
    assert all(torch.equal(r.nan_to_num(99), seen[0].nan_to_num(99)) for r in seen)
    baseline = grpo_advantages(seen[0].tolist(), batch.group_size)
    advantages: list[float] = []
    tokens, in_loss, changed = set(), [], set()
    for guard, trainer, part in zip(guards, trainers, parts, strict=True):
        output = _output(batch.completions[part], baseline[part], batch)
        changes = guard.scored(trainer, gathered, output)
        changed |= changes.keys()
        output |= changes
        mask = output["completion_mask"] * output.get("tool_mask", 1)
        advantages += output["advantages"].tolist()
        tokens.add(int(output["num_items_in_batch"]))
        in_loss += mask.any(dim=1).tolist()
        trainer._logs["advantages"].extend(baseline)
        found = guard.counted(trainer, gathered)
        assert found is not None
        counts.append(found)
    assert len(tokens) == 1
    return Guarded(seen[0], advantages, tokens.pop(), in_loss, changed, counts)


def grpo_advantages(rewards: Sequence[Sequence[float]], size: int) -> list[float]:
    """TRL 1.16's: rows of NaN alone stay out of mean and deviation and get 0."""
    totals = [
        sum(r for r in row if not math.isnan(r)) if not all(map(math.isnan, row)) else math.nan
        for row in rewards
    ]
    found = []
    for first in range(0, len(totals), size):
        group = totals[first : first + size]
        scored = [r for r in group if not math.isnan(r)]
        for total in group:
            alone = len(scored) < 2 or math.isnan(total)
            scale = 1.0 if alone else statistics.stdev(scored) + 1e-4
            found.append(0.0 if alone else (total - statistics.fmean(scored)) / scale)
    return found


def _output(ids: list[list[int]], advantages: list[float], batch: Batch) -> dict[str, Tensor]:
    width = max(map(len, ids))
    mask = torch.tensor([[int(t < len(row)) for t in range(width)] for row in ids])
    tokens = sum(map(len, batch.completions))
    return {
        "advantages": torch.tensor(advantages),
        "completion_mask": mask,
        "num_items_in_batch": torch.tensor(tokens),
    }


@functools.cache
def _attributes() -> dict[str, Any]:
    attributes = vars(stand_in())
    attributes["model"].train()
    return attributes


def _trainer(process: int, processes: int, batch: Batch, loss: str) -> Any:
    made = GRPOTrainer.__new__(GRPOTrainer)
    vars(made).update(_attributes())
    made.accelerator = SimpleNamespace(process_index=process, num_processes=processes)
    made.loss_type, made.multi_objective_aggregation = loss, "sum_then_normalize"
    made.num_generations = batch.group_size
    made.reward_weights = torch.ones(len(batch.rewards[0]))
    made.state = SimpleNamespace(global_step=0)
    made._logs = {"advantages": deque(maxlen=len(batch.completions))}
    made._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
    return made
