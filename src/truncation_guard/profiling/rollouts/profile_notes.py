"""The notes of a profile of rollouts.

A completion that did not end points at the limit, the window, a tool or a stop token, and each has
another remedy.
"""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from truncation_guard.batch.completion_row import Cause, Column, GenerationRules, Outcome


def rollout_notes(rows: NDArray[np.int64], rules: GenerationRules) -> list[str]:
    """Sentences on the completions that did not terminate.

    Args:
        rows: (completions, columns), of all processes.
        rules: what could end a completion.
    """
    columns = rows.T
    causes = Counter(columns[Column.CAUSE][columns[Column.OUTCOME] == Outcome.TRUNCATED].tolist())
    stopped = int((columns[Column.OUTCOME] == Outcome.STOPPED).sum())
    tokens = Counter(columns[Column.END_OF_TURN][columns[Column.END_OF_TURN] >= 0].tolist())
    limit, window = causes[Cause.LIMIT], causes[Cause.CONTEXT]
    tools = causes[Cause.TOOL] + causes[Cause.TOOL_ITERATIONS]
    total = len(rows)
    notes = []
    if limit:
        notes.append(f"{limit} of {total} completions had not ended at {rules.limit} tokens.")
    if window:
        notes.append(
            f"{window} of {total} completions filled the context window of {rules.context_window} "
            "tokens before they ended."
        )
    if tools:
        notes.append(f"{tools} of {total} completions were cut short at a tool call.")
    if stopped:
        notes.append(
            f"{stopped} of {total} completions were stopped without a stop token, below every "
            "limit; they count as ended."
        )
    notes += [
        f"At least {count} completions that did not terminate hold {rules.end_of_turn[token]} "
        f"(id {token}), at which generation does not stop. If that is the end of a turn, add it to "
        "model.generation_config.eos_token_id."
        for token, count in sorted(tokens.items())
    ]
    return notes
