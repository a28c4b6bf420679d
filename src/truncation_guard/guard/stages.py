"""One generation batch, from the rollouts to the guarded batch.

The one idea: the stages of a batch come in the order of the methods of `BatchGuard`. From `take`
on every process holds the same numbers on its device, so whatever a mode changes it changes alike
everywhere, without asking the others again; the host sees the numbers once, at the end.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from truncation_guard.batch.counts import BatchCounts
from truncation_guard.batch.groups import GatheredRollouts
from truncation_guard.batch.modes import advantage_weights, guard_rewards
from truncation_guard.batch.outcomes import (
    Column,
    GenerationRules,
    Outcome,
    describe_completions,
)
from truncation_guard.batch.tally import tally
from truncation_guard.options import Mode
from truncation_guard.trainer import settings


@dataclass(slots=True)
class _Batch:
    """What is known of the batch that is being made."""

    training: bool
    num_generations: int
    rules: GenerationRules
    rows_here: Tensor
    """The rows of this process, on the CPU."""
    rollouts: GatheredRollouts
    """The rows of all processes, on the device."""
    reward_sums: Tensor
    """Sum and number of the rewards of all, terminated and truncated completions, (6,) float32."""
    rewarded: bool = False
    uniform: Tensor | None = None
    """Groups whose rewards are all the same, (groups,) bool; None where it says nothing."""
    weights: Tensor | None = None
    """Factor of each advantage, (rows of all processes,); None where the mode does nothing."""


class BatchGuard:
    """Measures each batch and applies the mode to those of training.

    Args:
        mode: what happens to truncated completions.
        truncated_weight: for `downweight`.
        truncated_reward: for `penalize`.
        in_order: whether the rows of TRL's batch are in the order of the rollouts.
        longest_prompt: tokens of the longest of the data, as far as this process looked for it.
        on_counts: called on every process with the counts of each batch.
    """

    def __init__(
        self,
        *,
        mode: Mode,
        truncated_weight: float,
        truncated_reward: float,
        in_order: bool,
        longest_prompt: int,
        on_counts: Callable[[Any, BatchCounts], None],
    ) -> None:
        self._mode: Mode = mode
        self._truncated_weight = truncated_weight
        self._truncated_reward = truncated_reward
        self._in_order = in_order
        self._longest_prompt = longest_prompt
        self._on_counts = on_counts
        self._training = False
        self._batch: _Batch | None = None

    def begin(self, trainer: Any) -> None:
        """A generation batch is about to be made."""
        # TRL decides at this moment too; generation itself may flip the model's flag.
        self._training = bool(trainer.model.training)

    def describe(self, trainer: Any, generated: tuple[Any, ...]) -> Tensor:
        """The rows of this process, (rows, columns) int64 on the CPU.

        Args:
            trainer: whose rollouts they are.
            generated: what TRL's `_generate` returned. Its first items are prompt ids, completion
                ids, tool mask and completions in GRPO; RLOO has no mask.
        """
        prompt_ids, completion_ids, *more = generated
        tool_masks, completions = more[:2] if len(more) > 1 else (None, more[0])
        rules = settings.generation_rules(trainer)
        num_generations = settings.get_num_generations(trainer, training=self._training)
        rows = describe_completions(
            rules,
            [len(ids) for ids in prompt_ids],
            completion_ids,
            tool_masks,
            completions,
            settings.masked_by_trainer(trainer, completion_ids),
        )
        rows[:, Column.LONGEST_PROMPT].clamp_(min=self._longest_prompt)
        self._batch = _Batch(
            training=self._training,
            num_generations=num_generations,
            rules=rules,
            rows_here=rows,
            rollouts=GatheredRollouts(rows, num_generations),
            reward_sums=torch.zeros(6),
        )
        return rows

    def take(self, gathered: Tensor) -> None:
        """Take in the rows of all processes, (rows of all, columns) int64 on the device."""
        batch = self._current()
        batch.rollouts = GatheredRollouts(gathered, batch.num_generations)
        batch.reward_sums = batch.reward_sums.to(gathered.device, non_blocking=True)

    def guard_rewards(self, trainer: Any, rewards: Tensor) -> Tensor:
        """The mode's change to the rewards of all processes, (rows of all, reward functions).

        What it will do to the advantages is worked out here as well: a fault leaves the whole
        batch as it was.
        """
        batch = self._current()
        if batch.rewarded:  # a wrapper around the wrapper calls twice
            return rewards
        total = _weighted(trainer, rewards)
        reward_sums = _reward_sums(batch.rollouts, total)
        guarded = rewards
        if batch.training and self._mode != "observe":
            truncated = batch.rollouts.truncated & ~batch.rollouts.any_failed
            guarded = guard_rewards(
                rewards, truncated, mode=self._mode, truncated_reward=self._truncated_reward
            )
            if self._mode == "penalize":
                # A function with a negative weight is a penalty itself: a bound would lift it.
                guarded = torch.where(_reward_weights(trainer, rewards) < 0, rewards, guarded)
            batch.weights = advantage_weights(
                truncated,
                mode=self._mode,
                truncated_weight=self._truncated_weight,
                loss_divides_by_rows=settings.loss_divides_by_rows(trainer),
            )
        guarded_total = total if guarded is rewards else _weighted(trainer, guarded)
        figures = settings.baselined_rewards(trainer, guarded, guarded_total)
        if figures is not None:
            batch.uniform = batch.rollouts.uniform_groups(figures)
        batch.reward_sums, batch.rewarded = reward_sums, True
        return guarded

    def changes(self, trainer: Any, output: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The mode's changes to this process's batch: advantages, loss mask, denominator.

        Args:
            trainer: whose batch it is.
            output: what TRL's `_generate_and_score_completions` returned.

        Returns:
            The items to replace, each like the one it replaces; `tool_mask` may be new.
        """
        batch = self._current()
        if batch.weights is None:
            return {}
        rows = len(batch.rows_here)
        here = slice(
            trainer.accelerator.process_index * rows,
            (trainer.accelerator.process_index + 1) * rows,
        )
        changes = {"advantages": output["advantages"] * batch.weights[here]}
        if self._mode == "exclude":
            changes |= _exclude_from_loss(batch, output, here)
        return changes

    def report(self, trainer: Any) -> bool:
        """Bring the numbers to the host, in one transfer, and hand the counts on.

        Returns:
            Whether the guard of any process failed; nothing is handed on then.
        """
        batch, self._batch = self._current(), None
        rows = batch.rollouts.rows
        advantages = self._advantages(trainer, batch)
        figures = batch.rollouts.group_counts(advantages, batch.uniform)
        parts = [rows.T.flatten(), figures, batch.reward_sums]
        if advantages is not None:
            parts.append(advantages)
        # Lengths and token ids are far below 2**24, up to which float32 holds every integer.
        numbers = torch.cat([part.float() for part in parts]).cpu().numpy()
        columns = numbers[: rows.numel()].reshape(len(Column), -1).astype(np.int64)
        if columns[Column.FAILED].any():
            return True
        if batch.weights is not None and advantages is not None:
            settings.replace_logged_advantages(trainer, numbers[-len(rows) :].tolist())
        counts = tally(
            batch.rules,
            columns,
            numbers[rows.numel() :],
            step=trainer.state.global_step,
            training=batch.training,
            num_generations=batch.num_generations,
        )
        self._on_counts(trainer, counts)
        return False

    def _current(self) -> _Batch:
        if self._batch is None:
            raise RuntimeError("TRL scored completions that it did not generate in this batch")
        return self._batch

    def _advantages(self, trainer: Any, batch: _Batch) -> Tensor | None:
        """Those of all processes as the loss will use them, (rows,); None where not known."""
        rows = batch.rollouts.rows
        listed = settings.logged_advantages(trainer, len(rows)) if self._in_order else None
        if listed is None:
            return None
        advantages = torch.tensor(listed, dtype=torch.float32).to(rows.device, non_blocking=True)
        return advantages if batch.weights is None else advantages * batch.weights


