"""What each mode does to rewards, advantages, loss mask and loss scale: pure tensor functions.

A mode is two small changes around the trainer's own baseline: one to the rewards that enter it, one
to the advantages that leave it. `guard_advantages` puts GRPO's baseline between the two, for
trainers outside TRL; inside TRL the baseline is TRL's.
"""

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from truncation_guard.batch.completion_row import Column, Outcome
from truncation_guard.options import Mode, check_mode_arguments

_STD_EPSILON = 1e-4
"""Added to the standard deviation, as TRL 1.16 does."""


def guard_rewards(
    rewards: Tensor, truncated: Tensor, *, mode: Mode, truncated_reward: float = 0.0
) -> Tensor:
    """Change the rewards that go into the group's baseline.

    `exclude` turns a truncated row into NaN, which is what TRL (1.6 and later) takes for a
    completion that was never scored. `penalize` bounds each of its values from above and leaves
    NaN alone, so that a reward function that abstained still abstains.

    Args:
        rewards: shape (rows,) or (rows, reward functions), floating point.
        truncated: shape (rows,), bool.
        mode: one of `MODES`.
        truncated_reward: upper bound for `penalize`, in units of reward.

    Returns:
        Shape and dtype of `rewards`; `rewards` itself for the other modes.
    """
    rows = truncated if rewards.dim() == 1 else truncated.unsqueeze(1)
    if mode == "exclude":
        return rewards.masked_fill(rows, math.nan)
    if mode == "penalize":
        return torch.where(rows, rewards.clamp(max=truncated_reward), rewards)
    return rewards


