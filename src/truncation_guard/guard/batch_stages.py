"""The stages of one generation batch: begin, generated, rewarded, scored.

From the gathered rows on every process holds the same numbers on its device, so a mode changes the
same things everywhere without another collective. The host sees the numbers once, at the end.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from truncation_guard.batch.completion_row import Column, GenerationRules
from truncation_guard.batch.counts import BatchCounts, HostRewards, count_batch
from truncation_guard.batch.host_transfer import to_host
from truncation_guard.batch.modes import (
    advantage_weights,
    exclude_from_loss,
    guard_rewards,
    rows_to_guard,
)
from truncation_guard.batch.outcomes import describe_completions
from truncation_guard.options import GuardOptions
from truncation_guard.trainer import settings


@dataclass(slots=True)
class _Batch:
    """The generation batch that is being made."""

    training: bool
    num_generations: int
    rules: GenerationRules
    rows_here: Tensor
    """This process's rows, on the CPU."""
    rewards: Tensor | None = None
    """The rewards of all processes as the functions gave them."""
    guarded: Tensor | None = None
    """The same as TRL goes on with them."""
    weights: Tensor | None = None
    """Factor of each advantage, (rows of all processes,); None where the mode does nothing."""


class BatchStages:
    """Measures each generation batch and applies the mode to those of training.

    The gathered rows that some stages take have shape (rows of all processes, number of `Column`s),
    int64, on the device, in the trainer's order.

    Args:
        options: `mode` is the one in effect.
        in_order: whether the rows of TRL's batch are in the order of the rollouts.
        longest_prompt: tokens of the longest prompt of the data, as far as this process knows.
    """

    def __init__(self, options: GuardOptions, *, in_order: bool, longest_prompt: int) -> None:
        self._options = options
        self._in_order = in_order
        self._longest_prompt = longest_prompt
        self._training = False
        self._batch: _Batch | None = None

    def begin(self, trainer: Any) -> None:
        """A generation batch is about to be made."""
        # TRL decides at this moment too; generation itself may flip the model's flag.
        self._training = bool(trainer.model.training)

    def generated(self, trainer: Any, generated: tuple[Any, ...]) -> Tensor:
        """This process's rows, (rows, number of `Column`s) int64 on the CPU.

        Args:
            trainer: the trainer of the batch.
            generated: the result of TRL's `_generate`. Its first items are prompt ids, completion
                ids, tool mask and completions in GRPO; RLOO has no mask.
        """
        prompt_ids, completion_ids, *more = generated
        tool_masks, completions = more[:2] if len(more) > 1 else (None, more[0])
        rules = settings.generation_rules(trainer)
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
            num_generations=settings.get_num_generations(trainer, training=self._training),
            rules=rules,
            rows_here=rows,
        )
        return rows

    def rewarded(self, trainer: Any, gathered: Tensor, rewards: Tensor) -> Tensor:
        """The mode's change to the rewards of all processes, (rows of all, reward functions).

        The factors of the advantages are computed here too, so that a fault leaves the whole batch
        as it was.
        """
        batch, options = self._current(), self._options
        if batch.rewards is not None:  # a wrapper around the wrapper calls twice
            return rewards
        guarded, weights = rewards, None
        if batch.training and options.mode != "observe":
            truncated = rows_to_guard(gathered)
            guarded = guard_rewards(
                rewards, truncated, mode=options.mode, truncated_reward=options.truncated_reward
            )
            if options.mode == "penalize":
                # A function with a negative weight is a penalty itself: a bound would lift it.
                reward_weights = trainer.reward_weights.to(rewards.device, non_blocking=True)
                guarded = torch.where(reward_weights < 0, rewards, guarded)
            weights = advantage_weights(
                truncated,
                mode=options.mode,
                truncated_weight=options.truncated_weight,
                loss_divides_by_rows=settings.loss_divides_by_rows(trainer),
            )
        batch.rewards, batch.guarded, batch.weights = rewards, guarded, weights
        return guarded

    def scored(
        self, trainer: Any, gathered: Tensor, output: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """The mode's changes to this process's batch: advantages, loss mask, denominator.

        Args:
            trainer: the trainer of the batch.
            gathered: the rows of all processes.
            output: the result of TRL's `_generate_and_score_completions`.

        Returns:
            The items to replace, each like the one it replaces; `tool_mask` may be new.
        """
        batch = self._current()
        if batch.weights is None:
            return {}
        rows = len(batch.rows_here)
        first = trainer.accelerator.process_index * rows
        here = slice(first, first + rows)
        changes = {"advantages": output["advantages"] * batch.weights[here]}
        if self._options.mode == "exclude":
            changes |= exclude_from_loss(gathered, batch.rows_here, output, here)
        return changes

    def counted(self, trainer: Any, gathered: Tensor) -> BatchCounts | None:
        """The counts of the batch, by one transfer to the host.

        Returns:
            None where the guard of any process failed.
        """
        batch, self._batch = self._current(), None
        tensors = {"rows": gathered.T, "rewards": batch.rewards, "weights": batch.weights}
        if batch.guarded is not batch.rewards:
            tensors["guarded"] = batch.guarded
        arrays = to_host(**{name: given for name, given in tensors.items() if given is not None})
        columns = arrays["rows"].astype(np.int64)
        if columns[Column.FAILED].any():
            return None
        advantages = self._advantages(trainer, columns.shape[1], arrays.get("weights"))
        return count_batch(
            batch.rules,
            columns,
            _rewards(trainer, arrays),
            advantages,
            step=trainer.state.global_step,
            training=batch.training,
            num_generations=batch.num_generations,
        )

    def _current(self) -> _Batch:
        if self._batch is None:
            raise RuntimeError("TRL scored completions that it did not generate in this batch")
        return self._batch

    def _advantages(
        self, trainer: Any, rows: int, weights: NDArray[np.float32] | None
    ) -> NDArray[np.float32] | None:
        """Those of all processes as the loss uses them, which TRL's log shows from now on.

        Shape (rows,); None where they are not known.
        """
        listed = settings.logged_advantages(trainer, rows) if self._in_order else None
        if listed is None:
            return None
        advantages = np.array(listed, dtype=np.float32)
        if weights is None:
            return advantages
        advantages = advantages * weights
        settings.replace_logged_advantages(trainer, advantages.tolist())
        return advantages


def _rewards(trainer: Any, arrays: Mapping[str, NDArray[np.float32]]) -> HostRewards | None:
    if "rewards" not in arrays:
        return None
    rewards = arrays["rewards"]
    total = settings.total_rewards(trainer, rewards)
    guarded, guarded_total = rewards, total
    if "guarded" in arrays:
        guarded = arrays["guarded"]
        guarded_total = settings.total_rewards(trainer, guarded)
    return HostRewards(total, settings.baselined_rewards(trainer, guarded, guarded_total))
