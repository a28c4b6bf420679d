"""From the numbers of a batch, as they reach the host, to its counts.

The one idea: one flat transfer is taken apart here and nowhere else.
"""

from collections import Counter

import numpy as np
import numpy.typing as npt

from truncation_guard.batch.counts import BatchCounts, GroupCounts
from truncation_guard.batch.groups import GroupFigure
from truncation_guard.batch.outcomes import NOT_SEARCHED, Cause, Column, GenerationRules, Outcome
from truncation_guard.lengths.histogram import LengthHistogram

_CAUSE_NAMES = {
    "limit": (Cause.LIMIT,),
    "context": (Cause.CONTEXT,),
    "tool": (Cause.TOOL, Cause.TOOL_ITERATIONS),
}

_Integers = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float32]


def tally(
    rules: GenerationRules,
    columns: _Integers,
    rest: _Floats,
    *,
    step: int,
    training: bool,
    num_generations: int,
) -> BatchCounts:
    """The counts of a batch.

    Args:
        rules: what could end its completions.
        columns: shape (number of `Column`s, rows of all processes), int64.
        rest: the `GroupFigure`s, then sum and number of the rewards of all, terminated and
            truncated completions; what follows is not looked at. float32.
        step: finished optimizer steps.
        training: whether it is a batch of training.
        num_generations: completions per group.
    """
    length, outcome = columns[Column.LENGTH], columns[Column.OUTCOME]
    end_of_turn = columns[Column.END_OF_TURN]
    stopped = outcome == Outcome.STOPPED
    limit = _least_known(columns[Column.LIMIT])
    causes = _histogram(columns[Column.CAUSE])
    figures, sums = rest[: len(GroupFigure)], rest[len(GroupFigure) :]
    means = [_known(sums[i] / sums[i + 1]) if sums[i + 1] else None for i in (0, 2, 4)]
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
        stopped_unasked=int((stopped & (columns[Column.CAUSE] == Cause.NONE)).sum()),
        searched=int((end_of_turn != NOT_SEARCHED).sum()),
        end_of_turn={
            f"{token} ({rules.end_of_turn.get(token, 'unknown here')})": count
            for token, count in _histogram(end_of_turn[end_of_turn >= 0]).items()
        },
        stop_tokens=tuple(sorted(rules.stop_token_ids)),
        longest_prompt=int(columns[Column.LONGEST_PROMPT].max()),
        groups=_group_counts(len(length), num_generations, figures),
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
    by_tools = np.isin(columns[Column.CAUSE], (Cause.TOOL, Cause.TOOL_ITERATIONS))
    exceeded = np.where(by_tools, np.maximum(length, limit or 0), length)
    return LengthHistogram(_histogram(length[~is_truncated]), _histogram(exceeded[is_truncated]))


def _group_counts(rows: int, num_generations: int, figures: _Floats) -> GroupCounts:
    silent = _known(figures[GroupFigure.WITHOUT_SIGNAL])
    silent_and_affected = _known(figures[GroupFigure.TRUNCATED_WITHOUT_SIGNAL])
    return GroupCounts(
        groups=rows // num_generations,
        truncated=int(figures[GroupFigure.TRUNCATED]),
        all_truncated=int(figures[GroupFigure.ALL_TRUNCATED]),
        one_survivor=int(figures[GroupFigure.ONE_SURVIVOR]),
        worst=int(figures[GroupFigure.WORST]),
        size=num_generations,
        without_signal=None if silent is None else int(silent),
        truncated_without_signal=None if silent_and_affected is None else int(silent_and_affected),
        survivor_advantage_sum=_known(figures[GroupFigure.SURVIVOR_ADVANTAGE_SUM]),
    )


def _least_known(column: _Integers) -> int | None:
    """What every process keeps to; None where none of them knows."""
    known = column[column > 0]
    return int(known.min()) if known.size else None


def _known(figure: np.float32) -> float | None:
    """None for what is not known, and for what a reward of infinity makes of a mean."""
    return float(figure) if np.isfinite(figure) else None


def _histogram(values: _Integers) -> Counter[int]:
    return Counter(values.tolist())
