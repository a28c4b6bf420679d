from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from truncation_guard import guard_advantages
from truncation_guard.batch.groups import GatheredRollouts, GroupFigure
from truncation_guard.batch.outcomes import (
    Column,
    GenerationRules,
    Outcome,
    describe_completions,
    failed_rows,
)

T8 = [5, 6, 7, 8, 9, 10, 11, 12]
E3 = [5, 6, 1]
RULES = GenerationRules(stop_token_ids=frozenset({1}), pad_token_id=0, limit=8, context_window=None)


def gathered(outcomes: list[int], num_generations: int) -> GatheredRollouts:
    rows = torch.zeros((len(outcomes), len(Column)), dtype=torch.int64)
    rows[:, Column.OUTCOME] = torch.tensor(outcomes)
    return GatheredRollouts(rows, num_generations)


def figures(counts: Tensor) -> dict[GroupFigure, float]:
    assert counts.shape == (len(GroupFigure),)
    assert counts.dtype == torch.float32
    return dict(zip(GroupFigure, counts.tolist(), strict=True))


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
) -> dict[GroupFigure, float]:
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
        GroupFigure.TRUNCATED: sum(number > 0 for number in per_group),
        GroupFigure.ALL_TRUNCATED: sum(number == size for number in per_group),
        GroupFigure.ONE_SURVIVOR: sum(number == size - 1 for number in per_group),
        GroupFigure.WORST: max(per_group),
        GroupFigure.WITHOUT_SIGNAL: silent,
        GroupFigure.TRUNCATED_WITHOUT_SIGNAL: silent_and_truncated,
        GroupFigure.SURVIVOR_ADVANTAGE_SUM: math.fsum(sums) / len(sums) if sums else math.nan,
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
    counts = gathered(outcomes, size).group_counts(
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
    assert figures(rollouts.group_counts(torch.tensor(advantages))) == {
        GroupFigure.TRUNCATED: 2,
        GroupFigure.ALL_TRUNCATED: 1,
        GroupFigure.ONE_SURVIVOR: 1,
        GroupFigure.WORST: 3,
        GroupFigure.WITHOUT_SIGNAL: 2,
        GroupFigure.TRUNCATED_WITHOUT_SIGNAL: 1,
        GroupFigure.SURVIVOR_ADVANTAGE_SUM: 0.75,
    }


def test_figures_of_advantages_are_nan_without_advantages_and_the_others_are_there() -> None:
    counts = gathered([1, 1, 1, 0], 2).group_counts(None, torch.tensor([True, True]))
    found = figures(counts)
    unknown = {figure for figure, value in found.items() if math.isnan(value)}
    assert unknown == {
        GroupFigure.WITHOUT_SIGNAL,
        GroupFigure.TRUNCATED_WITHOUT_SIGNAL,
        GroupFigure.SURVIVOR_ADVANTAGE_SUM,
    }
    assert found[GroupFigure.TRUNCATED] == 2
    assert found[GroupFigure.ALL_TRUNCATED] == 1
    assert found[GroupFigure.ONE_SURVIVOR] == 1
    assert found[GroupFigure.WORST] == 2


def test_the_sum_over_survivors_is_not_known_without_a_group_with_truncation() -> None:
    found = figures(gathered([0, 2, 0, 0], 2).group_counts(torch.ones(4)))
    assert math.isnan(found[GroupFigure.SURVIVOR_ADVANTAGE_SUM])
    assert found[GroupFigure.WITHOUT_SIGNAL] == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_advantages_may_have_any_precision(dtype: torch.dtype) -> None:
    counts = gathered([1, 0], 2).group_counts(torch.tensor([0, 0.5], dtype=dtype))
    assert figures(counts)[GroupFigure.SURVIVOR_ADVANTAGE_SUM] == 0.5


@pytest.mark.parametrize("others", [math.inf, -math.inf, math.nan, 1e30])
def test_a_group_without_truncation_is_no_part_of_the_sum_whatever_its_advantages(
    others: float,
) -> None:
    rollouts = gathered([0, 0, 1, 0, 2, 0, 1, 0], 2)
    advantages = torch.tensor([others, others, 9.0, 0.25, others, -others, 9.0, 0.5])
    found = figures(rollouts.group_counts(advantages))
    assert found[GroupFigure.SURVIVOR_ADVANTAGE_SUM] == 0.375


@pytest.mark.parametrize(("rewards", "rounding"), [([0.5] * 8, False), ([0.1] * 8, True)])
def test_a_group_of_equal_rewards_has_no_signal_whatever_the_rounding_of_its_mean(
    rewards: list[float], rounding: bool
) -> None:
    """The mean of eight times 0.1 is not 0.1 in float32; TRL divides the rest by 1e-4."""
    rollouts = gathered([1, 0, 0, 0, 0, 0, 0, 0], 8)
    made = torch.tensor(rewards)
    advantages, _ = guard_advantages(made, rollouts.truncated, 8, mode="observe")
    assert bool(advantages.any()) == rounding
    found = figures(rollouts.group_counts(advantages, rollouts.uniform_groups(made.unsqueeze(1))))
    assert found[GroupFigure.WITHOUT_SIGNAL] == 1
    assert found[GroupFigure.TRUNCATED_WITHOUT_SIGNAL] == 1


def test_uniform_rewards_of_a_group_without_truncation_are_no_signal_lost_to_truncation() -> None:
    rollouts = gathered([0, 0, 1, 0, 0, 1], 2)
    counts = rollouts.group_counts(
        torch.tensor([1e-5, 1e-5, 1e-5, 1e-5, 0.5, 0.0]), torch.tensor([True, True, False])
    )
    found = figures(counts)
    assert found[GroupFigure.WITHOUT_SIGNAL] == 2
    assert found[GroupFigure.TRUNCATED_WITHOUT_SIGNAL] == 1


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
        found = gathered([0] * 9, 3).uniform_groups(torch.tensor(beside, dtype=dtype).unsqueeze(1))
        assert found.dtype == torch.bool
        assert found.tolist() == [False, uniform, True]


def test_a_group_of_one_is_uniform() -> None:
    rewards = torch.tensor([1.0, NAN, -INF])
    assert gathered([0, 1, 2], 1).uniform_groups(rewards.unsqueeze(1)).tolist() == [True] * 3


@settings(deadline=None)
@given(size=st.integers(1, 4), number=st.integers(1, 5), data=st.data())
def test_uniform_groups_are_those_with_one_distinct_reward(
    size: int, number: int, data: st.DataObject
) -> None:
    value = st.sampled_from([NAN, INF, -INF, 0.0, 0.1, -1.5])
    rewards = data.draw(st.lists(value, min_size=size * number, max_size=size * number))
    groups = [rewards[first : first + size] for first in range(0, size * number, size)]
    expected = [len({reward for reward in group if reward == reward}) <= 1 for group in groups]
    found = gathered([0] * size * number, size).uniform_groups(torch.tensor(rewards).unsqueeze(1))
    assert found.tolist() == expected


@pytest.mark.parametrize("mode", ["exclude", "downweight"])
def test_one_survivor_or_none_leaves_no_signal_in_case_4(mode: str) -> None:
    rollouts = gathered([1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0], 4)
    rewards = torch.tensor([1.0, 0, 0, 0.5, 1, 0, 0, 1, 1, 0, 0, 0])
    advantages, _ = guard_advantages(rewards, rollouts.truncated, 4, mode=mode)  # type: ignore[arg-type]
    found = figures(rollouts.group_counts(advantages))
    # With downweight the truncated rewards stay in the baseline: the one survivor learns.
    assert found[GroupFigure.WITHOUT_SIGNAL] == (2 if mode == "exclude" else 1)
    assert found[GroupFigure.ALL_TRUNCATED] == 1
    assert found[GroupFigure.ONE_SURVIVOR] == 1


# --- processes ----------------------------------------------------------------------------------


def test_groups_that_straddle_two_processes_count_as_in_case_5() -> None:
    by_process = [described([E3] * 3), described([T8] * 3)]
    rollouts = GatheredRollouts(torch.cat(by_process), 2)
    assert rollouts.truncated.tolist() == [False, False, False, True, True, True]
    found = figures(rollouts.group_counts(torch.zeros(6)))
    assert found[GroupFigure.TRUNCATED] == 2
    assert found[GroupFigure.ALL_TRUNCATED] == 1
    assert found[GroupFigure.ONE_SURVIVOR] == 1
    assert found[GroupFigure.WORST] == 2
    assert found[GroupFigure.WITHOUT_SIGNAL] == 3
    assert found[GroupFigure.TRUNCATED_WITHOUT_SIGNAL] == 2


@settings(deadline=None, max_examples=40)
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
    whole = GatheredRollouts(described(completions), size)
    parts = [described(completions[a:b]) for a, b in pairwise([0, *cuts, length])]
    split = GatheredRollouts(torch.cat(parts), size)
    assert torch.equal(split.rows, whole.rows)
    assert figures(split.group_counts(advantages)) == pytest.approx(
        oracle(
            [outcome_of(ids) for ids in completions],
            advantages.tolist(),
            size,
        ),
        nan_ok=True,
        abs=1e-6,
    )


def test_one_failed_process_is_seen_by_all() -> None:
    healthy = described([E3, T8])
    assert not GatheredRollouts(healthy, 2).any_failed
    together = GatheredRollouts(torch.cat([healthy, failed_rows(2)]), 2)
    assert together.any_failed
    assert together.truncated.tolist() == [False, True, False, False]
    assert failed_rows(2)[:, Column.OUTCOME].tolist() == [Outcome.TERMINATED] * 2
