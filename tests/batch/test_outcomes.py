from __future__ import annotations

from collections.abc import Sequence
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from truncation_guard import detect_truncated
from truncation_guard.batch.completion_row import (
    NOT_FOUND,
    NOT_SEARCHED,
    Cause,
    Column,
    GenerationRules,
    Outcome,
)
from truncation_guard.batch.outcomes import describe_completions, failed_rows

PAD, EOS, EOT = 0, 1, 2
T8 = [5, 6, 7, 8, 9, 10, 11, 12]
E3 = [5, 6, EOS]

TERMINATED = (Outcome.TERMINATED, Cause.NONE)
BY_LIMIT = (Outcome.TRUNCATED, Cause.LIMIT)
BY_CONTEXT = (Outcome.TRUNCATED, Cause.CONTEXT)
BY_TOOL = (Outcome.TRUNCATED, Cause.TOOL)
BY_TOOL_ITERATIONS = (Outcome.TRUNCATED, Cause.TOOL_ITERATIONS)
STOPPED = (Outcome.STOPPED, Cause.NONE)
STOPPED_ASKED = (Outcome.STOPPED, Cause.ASKED)

CALL = {"role": "assistant", "tool_calls": [{"name": "add"}]}
RESULT = {"role": "tool", "content": "3"}
ANSWER = {"role": "assistant", "content": "three"}


def rules(**overrides: Any) -> GenerationRules:
    defaults: dict[str, Any] = {
        "stop_token_ids": frozenset({EOS}),
        "pad_token_id": PAD,
        "limit": 8,
        "context_window": None,
    }
    return GenerationRules(**(defaults | overrides))


def describe(
    completion_ids: Sequence[Sequence[int]],
    prompt_lengths: Sequence[int] | None = None,
    tool_masks: Sequence[Sequence[int]] | None = None,
    completions: Sequence[Any] | None = None,
    masked: Sequence[bool] | None = None,
    **overrides: Any,
) -> Tensor:
    count = len(completion_ids)
    return describe_completions(
        rules(**overrides),
        prompt_lengths or [4] * count,
        completion_ids,
        tool_masks,
        completions or ["text"] * count,
        masked or [False] * count,
    )


def ends(rows: Tensor) -> list[tuple[int, int]]:
    return [(row[Column.OUTCOME], row[Column.CAUSE]) for row in rows.tolist()]


def padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Ids and mask of rows of different lengths, as TRL lays them out."""
    width = max(map(len, rows))
    ids = torch.tensor([[*row, *[PAD] * (width - len(row))] for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    return ids, mask


# --- detect_truncated ---------------------------------------------------------------------------

CASE_1 = [[5, 6, 7, 8, 9, 10, 11, EOS], T8, [5, 6, 7, 8, 9, 10, 11, PAD], []]


def test_the_edge_of_the_limit_in_case_1() -> None:
    assert detect_truncated(*padded(CASE_1), {EOS}, 8).tolist() == [False, True, True, True]


@settings(deadline=None)
@given(
    width=st.integers(0, 6),
    height=st.integers(1, 4),
    stops=st.sets(st.integers(0, 4), max_size=3),
    limit=st.integers(1, 7),
    data=st.data(),
)
def test_it_is_what_a_slow_loop_over_the_rows_gives(
    width: int, height: int, stops: set[int], limit: int, data: st.DataObject
) -> None:
    def draw(values: st.SearchStrategy[int]) -> list[list[int]]:
        row = st.lists(values, min_size=width, max_size=width)
        return data.draw(st.lists(row, min_size=height, max_size=height))

    ids, mask = draw(st.integers(0, 4)), draw(st.integers(0, 1))
    expected = []
    for row, kept in zip(ids, mask, strict=True):
        length = max((position + 1 for position in range(width) if kept[position]), default=0)
        expected.append(length == 0 or (length >= limit and row[length - 1] not in stops))
    found = detect_truncated(
        torch.tensor(ids).view(height, width), torch.tensor(mask).view(height, width), stops, limit
    )
    assert found.dtype == torch.bool
    assert found.tolist() == expected


@pytest.mark.parametrize("stops", [{1, 2}, frozenset({1, 2}), [2, 1], (1, 2, 2)])
def test_any_of_several_stop_tokens_ends_a_completion(stops: Any) -> None:
    ids, mask = padded([[5, 6, EOS], [5, 6, EOT], [5, 6, 7]])
    assert detect_truncated(ids, mask, stops, 3).tolist() == [False, False, True]


def test_without_a_stop_token_everything_at_the_limit_is_truncated() -> None:
    assert detect_truncated(*padded([E3, [5, 6]]), set(), 3).tolist() == [True, False]


def test_one_stop_token_may_come_as_it_is() -> None:
    """As `tokenizer.eos_token_id` is."""
    assert detect_truncated(*padded(CASE_1), EOS, 8).tolist() == [False, True, True, True]


@pytest.mark.parametrize(("limit", "expected"), [(3, True), (4, False), (2, True)])
def test_a_completion_is_truncated_from_the_limit_on(limit: int, expected: bool) -> None:
    assert detect_truncated(*padded([[5, 6, 7]]), {EOS}, limit).tolist() == [expected]


def test_a_stop_token_inside_the_row_does_not_count() -> None:
    assert detect_truncated(*padded([[5, EOS, 7, 8]]), {EOS}, 4).tolist() == [True]


def test_zeros_between_the_tokens_of_the_model_count_for_the_length() -> None:
    ids, mask = torch.tensor([[5, 9, 9, 7]]), torch.tensor([[1, 0, 0, 1]])
    assert detect_truncated(ids, mask, {EOS}, 4).tolist() == [True]
    assert detect_truncated(ids, mask, {EOS}, 5).tolist() == [False]


def test_a_row_that_is_masked_as_a_whole_is_truncated() -> None:
    """As TRL's `mask_truncated_completions` leaves it."""
    ids = torch.tensor([[5, 6, EOS]])
    assert detect_truncated(ids, torch.zeros_like(ids), {EOS}, 8).tolist() == [True]


def test_a_pad_token_that_is_the_stop_token_ends_a_completion() -> None:
    ids, mask = torch.tensor([[5, 6, EOS, EOS, EOS]]), torch.tensor([[1, 1, 1, 0, 0]])
    assert detect_truncated(ids, mask, {EOS}, 3).tolist() == [False]


@pytest.mark.parametrize("ids_dtype", [torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.uint8, torch.int64, torch.float32])
def test_ids_and_mask_may_have_any_usual_dtype(
    ids_dtype: torch.dtype, mask_dtype: torch.dtype
) -> None:
    ids, mask = padded([E3, T8])
    found = detect_truncated(ids.to(ids_dtype), mask.to(mask_dtype), {EOS}, 8)
    assert found.tolist() == [False, True]


def test_no_rows_give_no_rows() -> None:
    empty = torch.zeros((0, 5), dtype=torch.int64)
    assert detect_truncated(empty, empty, {EOS}, 8).shape == (0,)


@pytest.mark.parametrize(
    ("ids_shape", "mask_shape", "limit", "message"),
    [
        (
            (2, 3),
            (2, 4),
            8,
            "`completion_ids` and `completion_mask` must both have shape (rows, tokens), got "
            "(2, 3) and (2, 4).",
        ),
        (
            (3,),
            (3,),
            8,
            "`completion_ids` and `completion_mask` must both have shape (rows, tokens), got "
            "(3,) and (3,).",
        ),
        ((2, 3), (2, 3), 0, "`max_completion_length` must be at least 1 token, got 0."),
        ((2, 3), (2, 3), -8, "`max_completion_length` must be at least 1 token, got -8."),
    ],
)
def test_a_wrong_argument_is_refused_with_name_and_value(
    ids_shape: tuple[int, ...], mask_shape: tuple[int, ...], limit: int, message: str
) -> None:
    with pytest.raises(ValueError, match=r"^`") as refused:
        detect_truncated(
            torch.zeros(ids_shape, dtype=torch.int64),
            torch.zeros(mask_shape, dtype=torch.int64),
            {EOS},
            limit,
        )
    assert str(refused.value) == message


