from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.batches import batch, groups

from truncation_guard.batch.completion_row import (
    NOT_SEARCHED,
    Cause,
    Column,
    GenerationRules,
    Outcome,
)
from truncation_guard.batch.counts import BatchCounts, HostRewards, count_batch
from truncation_guard.lengths.histogram import LengthHistogram


def test_completions_and_shares_are_counted_from_the_lengths() -> None:
    counts = batch(ended={3: 10, 7: 2}, cut={8: 3, 5: 1})
    assert (counts.completions, counts.truncated, counts.share) == (16, 4, 0.25)


@pytest.mark.parametrize(
    ("limit", "above"),
    [(8, 0), (7, 3), (6, 5), (2, 16), (None, 0)],
)
def test_above_limit_counts_ended_and_cut_completions_longer_than_it(
    limit: int | None, above: int
) -> None:
    assert batch(ended={3: 10, 7: 2}, cut={8: 3, 5: 1}, limit=limit).above_limit == above


@pytest.mark.parametrize(
    ("of", "truncated", "stopped", "searched", "held", "share"),
    [
        (20, 0, 0, 0, {}, 0.0),
        (20, 4, 0, 4, {}, 0.0),
        (20, 4, 0, 4, {"2 (<eot>)": 4}, 0.2),
        (20, 2, 2, 4, {"2 (<eot>)": 2, "3 (<end>)": 1}, 0.15),
        # 3 of the 4 that were searched hold it, so 12 of the 16 that did not terminate.
        (32, 8, 8, 4, {"2 (<eot>)": 3}, 0.375),
        (32, 8, 8, 0, {}, 0.0),
    ],
)
def test_the_share_that_ran_past_an_end_of_turn_is_estimated_from_those_searched(
    of: int, truncated: int, stopped: int, searched: int, held: dict[str, int], share: float
) -> None:
    counts = batch(truncated, of, stopped=stopped, searched=searched, end_of_turn=held)
    assert counts.end_of_turn_share == pytest.approx(share, abs=1e-15)


def test_batches_add_up_under_the_limits_of_the_later_one() -> None:
    first = batch(
        step=3,
        training=False,
        limit=256,
        context_window=1024,
        ended={3: 10, 7: 2},
        cut={8: 3},
        causes={"limit": 2, "tool": 1},
        tool_iterations=1,
        stopped=2,
        stopped_unasked=1,
        searched=5,
        end_of_turn={"2 (<eot>)": 1},
        stop_tokens=(1,),
        longest_prompt=12,
        groups=groups(
            4, truncated=2, all_truncated=1, one_survivor=1, worst=4, survivor_advantage_sum=0.5
        ),
        reward=0.5,
        reward_terminated=0.75,
        reward_truncated=0.0,
    )
    later = batch(
        step=4,
        training=False,
        limit=512,
        limit_name="generation_kwargs['max_new_tokens']",
        context_window=2048,
        ended={7: 1, 9: 1},
        cut={8: 1, 512: 4},
        causes={"limit": 4, "context": 1},
        tool_iterations=2,
        stopped=1,
        stopped_unasked=1,
        searched=6,
        end_of_turn={"2 (<eot>)": 2, "3 (<end>)": 1},
        stop_tokens=(1, 5),
        groups=groups(
            3,
            truncated=3,
            all_truncated=2,
            one_survivor=1,
            worst=3,
            without_signal=1,
            truncated_without_signal=1,
            survivor_advantage_sum=0.25,
        ),
        reward=1.0,
        row_limit=1024,
    )
    expected: dict[str, Any] = {
        "step": 4,
        "training": False,
        "limit": 512,
        "limit_name": "generation_kwargs['max_new_tokens']",
        "context_window": 2048,
        "lengths": LengthHistogram({3: 10, 7: 3, 9: 1}, {8: 4, 512: 4}),
        "causes": {"limit": 6, "context": 1, "tool": 1},
        "tool_iterations": 3,
        "stopped": 3,
        "stopped_unasked": 2,
        "searched": 11,
        "end_of_turn": {"2 (<eot>)": 3, "3 (<end>)": 1},
        "stop_tokens": (1, 5),
        "longest_prompt": 12,
        "groups": groups(
            7,
            truncated=5,
            all_truncated=3,
            one_survivor=2,
            worst=4,
            without_signal=1,
            truncated_without_signal=1,
        ),
        # A mean of means would be an average of averages.
        "reward": None,
        "reward_terminated": None,
        "reward_truncated": None,
        "row_limit": 1024,
    }
    total = first + later
    assert {field.name: getattr(total, field.name) for field in fields(BatchCounts)} == expected


