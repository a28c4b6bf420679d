"""Whether a `trainer_state.json` beside the guard's record is of its run, and what it adds.

The guard logs the means of what it records, so the figures tell which run a state is of. Step
numbers do not: a folder may hold several runs.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import isclose
from statistics import fmean

from truncation_guard.diagnosis.run import LogEntry, RunTrace

_ROUNDING = 1e-6


def is_of_run(record: RunTrace, state: RunTrace) -> bool:
    """Whether the state logged what the record holds.

    Half of the entries with recorded batches have to agree, not all: a run that resumes from a
    checkpoint does not log the batches between the last entry before it and the checkpoint.
    """
    recorded = [entry.step or 0.0 for entry in record.training]
    agree: list[bool] = []
    for entry, (start, end) in zip(state.training, pairwise([0.0, *_steps(state)]), strict=True):
        # A batch counts the steps that were finished before it, an entry its own as well.
        batches = record.training[bisect_left(recorded, start) : bisect_left(recorded, end)]
        if batches:
            agree.append(_agrees(entry, batches))
    return any(agree) and 2 * sum(agree) >= len(agree)


def goes_on(record: RunTrace, state: RunTrace) -> bool:
    """Whether the last entry of the state is of batches that the record does not have."""
    *_, before, _ = [0.0, 0.0, *_steps(state)]
    return (record.training[-1].step or 0.0) < before


def add_state(record: RunTrace, state: RunTrace) -> None:
    """Add to a record what only the state of its run knows."""
    record.warned = state.warned
    steps = _steps(state)
    # The record holds the sum of the rewards, the state each function's: those of that time.
    for entry in record.training:
        place = min(bisect_right(steps, entry.step or 0.0), len(steps) - 1)
        entry.function_means = state.training[place].function_means
    first = record.training[0].step or 0.0
    if before := bisect_right(steps, first):
        record.notes.append(
            f"The record begins at step {first:g}: {before} earlier entries of {state.path} are "
            "left out."
        )


def _steps(state: RunTrace) -> list[float]:
    return list(accumulate((entry.step or 0.0 for entry in state.training), max))


def _agrees(entry: LogEntry, batches: Sequence[LogEntry]) -> bool:
    """Whether an entry holds the means of these batches."""
    rewards = [batch.reward for batch in batches if batch.reward is not None]
    return (
        entry.truncated is not None
        and _is_mean(entry.truncated, [batch.truncated or 0.0 for batch in batches])
        and (entry.reward is None or not rewards or _is_mean(entry.reward, rewards))
    )


def _is_mean(logged: float, recorded: Sequence[float]) -> bool:
    return isclose(logged, fmean(recorded), rel_tol=_ROUNDING, abs_tol=_ROUNDING)