# --- describe_completions: outcome and cause ----------------------------------------------------


def test_the_guard_sees_the_edge_of_the_limit_as_detect_truncated_does() -> None:
    rows = describe(CASE_1)
    assert ends(rows) == [TERMINATED, BY_LIMIT, BY_LIMIT, BY_LIMIT]
    assert rows[:, Column.LENGTH].tolist() == [8, 8, 8, 0]
    assert rows.dtype == torch.int64
    assert rows.shape == (4, len(Column))


@pytest.mark.parametrize(
    ("ids", "overrides", "expected", "length"),
    [
        (E3, {}, TERMINATED, 3),
        (T8, {}, BY_LIMIT, 8),
        (T8[:7], {}, STOPPED, 7),
        ([*T8, 13], {}, BY_LIMIT, 9),  # whoever wrote it ignores the limit
        ([*T8, EOS], {}, TERMINATED, 9),
        (T8, {"limit": None}, STOPPED, 8),
        (T8, {"limit": 9}, STOPPED, 8),
        ([5, EOS, 7, 8, 9, 10, 11, 12], {}, BY_LIMIT, 8),  # a stop token inside does not count
        # several stop tokens
        ([5, 6, EOT], {"stop_token_ids": frozenset({EOS, EOT})}, TERMINATED, 3),
        ([5, 6, EOT], {}, STOPPED, 3),
        ([5, 6, EOS], {"stop_token_ids": frozenset()}, STOPPED, 3),
        # padding
        ([5, 6, EOS, PAD, PAD], {}, TERMINATED, 3),
        ([5, 6, 7, PAD, PAD], {}, STOPPED, 3),
        ([5, 6, PAD, 7], {}, STOPPED, 4),
        ([5, 6, PAD], {"pad_token_id": None}, STOPPED, 3),
        ([5, 6, PAD], {"stop_token_ids": frozenset({PAD})}, TERMINATED, 3),
        ([5, 6, EOS], {"pad_token_id": EOS}, TERMINATED, 3),
        ([*T8[:7], EOS], {"pad_token_id": EOS}, TERMINATED, 8),
        (T8, {"pad_token_id": EOS}, BY_LIMIT, 8),
        # a pad at the limit was written by the model, unless rows are padded after a stop string
        ([*T8[:7], PAD], {}, BY_LIMIT, 8),
        ([*T8[:7], PAD], {"stops_on_request": True}, STOPPED_ASKED, 7),
        ([*T8[:3], *[PAD] * 5], {"stops_on_request": True}, STOPPED_ASKED, 3),
        (T8, {"stops_on_request": True}, BY_LIMIT, 8),
        (T8[:7], {"stops_on_request": True}, STOPPED_ASKED, 7),
        (E3, {"stops_on_request": True}, TERMINATED, 3),
        ([], {}, BY_LIMIT, 0),
        ([], {"stops_on_request": True}, BY_LIMIT, 0),
    ],
)
def test_a_completion_without_tools_ends_in_one_of_these_ways(
    ids: list[int], overrides: dict[str, Any], expected: tuple[int, int], length: int
) -> None:
    rows = describe([ids], **overrides)
    assert ends(rows) == [expected]
    assert rows[0, Column.LENGTH] == length