@pytest.mark.parametrize(("left", "right"), [(None, 2), (2, None), (None, None)])
def test_groups_without_signal_are_unknown_where_one_batch_did_not_measure_them(
    left: int | None, right: int | None
) -> None:
    total = groups(without_signal=left, truncated_without_signal=left) + groups(
        without_signal=right, truncated_without_signal=right
    )
    assert (total.without_signal, total.truncated_without_signal) == (None, None)


def test_adding_leaves_both_batches_as_they_were() -> None:
    first, later = batch(4, ended={3: 28}), batch(2, ended={3: 30})
    total = first + later
    assert first.lengths == LengthHistogram({3: 28}, {256: 4})
    assert later.lengths == LengthHistogram({3: 30}, {256: 2})
    assert total.lengths == LengthHistogram({3: 58}, {256: 6})


def test_counts_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        batch().step = 3  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        groups().worst = 3  # type: ignore[misc]


@settings(deadline=None)
@given(
    histograms=st.lists(
        st.tuples(
            st.dictionaries(st.integers(0, 9), st.integers(1, 5), min_size=1),
            st.dictionaries(st.integers(0, 9), st.integers(1, 5)),
        ),
        min_size=3,
        max_size=3,
    )
)
def test_the_order_of_adding_does_not_matter(
    histograms: list[tuple[dict[int, int], dict[int, int]]],
) -> None:
    a, b, c = (
        batch(ended=ended, cut=cut, causes={"limit": sum(cut.values())})
        for ended, cut in histograms
    )
    assert (a + b) + c == a + (b + c)
    assert (a + b + c).completions == a.completions + b.completions + c.completions
    assert (a + b + c).truncated == a.truncated + b.truncated + c.truncated


def test_a_limit_of_each_turn_does_not_bound_all_turns_together() -> None:
    counts = batch(ended={9: 2, 40: 1}, cut={8: 1}, limit=8)
    assert counts.above_limit == 3
    assert replace(counts, row_limit=32).above_limit == 1


# --- from the numbers of a batch ----------------------------------------------------------------

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
    total = np.array(
        [1.5, 0.5, math.nan, math.nan, math.nan, math.nan, -0.5, 0.5], dtype=np.float32
    )
    rewards = HostRewards(total=total, baselined=total[:, None])
    counts = count_batch(rules, columns, rewards, None, step=3, training=True, num_generations=4)
    assert counts.lengths.finished_at == {30: 1, 64: 1, 15: 1, 16: 1}
    assert counts.lengths.truncated_at == cut
    assert counts.causes == {"limit": 1, "context": 1, "tool": 2}
    assert counts.tool_iterations == 1
    assert (counts.stopped, counts.stopped_unasked, counts.searched) == (2, 1, 0)
    assert (counts.reward, counts.reward_terminated, counts.reward_truncated) == (0.5, 1.0, None)
    assert (counts.step, counts.limit, counts.groups.groups) == (3, limit, 2)
    assert (counts.context_window, counts.longest_prompt) == (120, len(ROWS) - 1)


def test_groups_of_equal_rewards_have_no_signal_whatever_the_rounding_of_their_advantages() -> None:
    columns = np.zeros((len(Column), 4), dtype=np.int64)
    rules = GenerationRules(
        stop_token_ids=frozenset({1}), pad_token_id=0, limit=9, context_window=9
    )
    total = np.array([0.1, 0.1, 1.0, 0.0], dtype=np.float32)
    advantages = np.array([1e-5, 1e-5, 0.7, -0.7], dtype=np.float32)
    for baselined, silent in ((total[:, None], 1), (None, 0)):
        counts = count_batch(
            rules,
            columns,
            HostRewards(total, baselined),
            advantages,
            step=0,
            training=True,
            num_generations=2,
        )
        assert counts.groups.without_signal == silent


@pytest.mark.parametrize("rewards", [[math.inf, 1.0], [math.inf, -math.inf], [-math.inf, 0.0]])
def test_infinite_rewards_have_no_mean_and_raise_nothing(rewards: list[float]) -> None:
    columns = np.zeros((len(Column), 2), dtype=np.int64)
    rules = GenerationRules(
        stop_token_ids=frozenset({1}), pad_token_id=0, limit=9, context_window=9
    )
    total = np.array(rewards, dtype=np.float32)
    counts = count_batch(
        rules,
        columns,
        HostRewards(total, total[:, None]),
        np.array([math.nan, math.nan], dtype=np.float32),
        step=0,
        training=True,
        num_generations=2,
    )
    assert (counts.reward, counts.reward_terminated, counts.reward_truncated) == (None, None, None)
