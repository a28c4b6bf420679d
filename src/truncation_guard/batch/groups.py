"""Groups of completions over all processes, and what truncation leaves of them.

Groups are consecutive completions of the gathered order, so a group that straddles processes is
nothing special.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """The groups of one generation batch, or of several added up."""

    groups: int
    truncated: int
    """Groups with at least one truncated completion."""
    all_truncated: int
    one_survivor: int
    """Groups with exactly one completion that was not truncated."""
    worst: int
    """Truncated completions of the most affected group."""
    size: int
    """Completions per group."""
    without_signal: int | None
    """Groups whose advantages are all 0 in the loss; None where not measured."""
    truncated_without_signal: int | None
    """Those of them with a truncated completion."""
    survivor_advantage_sum: float | None
    """Over the groups with truncation, the mean of the sum of the survivors' advantages."""

    def __add__(self, other: "GroupCounts") -> "GroupCounts":
        """The groups of both; means are not kept."""
        return GroupCounts(
            groups=self.groups + other.groups,
            truncated=self.truncated + other.truncated,
            all_truncated=self.all_truncated + other.all_truncated,
            one_survivor=self.one_survivor + other.one_survivor,
            worst=max(self.worst, other.worst),
            size=other.size,
            without_signal=_sum_known(self.without_signal, other.without_signal),
            truncated_without_signal=_sum_known(
                self.truncated_without_signal, other.truncated_without_signal
            ),
            survivor_advantage_sum=None,
        )


def count_groups(
    truncated: NDArray[np.bool_],
    num_generations: int,
    advantages: NDArray[np.float32] | None,
    uniform: NDArray[np.bool_] | None = None,
) -> GroupCounts:
    """Count the groups of a generation batch.

    Args:
        truncated: shape (completions,).
        num_generations: completions per group.
        advantages: shape (completions,), as the loss uses them; None where they are not known.
        uniform: shape (groups,): the groups whose rewards are all the same, so that advantages
            other than 0 are rounding; None where that is not known.
    """
    cut = truncated.reshape(-1, num_generations)
    per_group = cut.sum(axis=1)
    affected = per_group > 0
    silent = silent_and_affected = survivors = None
    if advantages is not None:
        grouped = advantages.reshape(-1, num_generations)
        is_silent = (grouped == 0).all(axis=1)
        if uniform is not None:
            is_silent |= uniform
        silent, silent_and_affected = int(is_silent.sum()), int((is_silent & affected).sum())
        if affected.any():
            kept = np.where(cut | ~affected[:, None], 0.0, grouped)
            survivors = known(kept.sum() / affected.sum())
    return GroupCounts(
        groups=len(per_group),
        truncated=int(affected.sum()),
        all_truncated=int((per_group == num_generations).sum()),
        one_survivor=int((per_group == num_generations - 1).sum()),
        worst=int(per_group.max()),
        size=num_generations,
        without_signal=silent,
        truncated_without_signal=silent_and_affected,
        survivor_advantage_sum=survivors,
    )


def uniform_groups(rewards: NDArray[np.float32], num_generations: int) -> NDArray[np.bool_]:
    """The groups whose scored completions all have the same rewards, shape (groups,).

    Args:
        rewards: shape (completions, kinds of reward), NaN where unscorable.
        num_generations: completions per group.
    """
    grouped = rewards.reshape(-1, num_generations, rewards.shape[1])
    unscorable = np.isnan(grouped)
    lowest = np.where(unscorable, np.inf, grouped).min(axis=1)
    highest = np.where(unscorable, -np.inf, grouped).max(axis=1)
    return np.asarray((lowest >= highest).all(axis=1))


def known(figure: float | np.floating) -> float | None:
    """None for a mean that a reward of infinity has made infinite or NaN."""
    return float(figure) if np.isfinite(figure) else None


def _sum_known(left: int | None, right: int | None) -> int | None:
    return None if left is None or right is None else left + right