@pytest.mark.parametrize(
    ("prompt", "ids", "overrides", "expected"),
    [
        (12, T8[:4], {"context_window": 16}, BY_CONTEXT),
        (11, T8[:4], {"context_window": 16}, STOPPED),
        (13, T8[:4], {"context_window": 16}, BY_CONTEXT),
        (12, [5, 6, 7, EOS], {"context_window": 16}, TERMINATED),
        (8, T8, {"context_window": 16}, BY_LIMIT),  # both: raising the limit is the first step
        (12, T8[:4], {"context_window": None}, STOPPED),
        (12, T8[:4], {"context_window": 16, "limit": None}, BY_CONTEXT),
        (12, [5, 6, 7, PAD], {"context_window": 16}, BY_CONTEXT),
        (12, [5, 6, 7, PAD], {"context_window": 16, "stops_on_request": True}, STOPPED_ASKED),
        (12, T8[:4], {"context_window": 16, "stops_on_request": True}, BY_CONTEXT),
        (16, [], {"context_window": 16, "limit": None}, BY_CONTEXT),
        # prompts that are padded to a multiple
        (9, T8[:4], {"context_window": 16, "pad_prompts_to": 4}, BY_CONTEXT),
        (9, T8[:4], {"context_window": 17, "pad_prompts_to": 4}, STOPPED),
        (8, T8[:4], {"context_window": 12, "pad_prompts_to": 4}, BY_CONTEXT),
        (8, T8[:4], {"context_window": 13, "pad_prompts_to": 4}, STOPPED),
        (9, T8[:4], {"context_window": 13, "pad_prompts_to": 1}, BY_CONTEXT),
        (9, T8[:4], {"context_window": 14, "pad_prompts_to": 1}, STOPPED),
    ],
)
def test_the_context_window_cuts_where_prompt_and_completion_fill_it(
    prompt: int, ids: list[int], overrides: dict[str, Any], expected: tuple[int, int]
) -> None:
    assert ends(describe([ids], [prompt], **overrides)) == [expected]


def test_padded_prompts_all_count_as_the_longest_and_others_as_they_are() -> None:
    completions, prompts = [T8[:4], T8[:4], T8[:3]], [2, 12, 12]
    together = describe(completions, prompts, context_window=16, pad_prompts_to=1)
    assert ends(together) == [BY_CONTEXT, BY_CONTEXT, STOPPED]
    apart = describe(completions, prompts, context_window=16, pad_prompts_to=None)
    assert ends(apart) == [STOPPED, BY_CONTEXT, STOPPED]


@settings(deadline=None)
@given(
    completions=st.lists(st.lists(st.integers(0, 4), max_size=6), min_size=1, max_size=5),
    stops=st.frozensets(st.integers(0, 4), max_size=3),
    pad=st.sampled_from([None, 0, 1]),
    limit=st.sampled_from([None, 1, 4, 6]),
    window=st.sampled_from([None, 6, 9]),
    asked=st.booleans(),
    with_tools=st.booleans(),
    data=st.data(),
)
def test_rows_are_described_as_a_slow_reading_of_the_definition_gives(
    completions: list[list[int]],
    stops: frozenset[int],
    pad: int | None,
    limit: int | None,
    window: int | None,
    asked: bool,
    with_tools: bool,
    data: st.DataObject,
) -> None:
    masks = [[1 for _ in ids] for ids in completions]
    if with_tools:
        masks = [[data.draw(st.integers(0, 1)) for _ in ids] for ids in completions]
    expected = []
    for index, (ids, mask) in enumerate(zip(completions, masks, strict=True)):
        body = list(ids)
        while body and body[-1] == pad and pad not in stops:
            body.pop()
        by_the_model = [token for token, own in zip(body, mask, strict=False) if own]
        reach = len(body) if asked else len(ids)
        prompt = 3 + index
        if by_the_model and by_the_model[-1] in stops:
            expected.append((len(body), *TERMINATED))
        elif limit is not None and (reach >= limit or not ids):
            expected.append((reach, *BY_LIMIT))
        elif window is not None and prompt + reach >= window:
            expected.append((reach, *BY_CONTEXT))
        else:
            expected.append((len(body), *(STOPPED_ASKED if asked else STOPPED)))
    rows = describe(
        completions,
        [3 + index for index in range(len(completions))],
        tool_masks=masks if with_tools else None,
        stop_token_ids=stops,
        pad_token_id=pad,
        limit=limit,
        context_window=window,
        stops_on_request=asked,
    )
    found = rows[:, [Column.LENGTH, Column.OUTCOME, Column.CAUSE]].tolist()
    assert [tuple(row) for row in found] == expected
    assert rows[:, Column.LOSS_TOKENS].tolist() == [sum(mask) for mask in masks]


