from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from truncation_guard import guard_advantages
from truncation_guard.batch.completion_row import Column, GenerationRules, Outcome
from truncation_guard.batch.groups import GroupCounts, count_groups, uniform_groups
from truncation_guard.batch.outcomes import describe_completions, failed_rows

T8 = [5, 6, 7, 8, 9, 10, 11, 12]
E3 = [5, 6, 1]
RULES = GenerationRules(stop_token_ids=frozenset({1}), pad_token_id=0, limit=8, context_window=None)


FIGURES = (
    "truncated",
    "all_truncated",
    "one_survivor",
    "worst",
    "without_signal",
    "truncated_without_signal",
    "survivor_advantage_sum",
)


@dataclass(frozen=True)
class Gathered:
    """Completions of all processes, in groups of `size`."""

    truncated: Any
    size: int

    def counts(self, advantages: Any, uniform: Any = None) -> GroupCounts:
        advantages = None if advantages is None else np.asarray(advantages, dtype=np.float32)
        uniform = None if uniform is None else np.asarray(uniform, dtype=bool)
        counts = count_groups(np.asarray(self.truncated), self.size, advantages, uniform)
        assert (counts.groups, counts.size) == (len(self.truncated) // self.size, self.size)
        return counts

    def uniform(self, rewards: Any) -> Any:
        return uniform_groups(np.asarray(rewards).reshape(-1, 1), self.size)


def gathered(outcomes: list[int], num_generations: int) -> Gathered:
    return Gathered(torch.tensor(outcomes) == Outcome.TRUNCATED, num_generations)


def rows_of(rows: Tensor, num_generations: int) -> Gathered:
    return gathered(rows[:, Column.OUTCOME].tolist(), num_generations)


def figures(counts: GroupCounts) -> dict[str, float]:
    found = {name: getattr(counts, name) for name in FIGURES}
    assert all(type(value) in (int, float, type(None)) for value in found.values())
    return {name: math.nan if value is None else value for name, value in found.items()}


def outcome_of(completion: list[int]) -> int:
    if completion[-1] == 1:
        return 0
    return 1 if len(completion) >= 8 else 2


def described(completions: list[list[int]]) -> Tensor:
    count = len(completions)
    return describe_completions(
        RULES, [3] * count, completions, None, ["text"] * count, [False] * count
    )


def oracle(
    outcomes: list[int], advantages: list[float], size: int, uniform: list[bool] | None = None
) -> dict[str, float]:
    """The same, group by group in plain Python."""
    per_group, sums = [], []
    silent = silent_and_truncated = 0
    for first in range(0, len(outcomes), size):
        cut = [outcome == 1 for outcome in outcomes[first : first + size]]
        group = advantages[first : first + size]
        per_group.append(sum(cut))
        is_silent = not any(group) or (uniform is not None and uniform[first // size])
        silent += is_silent
        silent_and_truncated += is_silent and any(cut)
        if any(cut):
            sums.append(math.fsum(a for a, c in zip(group, cut, strict=True) if not c))
    return {
        "truncated": sum(number > 0 for number in per_group),
        "all_truncated": sum(number == size for number in per_group),
        "one_survivor": sum(number == size - 1 for number in per_group),
        "worst": max(per_group),
        "without_signal": silent,
        "truncated_without_signal": silent_and_truncated,
        "survivor_advantage_sum": math.fsum(sums) / len(sums) if sums else math.nan,
    }


@settings(deadline=None)
@given(size=st.integers(1, 5), number=st.integers(1, 6), data=st.data())
def test_the_figures_are_those_of_a_slow_loop_over_the_groups(
    size: int, number: int, data: st.DataObject
) -> None:
    length = size * number
    outcomes = data.draw(st.lists(st.integers(0, 2), min_size=length, max_size=length))
    advantages = data.draw(
        st.lists(st.sampled_from([0.0, -0.0, 0.5, -1.5]), min_size=length, max_size=length)
    )
    uniform = data.draw(
        st.none() | st.lists(st.booleans(), min_size=number, max_size=number), label="uniform"
    )
    counts = gathered(outcomes, size).counts(
        torch.tensor(advantages), None if uniform is None else torch.tensor(uniform)
    )
    expected = oracle(outcomes, advantages, size, uniform)
    assert figures(counts) == pytest.approx(expected, nan_ok=True)


def test_a_small_batch_by_hand() -> None:
    outcomes = [0, 0, 0, 1, 1, 1, 1, 0, 1, 2, 2, 0]
    advantages = [0.5, -0.5, 0, 0, 0, 0, 0, 1.5, 0, 0, 0, 0]
    rollouts = gathered(outcomes, 3)
    assert rollouts.truncated.tolist() == [outcome == 1 for outcome in outcomes]
    # Groups TTT, XXX, XTX, SST: of 3 completions, X for truncated, S for stopped.
    assert figures(rollouts.counts(torch.tensor(advantages))) == {
        "truncated": 2,
        "all_truncated": 1,
        "one_survivor": 1,
        "worst": 3,
        "without_signal": 2,
        "truncated_without_signal": 1,
        "survivor_advantage_sum": 0.75,
    }


def test_figures_of_advantages_are_nan_without_advantages_and_the_others_are_there() -> None:
    counts = gathered([1, 1, 1, 0], 2).counts(None, torch.tensor([True, True]))
    found = figures(counts)
    unknown = {figure for figure, value in found.items() if math.isnan(value)}
    assert unknown == {
        "without_signal",
        "truncated_without_signal",
        "survivor_advantage_sum",
    }
    assert found["truncated"] == 2
    assert found["all_truncated"] == 1
    assert found["one_survivor"] == 1
    assert found["worst"] == 2


def test_the_sum_over_survivors_is_not_known_without_a_group_with_truncation() -> None:
    found = figures(gathered([0, 2, 0, 0], 2).counts(torch.ones(4)))
    assert math.isnan(found["survivor_advantage_sum"])
    assert found["without_signal"] == 0


@pytest.mark.parametrize("others", [math.inf, -math.inf, math.nan, 1e30])
def test_a_group_without_truncation_is_no_part_of_the_sum_whatever_its_advantages(
    others: float,
) -> None:
    rollouts = gathered([0, 0, 1, 0, 2, 0, 1, 0], 2)
    advantages = torch.tensor([others, others, 9.0, 0.25, others, -others, 9.0, 0.5])
    found = figures(rollouts.counts(advantages))
    assert found["survivor_advantage_sum"] == 0.375


@pytest.mark.parametrize(("rewards", "rounding"), [([0.5] * 8, False), ([0.1] * 8, True)])
def test_a_group_of_equal_rewards_has_no_signal_whatever_the_rounding_of_its_mean(
    rewards: list[float], rounding: bool
) -> None:
    """The mean of eight times 0.1 is not 0.1 in float32; TRL divides the rest by 1e-4."""
    rollouts = gathered([1, 0, 0, 0, 0, 0, 0, 0], 8)
    made = torch.tensor(rewards)
    advantages, _ = guard_advantages(made, rollouts.truncated, 8, mode="observe")
    assert bool(advantages.any()) == rounding
    found = figures(rollouts.counts(advantages, rollouts.uniform(made)))
    assert found["without_signal"] == 1
    assert found["truncated_without_signal"] == 1


def test_uniform_rewards_of_a_group_without_truncation_are_no_signal_lost_to_truncation() -> None:
    rollouts = gathered([0, 0, 1, 0, 0, 1], 2)
    counts = rollouts.counts(
        torch.tensor([1e-5, 1e-5, 1e-5, 1e-5, 0.5, 0.0]), torch.tensor([True, True, False])
    )
    found = figures(counts)
    assert found["without_signal"] == 2
    assert found["truncated_without_signal"] == 1


# --- groups of equal rewards --------------------------------------------------------------------

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("rewards", "uniform"),
    [
        ([0.1, 0.1, 0.1], True),
        ([0.1, 0.1, 0.2], False),
        ([0.2, 0.1, 0.1], False),
        ([0.0, -0.0, 0.0], True),
        ([-1.0, -1.0, 1.0], False),
        # A completion that was not scored has no say.
        ([NAN, 0.5, 0.5], True),
        ([NAN, 0.5, 0.25], False),
        ([NAN, NAN, -3.0], True),
        ([NAN, NAN, NAN], True),
        # TRL makes 0 of the advantages of infinite rewards that are all the same.
        ([INF, INF, INF], True),
        ([-INF, -INF, -INF], True),
        ([INF, 0.5, 0.5], False),
        ([-INF, 0.5, 0.5], False),
        ([-INF, INF, INF], False),
        ([NAN, INF, INF], True),
        ([NAN, -INF, -INF], True),
        ([NAN, NAN, INF], True),
        ([NAN, -INF, 0.0], False),
        ([NAN, INF, 0.0], False),
    ],
)
def test_a_group_is_uniform_where_its_scored_completions_have_one_reward(
    rewards: list[float], uniform: bool
) -> None:
    beside = [1.0, 2.0, 3.0, *rewards, 7.0, 7.0, 7.0]
    for dtype in (torch.float32, torch.float64):
        found = gathered([0] * 9, 3).uniform(torch.tensor(beside, dtype=dtype))
        assert found.dtype == np.bool_
        assert found.tolist() == [False, uniform, True]


def test_a_group_of_one_is_uniform() -> None:
    rewards = torch.tensor([1.0, NAN, -INF])
    assert gathered([0, 1, 2], 1).uniform(rewards).tolist() == [True] * 3


@settings(deadline=None)
@given(size=st.integers(1, 4), number=st.integers(1, 5), data=st.data())
def test_uniform_groups_are_those_with_one_distinct_reward(
    size: int, number: int, data: st.DataObject
) -> None:
    value = st.sampled_from([NAN, INF, -INF, 0.0, 0.1, -1.5])
    rewards = data.draw(st.lists(value, min_size=size * number, max_size=size * number))
    groups = [rewards[first : first + size] for first in range(0, size * number, size)]
    expected = [len({reward for reward in group if reward == reward}) <= 1 for group in groups]
    found = gathered([0] * size * number, size).uniform(torch.tensor(rewards))
    assert found.tolist() == expected


@pytest.mark.parametrize("mode", ["exclude", "downweight"])
def test_one_survivor_or_none_leaves_no_signal_in_case_4(mode: str) -> None:
    rollouts = gathered([1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0], 4)
    rewards = torch.tensor([1.0, 0, 0, 0.5, 1, 0, 0, 1, 1, 0, 0, 0])
    advantages, _ = guard_advantages(rewards, rollouts.truncated, 4, mode=mode)  # type: ignore[arg-type]
    found = figures(rollouts.counts(advantages))
    # With downweight the truncated rewards stay in the baseline: the one survivor learns.
    assert found["without_signal"] == (2 if mode == "exclude" else 1)
    assert found["all_truncated"] == 1
    assert found["one_survivor"] == 1


# --- processes ----------------------------------------------------------------------------------


def test_groups_that_straddle_two_processes_count_as_in_case_5() -> None:
    by_process = [described([E3] * 3), described([T8] * 3)]
    rollouts = rows_of(torch.cat(by_process), 2)
    assert rollouts.truncated.tolist() == [False, False, False, True, True, True]
    found = figures(rollouts.counts(torch.zeros(6)))
    assert found["truncated"] == 2
    assert found["all_truncated"] == 1
    assert found["one_survivor"] == 1
    assert found["worst"] == 2
    assert found["without_signal"] == 3
    assert found["truncated_without_signal"] == 2


@settings(deadline=None)
@given(size=st.integers(1, 4), number=st.integers(1, 5), data=st.data())
def test_the_figures_do_not_depend_on_how_the_rows_lie_over_processes(
    size: int, number: int, data: st.DataObject
) -> None:
    length = size * number
    completions = data.draw(
        st.lists(
            st.lists(st.sampled_from([1, 5, 6]), min_size=1, max_size=8),
            min_size=length,
            max_size=length,
        )
    )
    cuts = sorted(data.draw(st.sets(st.integers(1, length - 1))) if length > 1 else set())
    advantages = torch.linspace(-1, 1, length)
    whole = described(completions)
    parts = [described(completions[a:b]) for a, b in pairwise([0, *cuts, length])]
    split = torch.cat(parts)
    assert torch.equal(split, whole)
    assert figures(rows_of(split, size).counts(advantages)) == pytest.approx(
        oracle(
            [outcome_of(ids) for ids in completions],
            advantages.tolist(),
            size,
        ),
        nan_ok=True,
        abs=1e-6,
    )


def test_the_rows_of_a_failed_process_are_flagged_and_not_truncated() -> None:
    together = torch.cat([described([E3, T8]), failed_rows(2)])
    assert together[:, Column.FAILED].tolist() == [0, 0, 1, 1]
    assert rows_of(together, 2).truncated.tolist() == [False, True, False, False]
    assert failed_rows(2)[:, Column.OUTCOME].tolist() == [Outcome.TERMINATED] * 2
