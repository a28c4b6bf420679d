from __future__ import annotations

import numpy as np
import pytest

from truncation_guard.batch.groups import GroupFigure
from truncation_guard.batch.outcomes import NOT_SEARCHED, Cause, Column, GenerationRules, Outcome
from truncation_guard.batch.tally import tally

ROWS = [
    (30, Outcome.TERMINATED, Cause.NONE),
    (64, Outcome.TERMINATED, Cause.NONE),
    (64, Outcome.TRUNCATED, Cause.LIMIT),
    (40, Outcome.TRUNCATED, Cause.CONTEXT),
    (20, Outcome.TRUNCATED, Cause.TOOL),
    (10, Outcome.TRUNCATED, Cause.TOOL_ITERATIONS),
    (15, Outcome.STOPPED, Cause.ASKED),
    (16, Outcome.STOPPED, Cause.NONE),
]


@pytest.mark.parametrize(
    ("limit", "cut"),
    [
        # What the tool loop left unfinished stands at the limit, whatever its own length is.
        (64, {64: 3, 40: 1}),
        (15, {64: 1, 40: 1, 20: 1, 15: 1}),
        (None, {64: 1, 40: 1, 20: 1, 10: 1}),
    ],
)
def test_every_row_is_counted_by_outcome_cause_and_length(
    limit: int | None, cut: dict[int, int]
) -> None:
    columns = np.zeros((len(Column), len(ROWS)), dtype=np.int64)
    columns[[Column.LENGTH, Column.OUTCOME, Column.CAUSE]] = np.array(ROWS).T
    columns[Column.END_OF_TURN] = NOT_SEARCHED
    # The processes do not agree: what each of them keeps to is the least.
    columns[Column.LIMIT] = [limit or 0] * 4 + [100 if limit else 0] * (len(ROWS) - 4)
    columns[Column.CONTEXT_WINDOW] = [0] * 2 + [128] * (len(ROWS) - 3) + [120]
    columns[Column.LONGEST_PROMPT] = range(len(ROWS))
    rules = GenerationRules(
        stop_token_ids=frozenset({1}), pad_token_id=0, limit=77, context_window=200
    )
    rest = np.zeros(len(GroupFigure) + 6, dtype=np.float32)
    rest[-6:] = [4, 8, 2, 2, 0, 0]
    counts = tally(rules, columns, rest, step=3, training=True, num_generations=4)
    assert counts.lengths.finished_at == {30: 1, 64: 1, 15: 1, 16: 1}
    assert counts.lengths.truncated_at == cut
    assert counts.causes == {"limit": 1, "context": 1, "tool": 2}
    assert counts.tool_iterations == 1
    assert (counts.stopped, counts.stopped_unasked, counts.searched) == (2, 1, 0)
    assert (counts.reward, counts.reward_terminated, counts.reward_truncated) == (0.5, 1.0, None)
    assert (counts.step, counts.limit, counts.groups.groups) == (3, limit, 2)
    assert (counts.context_window, counts.longest_prompt) == (120, len(ROWS) - 1)
