"""The counts of generation batches: plain numbers over all processes, which add up."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from truncation_guard.batch.completion_row import (
    NOT_SEARCHED,
    Cause,
    Column,
    GenerationRules,
    Outcome,
)
from truncation_guard.batch.groups import GroupCounts, count_groups, known, uniform_groups
from truncation_guard.lengths.histogram import LengthHistogram, add_up

_Integers = NDArray[np.int64]
_Floats = NDArray[np.float32]

_CAUSE_NAMES = {
    "limit": (Cause.LIMIT,),
    "context": (Cause.CONTEXT,),
    "tool": (Cause.TOOL, Cause.TOOL_ITERATIONS),
}


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """One generation batch over all processes, or the batches of one evaluation added up."""

    step: int
    """Finished optimizer steps."""
    training: bool
    limit: int | None
    """In tokens, the lowest of all processes; None where there is none."""
    limit_name: str
    """The setting that the limit comes from."""
    context_window: int | None
    """In tokens, the shortest of all processes; None where unknown."""
    lengths: LengthHistogram
    """Of all completions. What the tool loop left unfinished stands at the limit: something other
    than its own length cut it."""
    causes: Mapping[str, int]
    """`limit`, `context`, `tool` -> completions truncated by it."""
    tool_iterations: int
    """Completions truncated because the rounds of tool calls ran out; part of `tool`."""
    stopped: int
    """Completions that ended below every limit without a stop token."""
    stopped_unasked: int
    """Those of them where nothing was asked for that could have stopped them."""
    searched: int
    """Completions, of those that did not terminate, that were searched for such a token."""
    end_of_turn: Mapping[str, int]
    """Token that looks like an end of turn and stops nothing -> searched ones that hold it."""
    stop_tokens: tuple[int, ...]
    """The tokens that generation stops at."""
    longest_prompt: int
    """Tokens of the longest that any process knows of."""
    groups: GroupCounts
    reward: float | None
    """Mean reward of all completions, as the reward functions gave it."""
    reward_terminated: float | None
    reward_truncated: float | None
    row_limit: int | None = None
    """Tokens that all turns of a completion may have together; None: the limit."""

    def __add__(self, later: "BatchCounts") -> "BatchCounts":
        """The completions of both, under the later one's limits; means are not kept."""
        return replace(
            later,
            lengths=self.lengths + later.lengths,
            causes=add_up(self.causes, later.causes),
            tool_iterations=self.tool_iterations + later.tool_iterations,
            stopped=self.stopped + later.stopped,
            stopped_unasked=self.stopped_unasked + later.stopped_unasked,
            searched=self.searched + later.searched,
            end_of_turn=add_up(self.end_of_turn, later.end_of_turn),
            longest_prompt=max(self.longest_prompt, later.longest_prompt),
            groups=self.groups + later.groups,
            reward=None,
            reward_terminated=None,
            reward_truncated=None,
        )

    @property
    def completions(self) -> int:
        """All completions."""
        return self.lengths.completions

    @property
    def truncated(self) -> int:
        """Completions that a limit cut."""
        return self.lengths.truncated

    @property
    def share(self) -> float:
        """Share of truncated completions."""
        return self.lengths.share

    @property
    def end_of_turn_share(self) -> float:
        """Share of completions that ran past an end of turn, as far as the search tells."""
        held = sum(self.end_of_turn.values()) / max(self.searched, 1)
        return held * (self.truncated + self.stopped) / self.completions

    @property
    def above_limit(self) -> int:
        """Completions longer than they may be."""
        allowed = self.limit if self.row_limit is None else self.row_limit
        return 0 if allowed is None else self.lengths.above(allowed)


@dataclass(frozen=True, slots=True)
class HostRewards:
    """The rewards of a generation batch on the host."""

    total: _Floats
    """Shape (completions,): TRL's weighted sum, as the reward functions gave it; NaN where
    unscorable."""
    baselined: _Floats | None
    """Shape (completions, kinds): what a group's advantages are 0 for where it is all the same;
    None where that is not known."""