# --- tools and environments ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([ANSWER], TERMINATED),
        ([CALL, RESULT, ANSWER], TERMINATED),
        ([CALL, RESULT], BY_TOOL),  # nobody replied to the result
        ([CALL], BY_TOOL),  # the result would not fit and was dropped: case 11
        ([CALL, RESULT, CALL], BY_TOOL),
        ([CALL, RESULT, CALL, RESULT, CALL], BY_TOOL_ITERATIONS),
        ([CALL, RESULT, CALL, RESULT, ANSWER], TERMINATED),
        ([CALL, RESULT, CALL, RESULT], BY_TOOL),
        ([{"role": "assistant", "content": "x", "tool_calls": []}], TERMINATED),
        ([{"role": "assistant", "content": "x", "tool_calls": None}], TERMINATED),
        ([], TERMINATED),
        ("just text", TERMINATED),
    ],
)
def test_the_tool_loop_may_leave_a_row_that_ends_on_a_stop_token_unfinished(
    messages: Any, expected: tuple[int, int]
) -> None:
    rows = describe([E3], completions=[messages], max_tool_iterations=2)
    assert ends(rows) == [expected]
    assert rows[0, Column.LENGTH] == 3


def test_messages_are_not_looked_at_without_tools() -> None:
    assert ends(describe([E3, T8], completions=[[CALL], [RESULT]])) == [TERMINATED, BY_LIMIT]


def test_a_call_that_nobody_answered_counts_before_the_limit() -> None:
    assert ends(describe([T8], completions=[[CALL]], max_tool_iterations=2)) == [BY_TOOL]


def test_a_second_turn_that_is_cut_is_truncated_by_the_limit_as_in_case_11() -> None:
    ids = [5, 6, EOS, 9, 9, 7, 8, 5]  # a turn, a tool's result, and the beginning of a second turn
    mask = [1, 1, 1, 0, 0, 1, 1, 1]
    rows = describe(
        [ids],
        tool_masks=[mask],
        completions=[[CALL, RESULT, {"role": "assistant", "content": "7"}]],
        max_tool_iterations=2,
    )
    assert ends(rows) == [BY_LIMIT]
    assert rows[0, [Column.LENGTH, Column.LOSS_TOKENS]].tolist() == [8, 6]


