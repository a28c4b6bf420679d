"""A run in one form for every source; an unknown figure is None."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from truncation_guard.lengths.sample import LengthSample

SourceKind = Literal["record", "trainer_state", "tables", "log"]
Standing = Literal["at", "open", "alone", "between", "doubtful"]
"""How well the limit of an entry is known.

`at`: the limit. `open`: none is recorded, and none shows in the lengths of the entries around it.
`alone`: likewise, of a single entry. `between`: it changed within this entry or next to it.
`doubtful`: all completions have one short length, which may be the limit or not.
"""

NEARLY_ALL = 0.999
"""Four printed digits of a length do not tell it from all."""
PRINTED = 0.005
"""The error that four printed digits may leave in a share."""
_TOO_FEW_TERMINATED = 0.95
"""Above it, four printed digits of the mean length do not tell the length of the few others."""


@dataclass(frozen=True, slots=True)
class EntryLimit:
    """The limit that an entry was written under, if known."""

    tokens: int | None
    how: Standing
    assumed: bool = False
    """Whether it is inferred from the lengths."""
    reached: bool = True
    """Whether a fifth of the entries under it have a completion of its length."""
    least: float | None = None
    """The longest completion nearby, where the limit is unknown: the limit is no shorter."""


@dataclass(slots=True)
class LogEntry:
    """One entry of a log, or one generation batch of the guard's record.

    Figures of a log entry are means over the generation batches since the entry before; None where
    nothing was measured.
    """

    step: float | None = None
    """Finished optimizer steps."""
    epoch: float | None = None
    completions: int | None = None
    """Their number; only the record has it."""
    truncated: float | None = None
    """Share that a limit cut, by the guard."""
    elsewhere: float | None = None
    """Share cut by the context window or the tool loop, by the guard; part of `truncated`."""
    stopped: float | None = None
    """Share that ended below every limit without a stop token, by the guard."""
    ratio: float | None = None
    """TRL's `completions/clipped_ratio`: share whose last token is no stop token that TRL knows."""
    mean_length: float | None = None
    min_length: float | None = None
    """The mean of the batches' shortest."""
    max_length: float | None = None
    """The mean of the batches' longest."""
    ended_length: float | None = None
    """Mean length of the finished ones; only the record has it."""
    reward: float | None = None
    """The mean that the reward functions gave, by the guard; without one, TRL's."""
    reward_std: float | None = None
    silent_groups: float | None = None
    """Share of groups whose advantages are all 0, or whose rewards are all equal."""
    function_means: tuple[float, float] | None = None
    """The lowest and the highest mean of a reward function, penalties aside."""
    limit: int | None = None
    """In tokens; None unless one limit is recorded for the whole entry."""
    logged_limit: float | None = None
    """The guard's metric: the mean of the batches' limits."""
    under: EntryLimit | None = None
    """Set by `limit_history`."""

    @property
    def longest(self) -> float | None:
        """The longest known length; before TRL 0.17 that is the mean."""
        return self.mean_length if self.max_length is None else self.max_length

    @property
    def unfinished(self) -> float | None:
        """Truncated share: the guard's, else TRL's ratio."""
        return self.ratio if self.truncated is None else self.truncated

    def terminated_length(self, limit: int | None) -> float | None:
        """Mean length in tokens of the terminated completions, corrected.

        TRL counts 0 for a batch without any. If every truncated completion is as long as the limit,
        the mean is (mean - ratio * limit) / (1 - ratio).

        Args:
            limit: the length at which the others were truncated.

        Returns:
            None if none terminated, or the mean cannot be known.
        """
        if self.ended_length is not None:
            return self.ended_length
        share, mean = self.unfinished, self.mean_length
        if share is None or mean is None or share == 1.0:
            return None
        if share == 0.0:
            return mean
        if limit is None or self.stopped or self.elsewhere or share > _TOO_FEW_TERMINATED:
            return None
        length = (mean - share * limit) / (1 - share)
        return length if 1 <= length <= limit else None


Figure = Callable[[LogEntry], float | None]


@dataclass(slots=True)
class RunTrace:
    """A run, from one source or several."""

    source: SourceKind
    path: str
    """The file or folder that the entries are from."""
    training: list[LogEntry] = field(default_factory=list)
    evaluation: list[LogEntry] = field(default_factory=list)
    steps_known: bool = True
    """False where a log does not give its steps, so that its entries are numbered."""
    limit: int | None = None
    """The last recorded limit in tokens."""
    mode: str | None = None
    """The guard's mode, if recorded."""
    truncated_weight: float | None = None
    """The guard's, if recorded."""
    guarded: bool = False
    switched_off: float | None = None
    """The last step before an error switched the guard off."""
    masked: bool | None = None
    """TRL's `mask_truncated_completions`, if recorded."""
    warned: Mapping[str, int] | None = None
    """Code -> number of WARN lines, or 1 where only the code is recorded."""
    sample: LengthSample | None = None
    """The lengths of the last part of the training."""
    with_tools: bool = False
    broken: bool = False
    """Whether the file breaks off."""
    notes: list[str] = field(default_factory=list)

    @property
    def limits(self) -> tuple[int, ...]:
        """The recorded limits of the training, in their order."""
        return tuple(
            dict.fromkeys(entry.limit for entry in self.training if entry.limit is not None)
        )
