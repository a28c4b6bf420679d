"""What a profile of rollouts says of the completions that did not terminate."""

from __future__ import annotations

import numpy as np
import pytest

from truncation_guard.batch.completion_row import (
    NOT_SEARCHED,
    Cause,
    Column,
    GenerationRules,
    Outcome,
)
from truncation_guard.profiling.rollouts.profile_notes import rollout_notes

RULES = GenerationRules(
    stop_token_ids=frozenset({1}),
    pad_token_id=0,
    limit=24,
    context_window=64,
    end_of_turn={2: "<eot>", 9: "<end>"},
)
ENDED = (Outcome.TERMINATED, Cause.NONE, NOT_SEARCHED)


def truncated(cause, token=NOT_SEARCHED):
    return (Outcome.TRUNCATED, cause, token)


@pytest.mark.parametrize(
    ("outcomes", "notes"),
    [
        ([ENDED, ENDED], []),
        ([ENDED, truncated(Cause.LIMIT)], ["1 of 2 completions had not ended at 24 tokens."]),
        (
            [truncated(Cause.CONTEXT)] * 3,
            ["3 of 3 completions filled the context window of 64 tokens before they ended."],
        ),
        (
            [ENDED, truncated(Cause.TOOL), truncated(Cause.TOOL_ITERATIONS)],
            ["2 of 3 completions were cut short at a tool call."],
        ),
        (
            [ENDED, (Outcome.STOPPED, Cause.ASKED, NOT_SEARCHED)],
            [
                "1 of 2 completions were stopped without a stop token, below every limit; they "
                "count as ended."
            ],
        ),
        (
            [truncated(Cause.LIMIT, 9), truncated(Cause.LIMIT, 2), truncated(Cause.LIMIT, 9)],
            [
                "3 of 3 completions had not ended at 24 tokens.",
                "At least 1 completions that did not terminate hold <eot> (id 2), at which "
                "generation does not stop. If that "
                "is the end of a turn, add it to model.generation_config.eos_token_id.",
                "At least 2 completions that did not terminate hold <end> (id 9), at which "
                "generation does not stop. If that "
                "is the end of a turn, add it to model.generation_config.eos_token_id.",
            ],
        ),
    ],
)
def test_each_kind_has_its_sentence(outcomes, notes):
    rows = np.zeros((len(outcomes), len(Column)), dtype=np.int64)
    rows[:, [Column.OUTCOME, Column.CAUSE, Column.END_OF_TURN]] = outcomes
    assert rollout_notes(rows, RULES) == notes