@pytest.mark.parametrize(
    ("ids", "mask", "expected", "length"),
    [
        ([5, EOS, 9, 9, 6, EOS], [1, 1, 0, 0, 1, 1], TERMINATED, 6),
        ([5, 6, 9, 9, 7, 8, 10, 11], [1, 1, 0, 0, 1, 1, 1, 1], BY_LIMIT, 8),  # tool tokens count
        ([5, 6, 9, 9, 7, 8, 10], [1, 1, 0, 0, 1, 1, 1], STOPPED, 7),
        # The last token that the model wrote is a stop token; a tool wrote behind it.
        ([5, EOS, 9], [1, 1, 0], TERMINATED, 3),
        # A stop token that a tool wrote does not end the completion.
        ([5, 6, EOS], [1, 1, 0], STOPPED, 3),
        ([5, 6, 7, 8, 9, 10, 11, EOS], [1, 1, 1, 1, 1, 1, 1, 0], BY_LIMIT, 8),
        ([9, 9], [0, 0], STOPPED, 2),
        # Padding behind the tool's tokens is no part of the completion.
        ([5, EOS, 9, 9, 6, EOS, PAD, PAD], [1, 1, 0, 0, 1, 1, 0, 0], TERMINATED, 6),
        ([5, EOS, 9, 9, 6, EOS, PAD, PAD], [1, 1, 0, 0, 1, 1, 1, 1], TERMINATED, 6),
        ([5, EOS, 9, 9, PAD, PAD], [1, 1, 0, 0, 1, 1], TERMINATED, 4),
        ([5, 6, 9, 9, PAD, PAD], [1, 1, 0, 0, 0, 0], STOPPED, 4),
        # They reach the limit by themselves.
        ([5, 6, 9, 9, 9, 9, 9, 9], [1, 1, 0, 0, 0, 0, 0, 0], BY_LIMIT, 8),
        ([5, 6, 9, 9, 9, 9, 9], [1, 1, 0, 0, 0, 0, 0], STOPPED, 7),
        ([9] * 8, [0] * 8, BY_LIMIT, 8),
        ([], [], BY_LIMIT, 0),
    ],
)
def test_tool_tokens_count_for_the_length_and_not_for_how_a_completion_ended(
    ids: list[int], mask: list[int], expected: tuple[int, int], length: int
) -> None:
    rows = describe([ids], tool_masks=[mask])
    assert ends(rows) == [expected]
    assert rows[0, Column.LENGTH] == length
    assert rows[0, Column.LOSS_TOKENS] == sum(mask)


@pytest.mark.parametrize(
    ("ids", "mask", "prompt", "expected", "length"),
    [
        ([5, 6, 7, 9, 9, 9, 9, 9], [1, 1, 1, 0, 0, 0, 0, 0], 4, BY_LIMIT, 8),
        ([5, 6, 7, 9, 9, 9, 9], [1, 1, 1, 0, 0, 0, 0], 4, STOPPED_ASKED, 7),
        ([5, 6, 7, 9], [1, 1, 1, 0], 12, BY_CONTEXT, 4),
        ([5, 6, 7, 9], [1, 1, 1, 0], 11, STOPPED_ASKED, 4),
        ([5, 6, 7, 9, PAD, PAD, PAD, PAD], [1, 1, 1, 0, 1, 1, 1, 1], 4, STOPPED_ASKED, 4),
        ([5, 6, EOS, 9], [1, 1, 1, 0], 4, TERMINATED, 4),
    ],
)
def test_the_last_word_of_an_environment_counts_for_the_limits_and_the_length(
    ids: list[int], mask: list[int], prompt: int, expected: tuple[int, int], length: int
) -> None:
    """`rollout_func` with `env_mask`: the limit counts the tokens of the environment too."""
    rows = describe([ids], [prompt], tool_masks=[mask], stops_on_request=True, context_window=16)
    assert ends(rows) == [expected]
    assert rows[0, Column.LENGTH] == length


def test_padding_behind_a_call_that_nobody_answered_is_no_part_of_its_length() -> None:
    """TRL drops nothing behind a stop token that only `generation_kwargs` know."""
    rows = describe([[5, EOS, PAD, PAD]], completions=[[CALL]], max_tool_iterations=2)
    assert ends(rows) == [BY_TOOL]
    assert rows[0, Column.LENGTH] == 2


def test_rows_that_the_trainer_takes_out_of_its_loss_have_no_loss_tokens() -> None:
    rows = describe([E3, T8, T8], masked=[False, True, False])
    assert rows[:, Column.LOSS_TOKENS].tolist() == [3, 0, 8]
    with_tools = describe([E3, T8], tool_masks=[[1, 0, 1], [1] * 8], masked=[False, True])
    assert with_tools[:, Column.LOSS_TOKENS].tolist() == [2, 0]


