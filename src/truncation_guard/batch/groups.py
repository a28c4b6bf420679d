"""The completions of all processes, and what truncation left of their groups.

The one idea: groups are consecutive rows of the gathered order, so they are counted on the device
where the rows are, and a group that straddles processes is nothing special.
"""

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from truncation_guard.batch.outcomes import Column, Outcome


class GroupFigure(IntEnum):
    """What `GatheredRollouts.group_counts` counts: see `counts.GroupCounts` for the meanings."""

    TRUNCATED = 0
    ALL_TRUNCATED = 1
    ONE_SURVIVOR = 2
    WORST = 3
    WITHOUT_SIGNAL = 4
    TRUNCATED_WITHOUT_SIGNAL = 5
    SURVIVOR_ADVANTAGE_SUM = 6


@dataclass(frozen=True, slots=True)
class GatheredRollouts:
    """One generation batch, all processes, on the trainer's device."""

    rows: Tensor
    """Shape (rows of all processes, number of columns), int64, in the trainer's order."""
    num_generations: int
    """Completions per group; groups are consecutive rows."""

    @property
    def truncated(self) -> Tensor:
        """Shape (rows,), bool."""
        return self.rows[:, Column.OUTCOME] == Outcome.TRUNCATED

    @property
    def any_failed(self) -> Tensor:
        """Whether the guard of any process failed: a bool scalar, still on the device."""
        return self.rows[:, Column.FAILED].any()

    def group_counts(self, advantages: Tensor | None, uniform: Tensor | None = None) -> Tensor:
        """What truncation left of the groups.

        Args:
            advantages: shape (rows,), as the loss will use them; None where they are not known.
            uniform: shape (groups,), bool: the groups whose rewards are all the same, so that
                advantages other than 0 are rounding; None where that cannot be said.

        Returns:
            Shape (number of `GroupFigure`s,), float32, on the device. The figures that need
            advantages are NaN without them.
        """
        truncated = self.truncated.view(-1, self.num_generations)
        per_group = truncated.sum(dim=1)
        affected = per_group > 0
        silent = silent_and_affected = survivors = torch.full(
            (), torch.nan, device=per_group.device
        )
        if advantages is not None:
            grouped = advantages.float().view(-1, self.num_generations)
            is_silent = (grouped == 0).all(dim=1)
            if uniform is not None:
                is_silent = is_silent | uniform
            silent, silent_and_affected = is_silent.sum(), (is_silent & affected).sum()
            # No group with truncation gives 0 / 0: NaN, not known.
            others = grouped.masked_fill(truncated | ~affected.unsqueeze(1), 0.0)
            survivors = others.sum() / affected.sum()
        figures = {
            GroupFigure.TRUNCATED: affected.sum(),
            GroupFigure.ALL_TRUNCATED: (per_group == self.num_generations).sum(),
            GroupFigure.ONE_SURVIVOR: (per_group == self.num_generations - 1).sum(),
            GroupFigure.WORST: per_group.max(),
            GroupFigure.WITHOUT_SIGNAL: silent,
            GroupFigure.TRUNCATED_WITHOUT_SIGNAL: silent_and_affected,
            GroupFigure.SURVIVOR_ADVANTAGE_SUM: survivors,
        }
        return torch.stack([figures[figure].float() for figure in GroupFigure])

    def uniform_groups(self, rewards: Tensor) -> Tensor:
        """The groups whose scored completions all have the same rewards, (groups,) bool.

        Args:
            rewards: shape (rows, kinds of reward), NaN where unscorable.
        """
        grouped = rewards.view(-1, self.num_generations, rewards.shape[1])
        lowest = grouped.nan_to_num(nan=torch.inf, posinf=torch.inf).amin(dim=1)
        highest = grouped.nan_to_num(nan=-torch.inf, neginf=-torch.inf).amax(dim=1)
        return (lowest >= highest).all(dim=1)