def _weighted(trainer: Any, rewards: Tensor) -> Tensor:
    """TRL's one reward of each completion, (rows,) float32; NaN where unscorable."""
    total = (rewards * _reward_weights(trainer, rewards)).nansum(dim=1).float()
    return total.masked_fill(rewards.isnan().all(dim=1), torch.nan)


def _reward_weights(trainer: Any, rewards: Tensor) -> Tensor:
    weights: Tensor = trainer.reward_weights.to(rewards.device, non_blocking=True)
    return weights


def _reward_sums(rollouts: GatheredRollouts, total: Tensor) -> Tensor:
    """Sums and numbers of the rewards of each kind, unscorable completions aside, (6,) float32."""
    scored = ~total.isnan()
    terminated = rollouts.rows[:, Column.OUTCOME] == Outcome.TERMINATED
    kinds = (scored, scored & terminated, scored & rollouts.truncated)
    figures = [f for kind in kinds for f in (total.masked_fill(~kind, 0.0).sum(), kind.sum())]
    return torch.stack([figure.float() for figure in figures])


def _exclude_from_loss(
    batch: _Batch, output: Mapping[str, Tensor], here: slice
) -> dict[str, Tensor]:
    """Loss mask, denominator and old log-probabilities as if the rows had never been sampled.

    The completion mask stays: attention must be what it was when the old log-probabilities were
    taken. An excluded row's ratio is multiplied by 0, which makes NaN of an infinite one; with an
    old log-probability of 0 the ratio is exp(log-probability), at most 1.
    """
    failed = batch.rollouts.any_failed
    excluded = batch.rollouts.truncated & ~failed
    changes: dict[str, Tensor] = {}
    if "num_items_in_batch" in output:
        kept = batch.rollouts.rows[:, Column.LOSS_TOKENS].masked_fill(excluded, 0).sum()
        kept = kept.clamp(min=1)  # TRL before 1.9 divides by it as it is
        counted = output["num_items_in_batch"]
        changes["num_items_in_batch"] = torch.where(failed, counted, kept.to(counted.dtype))
    if not (batch.rows_here[:, Column.OUTCOME] == Outcome.TRUNCATED).any():
        return changes
    row = excluded[here]
    if "old_logps" in output:  # RLOO: the ratio of a whole row, and no loss mask of its own
        changes["old_logps"] = output["old_logps"].masked_fill(row, 0.0)
        return changes
    row = row.unsqueeze(1)
    if "tool_mask" in output:
        changes["tool_mask"] = output["tool_mask"].masked_fill(row, 0)
    else:
        # TRL's mask where it made none would be all ones. A view costs no memory.
        mask = output["completion_mask"]
        changes["tool_mask"] = (~row).to(mask.dtype).expand_as(mask)
    if "old_per_token_logps" in output:
        changes["old_per_token_logps"] = output["old_per_token_logps"].masked_fill(row, 0.0)
    return changes