def advantage_weights(
    truncated: Tensor,
    *,
    mode: Mode,
    truncated_weight: float = 0.0,
    loss_divides_by_rows: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Factor of each row's advantage, applied after the baseline.

    A loss that averages over rows would let excluded rows dilute the kept ones, so there the kept
    rows get rows / max(rows kept, 1). All of TRL's losses are linear in a positive factor of the
    advantages (read in TRL 1.16), so this puts their scale right.

    Args:
        truncated: shape (rows of all processes,), bool.
        mode: one of `MODES`.
        truncated_weight: factor of truncated rows in `downweight`.
        loss_divides_by_rows: whether the loss divides by rows rather than by tokens of its mask.
        dtype: of the advantages.

    Returns:
        Shape (rows,), `dtype`. 1 wherever the mode changes nothing.
    """
    weights = torch.ones(truncated.shape, dtype=dtype, device=truncated.device)
    if mode == "downweight":
        weights = weights.masked_fill(truncated, truncated_weight)
    elif mode == "exclude":
        if loss_divides_by_rows:
            weights = weights * truncated.numel() / (~truncated).sum().clamp(min=1).to(dtype)
        weights = weights.masked_fill(truncated, 0.0)
    return weights


def rows_to_guard(gathered: Tensor) -> Tensor:
    """The truncated rows, (rows of all,) bool; none where the guard of any process failed."""
    is_truncated = gathered[:, Column.OUTCOME] == Outcome.TRUNCATED
    return is_truncated & ~gathered[:, Column.FAILED].any()


def exclude_from_loss(
    gathered: Tensor, rows_here: Tensor, output: Mapping[str, Tensor], here: slice
) -> dict[str, Tensor]:
    """Loss mask, denominator and old log-probabilities as if the rows had never been sampled.

    The completion mask stays, because attention must match the old log-probabilities. The loss
    multiplies an excluded row's ratio by 0, which is NaN for an infinite ratio; an old
    log-probability of 0 makes the ratio exp(log-probability), at most 1.

    Args:
        gathered: the rows of all processes, (rows, number of `Column`s) int64 on the device.
        rows_here: this process's rows, on the CPU.
        output: this process's batch as TRL (1.16) returns it.
        here: where this process's rows are among all.

    Returns:
        The items of `output` to replace, each like the one it replaces; `tool_mask` may be new.
    """
    failed = gathered[:, Column.FAILED].any()
    excluded = rows_to_guard(gathered)
    changes: dict[str, Tensor] = {}
    if "num_items_in_batch" in output:
        kept = gathered[:, Column.LOSS_TOKENS].masked_fill(excluded, 0).sum()
        kept = kept.clamp(min=1)  # TRL before 1.9 divides by it unclamped
        counted = output["num_items_in_batch"]
        changes["num_items_in_batch"] = torch.where(failed, counted, kept.to(counted.dtype))
    if not (rows_here[:, Column.OUTCOME] == Outcome.TRUNCATED).any():
        return changes
    row = excluded[here]
    if "old_logps" in output:  # RLOO: the ratio of a whole row, and no loss mask of its own
        changes["old_logps"] = output["old_logps"].masked_fill(row, 0.0)
        return changes
    row = row.unsqueeze(1)
    if "tool_mask" in output:
        changes["tool_mask"] = output["tool_mask"].masked_fill(row, 0)
    else:
        # Where TRL made no mask, it would be all ones. A view costs no memory.
        mask = output["completion_mask"]
        changes["tool_mask"] = (~row).to(mask.dtype).expand_as(mask)
    if "old_per_token_logps" in output:
        changes["old_per_token_logps"] = output["old_per_token_logps"].masked_fill(row, 0.0)
    return changes


def guard_advantages(
    rewards: Tensor,
    truncated: Tensor,
    num_generations: int,
    *,
    mode: Mode,
    truncated_weight: float = 0.0,
    truncated_reward: float = 0.0,
    scale_rewards: Literal["group", "batch", "none"] = "group",
) -> tuple[Tensor, Tensor]:
    """Advantages of GRPO in which truncated completions do not poison their group.

    The baseline is GRPO's (DeepSeekMath, arXiv:2402.03300) as TRL 1.16 computes it: reward minus
    the group's mean, divided by the standard deviation (n - 1 in the denominator) plus 1e-4. Rows
    whose reward is NaN stay out of mean and deviation and get advantage 0.

    For a loss that divides by rows rather than by the tokens it keeps, multiply the advantages by
    rows / max(rows kept, 1) where `mode="exclude"`.

    Args:
        rewards: shape (rows,), one number per completion, NaN where unscorable; groups are
            `num_generations` consecutive rows.
        truncated: shape (rows,), bool.
        num_generations: completions per group.
        mode: `"observe"`, `"downweight"`, `"exclude"` or `"penalize"`.
        truncated_weight: in [0, 1], the factor of truncated rows in `downweight`.
        truncated_reward: highest reward that a truncated row keeps in `penalize`.
        scale_rewards: what the deviation is taken over; `"none"` does not divide.

    Returns:
        `advantages`, shape (rows,), dtype of `rewards` (float32 where that is no float), and
        `keep`, shape (rows,), bool: the rows that stay in the loss mask and its denominator.

    Raises:
        ValueError: for arguments outside of the ranges above.

    Examples:
        >>> rewards = torch.tensor([1.0, 0.0, 0.0, 0.0])
        >>> truncated = torch.tensor([False, False, True, True])
        >>> advantages, keep = guard_advantages(rewards, truncated, 4, mode="exclude")
        >>> [round(a, 4) for a in advantages.tolist()], keep.tolist()
        ([0.707, -0.707, 0.0, 0.0], [True, True, False, False])
    """
    check_mode_arguments(mode, truncated_weight, truncated_reward)
    if scale_rewards not in ("group", "batch", "none"):
        raise ValueError(
            f"`scale_rewards` must be 'group', 'batch' or 'none', got {scale_rewards!r}."
        )
    if rewards.dim() != 1 or rewards.shape != truncated.shape:
        raise ValueError(
            "`rewards` and `truncated` must both have shape (rows,), got "
            f"{tuple(rewards.shape)} and {tuple(truncated.shape)}. "
            "Sum the reward functions before the call."
        )
    if num_generations < 1 or rewards.numel() % num_generations:
        raise ValueError(
            f"`num_generations` must divide the {rewards.numel()} rows, got {num_generations!r}. "
            "Pass the rows of all processes, whole groups of them."
        )
    if not rewards.is_floating_point():
        rewards = rewards.float()
    truncated = truncated.bool()
    guarded = guard_rewards(rewards, truncated, mode=mode, truncated_reward=truncated_reward)
    advantages = _group_relative_advantages(guarded, num_generations, scale_rewards)
    weights = advantage_weights(
        truncated, mode=mode, truncated_weight=truncated_weight, dtype=advantages.dtype
    )
    keep = ~truncated if mode == "exclude" else torch.ones_like(truncated)
    return advantages * weights, keep


def _group_relative_advantages(rewards: Tensor, num_generations: int, scale_rewards: str) -> Tensor:
    groups = rewards.view(-1, num_generations)
    advantages = groups - groups.nanmean(dim=1, keepdim=True)
    if scale_rewards == "group":
        advantages = advantages / (_nanstd(groups) + _STD_EPSILON)
    elif scale_rewards == "batch":
        advantages = advantages / (_nanstd(rewards.view(1, -1)) + _STD_EPSILON)
    return advantages.view(-1).nan_to_num(nan=0.0)


def _nanstd(values: Tensor) -> Tensor:
    """Deviation of each row of `values` over its numbers, (rows, 1); NaN for fewer than two."""
    count = (~values.isnan()).sum(dim=1, keepdim=True)
    squares = (values - values.nanmean(dim=1, keepdim=True)).square().nansum(dim=1, keepdim=True)
    return (squares / (count - 1)).sqrt()
