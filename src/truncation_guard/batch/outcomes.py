"""How each completion of a generation batch ended: one row of integers for each."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from truncation_guard.batch.completion_row import (
    NOT_FOUND,
    NOT_SEARCHED,
    Cause,
    Column,
    GenerationRules,
    Outcome,
)
from truncation_guard.marks_for_tests import outside_barrier

_Integers = NDArray[np.int64]

_LARGEST_INTEGER = 2**24
"""Of those that float32 holds one by one: what is said to have no bound may be beyond it."""
_SEARCHED_ROWS = 8
"""Rows that each process searches for an unknown end of turn: a search reads every token."""


def detect_truncated(
    completion_ids: Tensor,
    completion_mask: Tensor,
    stop_token_ids: int | Collection[int],
    max_completion_length: int,
) -> Tensor:
    """Which completions a limit cut off.

    A completion is truncated when its last token is no stop token and its length reaches the
    limit, or when it is empty. A shorter one that does not end on a stop token was stopped by
    something else (a stop string, an environment) and is not truncated.

    Args:
        completion_ids: shape (rows, tokens), integers, padded on the right.
        completion_mask: shape (rows, tokens), nonzero on the tokens that the model wrote. The
            length runs to the last of them, so zeros in between (tool results) count.
        stop_token_ids: every token that ends a completion; one alone as it is.
        max_completion_length: the limit in tokens.

    Returns:
        Shape (rows,), bool, on the device of `completion_ids`.

    Raises:
        ValueError: if the shapes differ, or the limit is below 1.

    Examples:
        >>> ids = torch.tensor([[5, 6, 1, 0], [5, 6, 7, 8]])
        >>> mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
        >>> detect_truncated(ids, mask, {1}, 4).tolist()
        [False, True]
    """
    if completion_ids.dim() != 2 or completion_ids.shape != completion_mask.shape:
        raise ValueError(
            "`completion_ids` and `completion_mask` must both have shape (rows, tokens), got "
            f"{tuple(completion_ids.shape)} and {tuple(completion_mask.shape)}."
        )
    if max_completion_length < 1:
        raise ValueError(
            f"`max_completion_length` must be at least 1 token, got {max_completion_length!r}."
        )
    stops = {stop_token_ids} if isinstance(stop_token_ids, int) else stop_token_ids
    rows, width = completion_ids.shape
    if width == 0:
        return torch.ones(rows, dtype=torch.bool, device=completion_ids.device)
    positions = torch.arange(1, width + 1, device=completion_ids.device)
    lengths = (completion_mask.bool() * positions).amax(dim=1)
    last_tokens = completion_ids.gather(1, (lengths - 1).clamp(min=0).unsqueeze(1)).squeeze(1)
    stopping = torch.tensor(sorted(stops), dtype=torch.int64, device=last_tokens.device)
    cut = ~torch.isin(last_tokens, stopping) & (lengths >= max_completion_length)
    return cut | (lengths == 0)


def describe_completions(
    rules: GenerationRules,
    prompt_lengths: Sequence[int],
    completion_ids: Sequence[Sequence[int]],
    tool_masks: Sequence[Sequence[int]] | None,
    completions: Sequence[Any],
    masked_by_trainer: Sequence[bool],
) -> Tensor:
    """One row of `Column`s for each completion of this process.

    Args:
        rules: what can end a completion.
        prompt_lengths: tokens of each prompt.
        completion_ids: tokens of each completion, not padded to a common length.
        tool_masks: 1 on the tokens that the model wrote, 0 on those of tools; None without.
        completions: each completion's text or messages.
        masked_by_trainer: completions that the trainer takes out of its loss by itself.

    Returns:
        Shape (rows, number of columns), int64, on the CPU.
    """
    masks: Sequence[Sequence[int] | None] = (
        [None] * len(completion_ids) if tool_masks is None else tool_masks
    )
    full = [len(ids) for ids in completion_ids]
    own = [_unpadded_length(ids, rules) for ids in completion_ids]
    last = [
        _last_written_token(ids, mask, end)
        for ids, mask, end in zip(completion_ids, masks, own, strict=True)
    ]
    loss_tokens = [
        0 if masked else length if mask is None else sum(mask)
        for masked, length, mask in zip(masked_by_trainer, full, masks, strict=True)
    ]
    tool_causes = [_tool_cause(messages, rules.max_tool_iterations) for messages in completions]
    # In numpy, whose small operations take a fraction of torch's time.
    rows = _outcomes(rules, prompt_lengths, full, own, last, tool_causes)
    rows[:, Column.LOSS_TOKENS] = loss_tokens
    rows[:, Column.LONGEST_PROMPT] = max(prompt_lengths)
    rows[:, Column.LIMIT] = min(rules.limit or 0, _LARGEST_INTEGER)
    rows[:, Column.CONTEXT_WINDOW] = min(rules.context_window or 0, _LARGEST_INTEGER)
    if rules.end_of_turn:
        rows[:, Column.END_OF_TURN] = _unknown_end_of_turns(
            rules, completion_ids, masks, own, rows[:, Column.OUTCOME]
        )
    return torch.from_numpy(rows)


@outside_barrier
def failed_rows(count: int) -> Tensor:
    """The rows of a process whose guard could not describe its completions."""
    rows = torch.zeros((count, len(Column)), dtype=torch.int64)
    rows[:, Column.FAILED] = 1
    return rows


def _outcomes(
    rules: GenerationRules,
    prompt_lengths: Sequence[int],
    full: Sequence[int],
    own: Sequence[int],
    last: Sequence[int],
    tool_causes: Sequence[int],
) -> _Integers:
    lengths, ends = np.array(full), np.array(own)
    # After a stop string the backend pads the row to the longest of its batch. Only where that
    # cannot be is a trailing pad a token that the model wrote.
    reach = ends if rules.stops_on_request else lengths
    cause = np.full(len(full), Cause.ASKED if rules.stops_on_request else Cause.NONE)
    outcome = np.full(len(full), Outcome.STOPPED)

    def settle(where: NDArray[np.bool_], how: Outcome, why: int | _Integers) -> None:
        outcome[where] = how
        cause[where] = why[where] if isinstance(why, np.ndarray) else why

    # From the weakest reason to the strongest: the last one that holds has the word.
    if rules.context_window is not None and rules.cuts_at_window:
        prompts = _prompt_room(prompt_lengths, rules.pad_prompts_to)
        settle(prompts + reach >= rules.context_window, Outcome.TRUNCATED, Cause.CONTEXT)
    if rules.limit is not None:
        settle((reach >= rules.limit) | (lengths == 0), Outcome.TRUNCATED, Cause.LIMIT)
    ends_on_stop = np.array([token in rules.stop_token_ids for token in last])
    settle(ends_on_stop, Outcome.TERMINATED, Cause.NONE)
    tools = np.array(tool_causes)
    settle(tools != Cause.NONE, Outcome.TRUNCATED, tools)

    rows = np.zeros((len(full), len(Column)), dtype=np.int64)
    at_a_limit = (cause == Cause.LIMIT) | (cause == Cause.CONTEXT)
    rows[:, Column.LENGTH] = np.where(at_a_limit, reach, ends)
    rows[:, Column.OUTCOME] = outcome
    rows[:, Column.CAUSE] = cause
    rows[:, Column.END_OF_TURN] = NOT_SEARCHED
    return rows


def _prompt_room(prompt_lengths: Sequence[int], pad_prompts_to: int | None) -> _Integers:
    lengths = np.array(prompt_lengths)
    if pad_prompts_to is None:
        return lengths
    return np.full_like(lengths, -(lengths.max() // -pad_prompts_to) * pad_prompts_to)


def _unpadded_length(ids: Sequence[int], rules: GenerationRules) -> int:
    """Tokens without the padding behind them. A pad token that stops generation is no padding."""
    pad = rules.pad_token_id
    if len(ids) == 0 or ids[-1] != pad or pad in rules.stop_token_ids:
        return len(ids)
    positions = np.flatnonzero(np.asarray(ids) != pad)
    return int(positions[-1]) + 1 if positions.size else 0


def _last_written_token(ids: Sequence[int], mask: Sequence[int] | None, end: int) -> int:
    """The last token before `end` that the model wrote, tool tokens aside; -1 without any."""
    if mask is not None and end and not mask[end - 1]:
        positions = np.flatnonzero(np.asarray(mask[:end]))
        end = int(positions[-1]) + 1 if positions.size else 0
    return ids[end - 1] if end else -1


def _tool_cause(messages: Any, max_iterations: int | None) -> int:
    """Whether the tool loop left a completion unfinished; TRL's messages are the only witness.

    TRL 1.16 drops a tool result that would pass the limit, and the row then ends on the stop token
    of the turn that asked for it.
    """
    if max_iterations is None or not isinstance(messages, list) or not messages:
        return Cause.NONE
    if messages[-1].get("role") == "tool":
        return Cause.TOOL
    if not messages[-1].get("tool_calls"):
        return Cause.NONE
    answered = sum(bool(message.get("tool_calls")) for message in messages) - 1
    return Cause.TOOL_ITERATIONS if answered >= max_iterations else Cause.TOOL


def _unknown_end_of_turns(
    rules: GenerationRules,
    completion_ids: Sequence[Sequence[int]],
    masks: Sequence[Sequence[int] | None],
    own: Sequence[int],
    outcomes: _Integers,
) -> list[int]:
    """The column `END_OF_TURN`, from a sample of the rows that did not terminate."""
    suspects = np.flatnonzero(outcomes != Outcome.TERMINATED).tolist()
    found = [NOT_SEARCHED] * len(completion_ids)
    for index in suspects[:: max(-(len(suspects) // -_SEARCHED_ROWS), 1)]:
        ids, mask = completion_ids[index], masks[index]
        if own[index] < len(ids):
            ids = ids[: own[index]]
        if mask is not None:
            ids = np.asarray(ids)[np.asarray(mask, dtype=bool)[: len(ids)]].tolist()
        found[index] = next((token for token in rules.end_of_turn if token in ids), NOT_FOUND)
    return found
