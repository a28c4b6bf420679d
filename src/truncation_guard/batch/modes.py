"""What each mode does to rewards, advantages and loss mask: pure tensor functions.

The one idea: a mode is two small changes around the trainer's own baseline, one to the rewards
that go into it and one to the advantages that come out of it. `guard_advantages` puts GRPO's
baseline between the two, for people who have a trainer of their own; inside TRL the baseline is
TRL's.
"""

import math
from typing import Literal

import torch
from torch import Tensor

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