def count_batch(
    rules: GenerationRules,
    columns: _Integers,
    rewards: HostRewards | None,
    advantages: _Floats | None,
    *,
    step: int,
    training: bool,
    num_generations: int,
) -> BatchCounts:
    """The counts of a generation batch.

    Args:
        rules: what could end its completions.
        columns: shape (number of `Column`s, completions of all processes).
        rewards: of all processes; None without any.
        advantages: shape (completions,), as the loss uses them; None where they are not known.
        step: finished optimizer steps.
        training: whether it is a batch of training.
        num_generations: completions per group.
    """
    outcome, cause = columns[Column.OUTCOME], columns[Column.CAUSE]
    end_of_turn = columns[Column.END_OF_TURN]
    stopped, truncated = outcome == Outcome.STOPPED, outcome == Outcome.TRUNCATED
    limit = _least_known(columns[Column.LIMIT])
    causes = _histogram(cause)
    means: list[float | None] = [None] * 3
    uniform = None
    with np.errstate(all="ignore"):  # a reward may be infinite
        if rewards is not None:
            scored = ~np.isnan(rewards.total)
            kinds = (scored, scored & (outcome == Outcome.TERMINATED), scored & truncated)
            means = [_mean(rewards.total[kind]) for kind in kinds]
            if rewards.baselined is not None:
                uniform = uniform_groups(rewards.baselined, num_generations)
        groups = count_groups(truncated, num_generations, advantages, uniform)
    return BatchCounts(
        step=step,
        training=training,
        limit=limit,
        limit_name=rules.limit_name,
        context_window=_least_known(columns[Column.CONTEXT_WINDOW]),
        lengths=length_histogram(columns, limit),
        causes={
            name: sum(causes[member] for member in members)
            for name, members in _CAUSE_NAMES.items()
        },
        tool_iterations=causes[Cause.TOOL_ITERATIONS],
        stopped=int(stopped.sum()),
        stopped_unasked=int((stopped & (cause == Cause.NONE)).sum()),
        searched=int((end_of_turn != NOT_SEARCHED).sum()),
        end_of_turn={
            f"{token} ({rules.end_of_turn.get(token, 'unknown here')})": count
            for token, count in _histogram(end_of_turn[end_of_turn >= 0]).items()
        },
        stop_tokens=tuple(sorted(rules.stop_token_ids)),
        longest_prompt=int(columns[Column.LONGEST_PROMPT].max()),
        groups=groups,
        row_limit=rules.row_limit,
        reward=means[0],
        reward_terminated=means[1],
        reward_truncated=means[2],
    )


def length_histogram(columns: _Integers, limit: int | None) -> LengthHistogram:
    """The lengths of the rows.

    What the tool loop left unfinished had no room for the next result, or ran out of rounds: how
    long it would be is known neither at its length nor at the limit, and it stands at the limit.

    Args:
        columns: shape (number of `Column`s, rows), int64.
        limit: in tokens; None where there is none.
    """
    length = columns[Column.LENGTH]
    is_truncated = columns[Column.OUTCOME] == Outcome.TRUNCATED
    cause = columns[Column.CAUSE]
    by_tools = (cause == Cause.TOOL) | (cause == Cause.TOOL_ITERATIONS)
    exceeded = np.where(by_tools, np.maximum(length, limit or 0), length)
    return LengthHistogram(_histogram(length[~is_truncated]), _histogram(exceeded[is_truncated]))


def _mean(rewards: _Floats) -> float | None:
    return known(rewards.sum(dtype=np.float64) / rewards.size) if rewards.size else None


def _least_known(column: _Integers) -> int | None:
    """What every process keeps to; None where none of them knows."""
    known = column[column > 0]
    return int(known.min()) if known.size else None


def _histogram(values: _Integers) -> Counter[int]:
    return Counter(values.tolist())
