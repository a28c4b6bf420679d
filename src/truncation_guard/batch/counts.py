"""The counts of generation batches: what all the other pieces pass around.

The one idea: plain numbers of the host, over all processes, that add up: batches to an evaluation,
or to a whole training.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from truncation_guard.lengths.histogram import LengthHistogram, add_up


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """Groups of one generation batch, by what truncation left of them."""

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
    """Groups whose advantages are all 0 after the mode was applied; None where not measured."""
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


def _sum_known(left: int | None, right: int | None) -> int | None:
    return None if left is None or right is None else left + right
