"""The row of integers that describes one completion, and the rules that it is filled by.

A generation batch of any kind is one small tensor of such rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

NOT_FOUND, NOT_SEARCHED = -1, -2


class Outcome(IntEnum):
    """How a completion ended."""

    TERMINATED = 0
    """On a stop token."""
    TRUNCATED = 1
    """A limit cut it."""
    STOPPED = 2
    """Below every limit and without a stop token."""


class Cause(IntEnum):
    """Why a completion was truncated or stopped."""

    NONE = 0
    """Terminated, or stopped for no known reason."""
    LIMIT = 1
    """`max_completion_length`."""
    CONTEXT = 2
    """Prompt and completion fill the context window."""
    TOOL = 3
    """A tool call that nobody answered, or a tool result that nobody replied to."""
    TOOL_ITERATIONS = 4
    """The same, where `max_tool_calling_iterations` ended the loop."""
    ASKED = 5
    """Stopped, and something that may stop early was asked for: stop strings, an environment."""


class Column(IntEnum):
    """Columns of a row."""

    LENGTH = 0
    """Tokens of the completion, stop token and tool tokens included, padding not."""
    LOSS_TOKENS = 1
    """Tokens that the trainer counts in its loss mask."""
    OUTCOME = 2
    CAUSE = 3
    END_OF_TURN = 4
    """An end-of-turn token that the row holds and generation does not stop at; else `NOT_FOUND`
    or, in most rows of a large batch, `NOT_SEARCHED`."""
    LONGEST_PROMPT = 5
    """Tokens of the longest prompt that the row's process knows of."""
    LIMIT = 6
    """The limit in tokens on the row's process; 0 where there is none."""
    CONTEXT_WINDOW = 7
    """Tokens that prompt and completion may have together there; 0 where unknown."""
    FAILED = 8
    """1 where the guard of the row's process failed and knows nothing of the row."""


@dataclass(frozen=True, slots=True)
class GenerationRules:
    """What can end a completion, as generation will see it."""

    stop_token_ids: frozenset[int]
    """Every token that ends a completion."""
    pad_token_id: int | None
    limit: int | None
    """Tokens a completion may have, tool tokens included; None where nothing limits it."""
    context_window: int | None
    """Tokens that prompt and completion may have together; None where unknown."""
    cuts_at_window: bool = True
    """Whether generation ends a completion there; else it goes on to the limit."""
    limit_name: str = "max_completion_length"
    """The setting that the limit comes from."""
    row_limit: int | None = None
    """Tokens that all turns of a completion may have together; None: the limit."""
    pad_prompts_to: int | None = None
    """None where prompts are not padded; else all count as the longest, rounded up to this."""
    stops_on_request: bool = False
    """Whether a completion may end early without a stop token, because that was asked for."""
    end_of_turn: Mapping[int, str] = field(default_factory=dict)
    """Special tokens by name that look like an end of turn and are no stop tokens."""
    max_tool_iterations: int | None = None
    """Rounds of tool calls that are answered; None without tools."""