def test_rows_keep_their_order_and_do_not_touch_each_other() -> None:
    completions = [T8, E3, T8[:5], [], [5, EOT], E3]
    alone = torch.cat([describe([ids]) for ids in completions])
    assert torch.equal(describe(completions), alone)


# --- an end of turn that generation does not stop at --------------------------------------------

EOT_UNKNOWN = {"end_of_turn": {EOT: "<eot>"}}


def end_of_turns(rows: Tensor) -> list[int]:
    found: list[int] = rows[:, Column.END_OF_TURN].tolist()
    return found


def test_a_token_that_looks_like_an_end_of_turn_is_found_as_in_case_2() -> None:
    rows = describe([[5, 6, EOT], [5, 6, EOT, 9, 9, 9, 9, 9]], **EOT_UNKNOWN)
    assert ends(rows) == [STOPPED, BY_LIMIT]
    assert end_of_turns(rows) == [EOT, EOT]


def test_a_known_stop_token_is_none_of_them_in_case_2() -> None:
    rows = describe([[5, 6, EOT]] * 4, stop_token_ids=frozenset({EOS, EOT}))
    assert ends(rows) == [TERMINATED] * 4


def test_rows_that_terminated_are_not_searched() -> None:
    rows = describe([[5, EOT, 6, EOS], [5, EOT, 6], [5, 6, 7]], **EOT_UNKNOWN)
    assert end_of_turns(rows) == [NOT_SEARCHED, EOT, NOT_FOUND]


def test_nothing_is_searched_where_no_token_looks_like_an_end_of_turn() -> None:
    assert end_of_turns(describe([[5, EOT], T8])) == [NOT_SEARCHED, NOT_SEARCHED]


def test_a_token_that_a_tool_wrote_does_not_count() -> None:
    rows = describe(
        [[5, EOT, 6, 7], [5, EOT, 6, 7]], tool_masks=[[1, 0, 0, 1], [1, 1, 0, 1]], **EOT_UNKNOWN
    )
    assert end_of_turns(rows) == [NOT_FOUND, EOT]


def test_one_token_stands_for_a_row_that_holds_several() -> None:
    rows = describe([[3, EOT, 5], [5, 3, 5]], end_of_turn={EOT: "<eot>", 3: "<end>"})
    assert end_of_turns(rows) == [EOT, 3]


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 100, 1000])
def test_a_large_batch_is_searched_in_a_sample_that_is_spread_over_it(rows: int) -> None:
    found = end_of_turns(describe([[5, EOT, 7]] * rows, **EOT_UNKNOWN))
    searched = [index for index, token in enumerate(found) if token != NOT_SEARCHED]
    assert {found[index] for index in searched} == {EOT}
    assert min(rows, 4) <= len(searched) <= 8
    if rows <= 8:
        assert len(searched) == rows
    assert searched[0] < rows / 4
    assert searched[-1] >= rows * 7 // 8


def test_the_sample_is_taken_from_the_rows_that_did_not_terminate() -> None:
    found = end_of_turns(describe([*[E3] * 100, [5, EOT, 7], *[E3] * 100], **EOT_UNKNOWN))
    assert found == [NOT_SEARCHED] * 100 + [EOT] + [NOT_SEARCHED] * 100


# --- rows of a process that failed --------------------------------------------------------------


def test_failed_rows_have_the_shape_of_the_others_and_only_their_flag() -> None:
    rows = failed_rows(3)
    healthy = describe([E3, T8, T8])
    assert (rows.shape, rows.dtype) == (healthy.shape, healthy.dtype)
    assert rows[:, Column.FAILED].tolist() == [1, 1, 1]
    assert healthy[:, Column.FAILED].tolist() == [0, 0, 0]
    others = [column for column in Column if column != Column.FAILED]
    assert not rows[:, others].any()


def test_rules_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        rules().limit = 9  # type: ignore[misc]
