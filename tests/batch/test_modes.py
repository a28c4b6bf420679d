from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from truncation_guard import guard_advantages
from truncation_guard.batch.modes import advantage_weights, guard_rewards
from truncation_guard.options import MODES, check_mode_arguments

NAN = math.nan
SCALES = ("group", "batch", "none")


def same(left: Tensor, right: Tensor) -> bool:
    """Bit for bit, NaN equal to NaN."""
    return left.dtype == right.dtype and torch.equal(left.nan_to_num(99), right.nan_to_num(99))


def rows(values: list[float], dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def flags(values: list[int] | list[bool]) -> Tensor:
    return torch.tensor(values, dtype=torch.bool)


# --- the independent computation ----------------------------------------------------------------


def baseline(values: list[float], size: int, scale: str) -> list[float]:
    """GRPO's advantages in plain Python, group by group; unscorable rows get 0."""
    known_of_all = [value for value in values if not math.isnan(value)]
    advantages = []
    for first in range(0, len(values), size):
        group = values[first : first + size]
        known = [value for value in group if not math.isnan(value)]
        among = known if scale == "group" else known_of_all
        for value in group:
            if math.isnan(value) or (scale != "none" and len(among) < 2):
                advantages.append(0.0)
                continue
            advantage = value - statistics.fmean(known)
            if scale != "none":
                advantage /= statistics.stdev(among) + 1e-4
            advantages.append(advantage)
    return advantages


def oracle(
    values: list[float],
    truncated: list[bool],
    size: int,
    mode: str,
    weight: float,
    reward: float,
    scale: str,
) -> tuple[list[float], list[bool]]:
    if mode == "exclude":
        values = [NAN if cut else value for value, cut in zip(values, truncated, strict=True)]
    if mode == "penalize":
        values = [
            reward if cut and value > reward else value
            for value, cut in zip(values, truncated, strict=True)
        ]
    advantages = baseline(values, size, scale)
    if mode == "downweight":
        advantages = [
            a * weight if cut else a for a, cut in zip(advantages, truncated, strict=True)
        ]
    return advantages, [mode != "exclude" or not cut for cut in truncated]


REWARDS = st.integers(-16, 16).map(lambda eighths: eighths / 8)
WEIGHTS = st.integers(0, 8).map(lambda eighths: eighths / 8)


@st.composite
def batches(draw: st.DrawFn, *, with_nan: bool = True) -> tuple[list[float], list[bool], int]:
    size, number = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    value = st.one_of(REWARDS, REWARDS, st.just(NAN)) if with_nan else REWARDS
    length = size * number
    return (
        draw(st.lists(value, min_size=length, max_size=length)),
        draw(st.lists(st.booleans(), min_size=length, max_size=length)),
        size,
    )


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("mode", MODES)
@settings(deadline=None)
@given(made=batches(), weight=WEIGHTS, reward=REWARDS)
def test_it_is_what_a_slow_loop_over_the_groups_gives(
    mode: Any,
    scale: Any,
    made: tuple[list[float], list[bool], int],
    weight: float,
    reward: float,
) -> None:
    values, truncated, size = made
    advantages, keep = guard_advantages(
        rows(values),
        flags(truncated),
        size,
        mode=mode,
        truncated_weight=weight,
        truncated_reward=reward,
        scale_rewards=scale,
    )
    expected, expected_keep = oracle(values, truncated, size, mode, weight, reward, scale)
    assert keep.tolist() == expected_keep
    assert keep.dtype == torch.bool
    assert advantages.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)


@settings(deadline=None)
@given(made=batches(), scale=st.sampled_from(["group", "none"]))
def test_exclude_equals_dropping_the_rows(
    made: tuple[list[float], list[bool], int], scale: Any
) -> None:
    values, truncated, size = made
    advantages, keep = guard_advantages(
        rows(values), flags(truncated), size, mode="exclude", scale_rewards=scale
    )
    for first in range(0, len(values), size):
        kept = [row for row in range(first, first + size) if not truncated[row]]
        assert keep[first : first + size].tolist() == [
            row in kept for row in range(first, first + size)
        ]
        assert not advantages[first : first + size][~keep[first : first + size]].any()
        if kept:
            alone, _ = guard_advantages(
                rows([values[row] for row in kept]),
                flags([False] * len(kept)),
                len(kept),
                mode="observe",
                scale_rewards=scale,
            )
            assert advantages[kept].tolist() == pytest.approx(alone.tolist(), rel=1e-9, abs=1e-9)


@settings(deadline=None)
@given(made=batches(), mode=st.sampled_from(MODES), scale=st.sampled_from(SCALES), data=st.data())
def test_permuting_whole_groups_permutes_the_result(
    made: tuple[list[float], list[bool], int], mode: Any, scale: Any, data: st.DataObject
) -> None:
    values, truncated, size = made
    order = data.draw(st.permutations(range(len(values) // size)))
    index = torch.tensor([group * size + row for group in order for row in range(size)])
    arguments: dict[str, Any] = {
        "mode": mode,
        "truncated_weight": 0.25,
        "truncated_reward": -0.5,
        "scale_rewards": scale,
    }
    plain, plain_keep = guard_advantages(rows(values), flags(truncated), size, **arguments)
    moved, moved_keep = guard_advantages(
        rows(values)[index], flags(truncated)[index], size, **arguments
    )
    torch.testing.assert_close(moved, plain[index], rtol=1e-12, atol=1e-12)
    assert torch.equal(moved_keep, plain_keep[index])


@settings(deadline=None)
@given(made=batches(), scale=st.sampled_from(SCALES))
def test_downweight_with_weight_1_is_observe_bit_for_bit(
    made: tuple[list[float], list[bool], int], scale: Any
) -> None:
    values, truncated, size = made
    observed = guard_advantages(
        rows(values), flags(truncated), size, mode="observe", scale_rewards=scale
    )
    weighted = guard_advantages(
        rows(values),
        flags(truncated),
        size,
        mode="downweight",
        truncated_weight=1.0,
        scale_rewards=scale,
    )
    assert same(weighted[0], observed[0])
    assert torch.equal(weighted[1], observed[1])


@settings(deadline=None)
@given(made=batches(with_nan=False), weight=WEIGHTS)
def test_downweight_leaves_the_others_and_is_linear_in_the_weight(
    made: tuple[list[float], list[bool], int], weight: float
) -> None:
    values, truncated, size = made
    cut = flags(truncated)
    observed, _ = guard_advantages(rows(values), cut, size, mode="observe")
    weighted, keep = guard_advantages(
        rows(values), cut, size, mode="downweight", truncated_weight=weight
    )
    assert torch.equal(weighted[~cut], observed[~cut])
    assert torch.equal(weighted[cut], observed[cut] * weight)
    assert keep.all()


@settings(deadline=None)
@given(made=batches(), mode=st.sampled_from(MODES), scale=st.sampled_from(SCALES))
def test_without_truncated_rows_every_mode_is_observe_bit_for_bit(
    made: tuple[list[float], list[bool], int], mode: Any, scale: Any
) -> None:
    values, truncated, size = made
    none_cut = flags([False] * len(truncated))
    observed = guard_advantages(rows(values), none_cut, size, mode="observe", scale_rewards=scale)
    guarded = guard_advantages(rows(values), none_cut, size, mode=mode, scale_rewards=scale)
    assert same(guarded[0], observed[0])
    assert guarded[1].all()
    assert observed[1].all()


@settings(deadline=None)
@given(made=batches(), scale=st.sampled_from(SCALES))
def test_observe_does_not_look_at_truncation(
    made: tuple[list[float], list[bool], int], scale: Any
) -> None:
    values, truncated, size = made
    some = guard_advantages(
        rows(values), flags(truncated), size, mode="observe", scale_rewards=scale
    )
    none = guard_advantages(
        rows(values), flags([False] * len(truncated)), size, mode="observe", scale_rewards=scale
    )
    assert same(some[0], none[0])
    assert some[1].all()


@settings(deadline=None)
@given(made=batches())
def test_an_unscorable_row_gets_0_in_every_mode_and_nothing_is_nan(
    made: tuple[list[float], list[bool], int],
) -> None:
    values, truncated, size = made
    for mode in MODES:
        for scale in SCALES:
            advantages, _ = guard_advantages(
                rows(values),
                flags(truncated),
                size,
                mode=mode,
                truncated_weight=0.5,
                scale_rewards=scale,  # type: ignore[arg-type]
            )
            assert advantages.isfinite().all()
            assert not advantages[rows(values).isnan()].any()


# --- the right values of cases.md ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("rewards", "truncated", "arguments", "expected"),
    [
        ([1, 0, 0, 0], [0, 0, 1, 1], {"mode": "exclude"}, [0.7070, -0.7070, 0, 0]),
        ([1, 0, 0, 0], [0, 0, 1, 1], {"mode": "downweight"}, [1.4997, -0.4999, 0, 0]),
        (
            [1, 0, 0, 0],
            [0, 0, 1, 1],
            {"mode": "exclude", "scale_rewards": "none"},
            [0.5, -0.5, 0, 0],
        ),
        ([1, 1, 0, 0], [0, 0, 1, 1], {"mode": "exclude"}, [0, 0, 0, 0]),
        ([1, 0, 0, 0], [0, 0, 1, 0], {"mode": "exclude"}, [1.1545, -0.5773, 0, -0.5773]),
    ],
)
def test_the_baseline_of_case_3(
    rewards: list[float], truncated: list[int], arguments: dict[str, Any], expected: list[float]
) -> None:
    for dtype in (torch.float32, torch.float64):
        advantages, keep = guard_advantages(rows(rewards, dtype), flags(truncated), 4, **arguments)
        assert advantages.tolist() == pytest.approx(expected, abs=5e-5)
        kept = [not cut or arguments["mode"] != "exclude" for cut in truncated]
        assert keep.tolist() == kept


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("truncated", [[0, 1, 1, 1], [1, 1, 0, 1], [1, 1, 1, 1]])
def test_a_group_with_one_survivor_or_none_gets_0_as_in_case_4(
    truncated: list[int], scale: Any
) -> None:
    # A second group, so that "batch" has a deviation to divide by.
    advantages, _ = guard_advantages(
        rows([1, 0, 0.5, 0.25, 1, 0, 0, 0]),
        flags([*truncated, 0, 0, 0, 0]),
        4,
        mode="exclude",
        scale_rewards=scale,
    )
    assert advantages[:4].tolist() == [0, 0, 0, 0]
    assert advantages[4] > 0


@pytest.mark.parametrize("scale", SCALES)
def test_a_batch_that_was_truncated_as_a_whole_gets_0(scale: Any) -> None:
    advantages, keep = guard_advantages(
        rows([1, 0, 0.5, 0.25]), flags([1, 1, 1, 1]), 2, mode="exclude", scale_rewards=scale
    )
    assert advantages.tolist() == [0, 0, 0, 0]
    assert not keep.any()


@pytest.mark.parametrize("mode", MODES)
def test_a_row_on_which_all_reward_functions_abstain_stays_out_as_in_case_10(mode: Any) -> None:
    advantages, keep = guard_advantages(
        rows([1, 0, NAN, NAN]),
        flags([0, 0, 1, 0]),
        4,
        mode=mode,
        truncated_weight=0.5,
        truncated_reward=-5.0,
    )
    # Mean 0.5 and deviation 0.7071 of the two that were scored.
    assert advantages.tolist() == pytest.approx([0.7070, -0.7070, 0, 0], abs=5e-5)
    assert keep.tolist() == [True, True, mode != "exclude", True]


def test_penalize_bounds_the_reward_of_truncated_rows_from_above_before_the_baseline() -> None:
    advantages, keep = guard_advantages(
        rows([1, 0, 1, -1]),
        flags([0, 0, 1, 1]),
        4,
        mode="penalize",
        truncated_reward=-0.5,
        scale_rewards="none",
    )
    # The mean of 1, 0, -0.5 and -1 is -0.125.
    assert advantages.tolist() == [1.125, 0.125, -0.375, -0.875]
    assert keep.all()


def test_by_default_a_truncated_row_has_weight_0_and_keeps_no_reward_above_0() -> None:
    arguments = rows([1, 0, 1, -1]), flags([0, 0, 1, 1]), 4
    weighted, _ = guard_advantages(*arguments, mode="downweight", scale_rewards="none")
    assert weighted.tolist() == [0.75, -0.25, 0, 0]
    bounded, _ = guard_advantages(*arguments, mode="penalize", scale_rewards="none")
    assert bounded.tolist() == [1, 0, 0, -1]
    bounded_rewards = guard_rewards(arguments[0], arguments[1], mode="penalize")
    assert bounded_rewards.tolist() == [1, 0, 0, -1]
    assert advantage_weights(arguments[1], mode="downweight").tolist() == [1, 1, 0, 0]


def test_scaling_over_the_batch_keeps_the_mean_of_each_group() -> None:
    advantages, _ = guard_advantages(
        rows([1, 0, 3, 1]), flags([0, 0, 0, 0]), 2, mode="observe", scale_rewards="batch"
    )
    deviation = statistics.stdev([1, 0, 3, 1]) + 1e-4
    expected = [0.5 / deviation, -0.5 / deviation, 1 / deviation, -1 / deviation]
    assert advantages.tolist() == pytest.approx(expected)


def test_a_group_of_one_has_no_advantage() -> None:
    for scale in SCALES:
        advantages, _ = guard_advantages(
            rows([1, 5]),
            flags([0, 1]),
            1,
            mode="observe",
            scale_rewards=scale,  # type: ignore[arg-type]
        )
        assert advantages.tolist() == [0, 0]


# --- dtypes, shapes, inputs left alone ----------------------------------------------------------


@pytest.mark.parametrize(
    ("given_dtype", "dtype"),
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float16),
        (torch.int64, torch.float32),
        (torch.bool, torch.float32),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_advantages_have_the_dtype_of_the_rewards_where_that_is_floating_point(
    mode: Any, given_dtype: torch.dtype, dtype: torch.dtype
) -> None:
    rewards = torch.tensor([1, 0, 0, 0], dtype=given_dtype)
    advantages, keep = guard_advantages(rewards, flags([0, 0, 0, 0]), 4, mode=mode)
    assert (advantages.dtype, keep.dtype) == (dtype, torch.bool)
    assert advantages.tolist() == pytest.approx([1.4997, -0.4999, -0.4999, -0.4999], abs=0.02)


@pytest.mark.parametrize("weight", [0.1, 1 / 3, 0.7])
def test_float64_stays_exact_under_a_weight_that_float32_would_round(weight: float) -> None:
    assert torch.tensor(weight, dtype=torch.float32).item() != weight
    rewards, truncated = rows([1, 0, 0.25, 0.1]), flags([0, 1, 1, 0])
    observed, _ = guard_advantages(rewards, truncated, 4, mode="observe")
    weighted, _ = guard_advantages(
        rewards, truncated, 4, mode="downweight", truncated_weight=weight
    )
    a, b, c, d = observed.tolist()
    assert weighted.tolist() == [a, b * weight, c * weight, d]


def test_truncated_may_be_integers() -> None:
    rewards = rows([1, 0, 0, 0])
    as_integers = guard_advantages(rewards, torch.tensor([0, 0, 1, 2]), 4, mode="exclude")
    as_flags = guard_advantages(rewards, flags([0, 0, 1, 1]), 4, mode="exclude")
    assert torch.equal(as_integers[0], as_flags[0])
    assert torch.equal(as_integers[1], as_flags[1])


def test_rewards_may_be_a_column_of_a_table() -> None:
    table = torch.tensor([[1.0, 7], [0, 7], [0, 7], [0, 7], [2, 7], [0, 7], [0, 7], [0, 7]])
    cut = flags([0, 0, 1, 1, 0, 0, 0, 1])
    strided, _ = guard_advantages(table[:, 0], cut, 4, mode="exclude", scale_rewards="batch")
    dense, _ = guard_advantages(table[:, 0].clone(), cut, 4, mode="exclude", scale_rewards="batch")
    assert torch.equal(strided, dense)


def test_no_rows_give_no_rows() -> None:
    advantages, keep = guard_advantages(torch.zeros(0), flags([]), 4, mode="exclude")
    assert (advantages.shape, keep.shape) == ((0,), (0,))


@pytest.mark.parametrize("mode", MODES)
def test_the_arguments_are_left_as_they_were(mode: Any) -> None:
    rewards, truncated = rows([1, 0, 0.5, NAN]), flags([0, 1, 1, 0])
    rewards_before, truncated_before = rewards.clone(), truncated.clone()
    guard_advantages(rewards, truncated, 4, mode=mode, truncated_reward=-1.0)
    guard_rewards(rewards, truncated, mode=mode, truncated_reward=-1.0)
    advantage_weights(truncated, mode=mode, truncated_weight=0.5, loss_divides_by_rows=True)
    assert same(rewards, rewards_before)
    assert torch.equal(truncated, truncated_before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"mode": "mask"},
            "`mode` must be one of 'observe', 'downweight', 'exclude', 'penalize', got 'mask'.",
        ),
        (
            {"truncated_weight": -1},
            "`truncated_weight` must be in [0, 1], got -1. Pass 0.0 to ignore truncated "
            "completions, 1.0 to leave their advantages as they are.",
        ),
        (
            {"truncated_weight": True},
            "`truncated_weight` must be in [0, 1], got True. Pass 0.0 to ignore truncated "
            "completions, 1.0 to leave their advantages as they are.",
        ),
        (
            {"truncated_reward": "0.0"},
            "`truncated_reward` must be a finite number, got '0.0'. Pass the highest reward that a "
            "truncated completion may keep, for example 0.0.",
        ),
        (
            {"truncated_reward": NAN},
            "`truncated_reward` must be a finite number, got nan. Pass the highest reward that a "
            "truncated completion may keep, for example 0.0.",
        ),
        (
            {"scale_rewards": True},
            "`scale_rewards` must be 'group', 'batch' or 'none', got True.",
        ),
        (
            {"rewards": torch.zeros(8, 2)},
            "`rewards` and `truncated` must both have shape (rows,), got (8, 2) and (8,). "
            "Sum the reward functions before the call.",
        ),
        (
            {"truncated": flags([1] * 4)},
            "`rewards` and `truncated` must both have shape (rows,), got (8,) and (4,). "
            "Sum the reward functions before the call.",
        ),
        (
            {"num_generations": 3},
            "`num_generations` must divide the 8 rows, got 3. "
            "Pass the rows of all processes, whole groups of them.",
        ),
        (
            {"num_generations": 0},
            "`num_generations` must divide the 8 rows, got 0. "
            "Pass the rows of all processes, whole groups of them.",
        ),
        (
            {"num_generations": -4},
            "`num_generations` must divide the 8 rows, got -4. "
            "Pass the rows of all processes, whole groups of them.",
        ),
    ],
)
def test_a_wrong_argument_is_refused_with_name_value_and_remedy(
    change: dict[str, Any], message: str
) -> None:
    arguments: dict[str, Any] = {
        "rewards": torch.zeros(8),
        "truncated": flags([0] * 8),
        "num_generations": 4,
        "mode": "observe",
    }
    guard_advantages(**arguments)
    with pytest.raises(ValueError, match=r"^`") as refused:
        guard_advantages(**(arguments | change))
    assert str(refused.value) == message


@pytest.mark.parametrize("weight", [0.0, 1.0, 0, 1])
@pytest.mark.parametrize("reward", [-1e30, 0, 1e30])
def test_the_ends_of_the_ranges_are_inside(weight: float, reward: float) -> None:
    for mode in MODES:
        check_mode_arguments(mode, weight, reward)


# --- the two changes around a trainer's own baseline --------------------------------------------


def table() -> tuple[Tensor, Tensor]:
    """Two reward functions, four rows, the last three truncated."""
    rewards = torch.tensor([[2.0, 2.0], [1.0, -3.0], [NAN, 0.5], [NAN, NAN]])
    return rewards, flags([0, 1, 1, 1])


def test_exclude_takes_every_reward_of_a_truncated_row_away() -> None:
    rewards, truncated = table()
    guarded = guard_rewards(rewards, truncated, mode="exclude")
    assert same(guarded, torch.tensor([[2.0, 2.0], [NAN, NAN], [NAN, NAN], [NAN, NAN]]))


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        (0.0, [[2, 2], [0, -3], [NAN, 0], [NAN, NAN]]),
        (0.5, [[2, 2], [0.5, -3], [NAN, 0.5], [NAN, NAN]]),
        (-4.0, [[2, 2], [-4, -4], [NAN, -4], [NAN, NAN]]),
        (9.0, [[2, 2], [1, -3], [NAN, 0.5], [NAN, NAN]]),
    ],
)
def test_penalize_bounds_every_reward_of_a_truncated_row_and_lets_abstentions_be(
    bound: float, expected: list[list[float]]
) -> None:
    rewards, truncated = table()
    guarded = guard_rewards(rewards, truncated, mode="penalize", truncated_reward=bound)
    assert same(guarded, torch.tensor(expected, dtype=torch.float32))


@pytest.mark.parametrize("mode", ["observe", "downweight"])
def test_the_other_modes_hand_the_rewards_through(mode: Any) -> None:
    rewards, truncated = table()
    assert guard_rewards(rewards, truncated, mode=mode, truncated_reward=-9.0) is rewards


@pytest.mark.parametrize("mode", ["exclude", "penalize"])
def test_rewards_without_truncated_rows_are_the_same_bit_for_bit(mode: Any) -> None:
    rewards, _ = table()
    guarded = guard_rewards(rewards, flags([0, 0, 0, 0]), mode=mode, truncated_reward=-9.0)
    assert same(guarded, rewards)


@pytest.mark.parametrize("mode", ["exclude", "penalize"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_rewards_keep_their_dtype(mode: Any, dtype: torch.dtype) -> None:
    rewards, truncated = table()
    assert guard_rewards(rewards.to(dtype), truncated, mode=mode).dtype == dtype


@pytest.mark.parametrize(
    ("mode", "by_rows", "expected"),
    [
        ("observe", False, [1, 1, 1, 1, 1, 1]),
        ("observe", True, [1, 1, 1, 1, 1, 1]),
        ("penalize", False, [1, 1, 1, 1, 1, 1]),
        ("penalize", True, [1, 1, 1, 1, 1, 1]),
        ("downweight", False, [1, 0.25, 1, 1, 0.25, 1]),
        ("downweight", True, [1, 0.25, 1, 1, 0.25, 1]),
        ("exclude", False, [1, 0, 1, 1, 0, 1]),
        ("exclude", True, [1.5, 0, 1.5, 1.5, 0, 1.5]),  # 6 rows, 4 kept
    ],
)
def test_each_mode_has_its_factor_of_the_advantage(
    mode: Any, by_rows: bool, expected: list[float]
) -> None:
    weights = advantage_weights(
        flags([0, 1, 0, 0, 1, 0]), mode=mode, truncated_weight=0.25, loss_divides_by_rows=by_rows
    )
    assert weights.dtype == torch.float32
    assert weights.tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_factors_have_the_dtype_that_is_asked_for(
    mode: Any, by_rows: bool, dtype: torch.dtype
) -> None:
    cut, kept = flags([0, 1, 0, 1]), 2.0 if mode == "exclude" and by_rows else 1.0
    factor = {"downweight": 0.1, "exclude": 0.0}.get(mode, 1.0)
    weights = advantage_weights(
        cut, mode=mode, truncated_weight=0.1, loss_divides_by_rows=by_rows, dtype=dtype
    )
    assert torch.equal(weights, torch.tensor([kept, factor, kept, factor], dtype=dtype))


def test_the_factor_of_the_kept_rows_is_exact_in_float64() -> None:
    weights = advantage_weights(
        flags([0, 0, 0, 1, 1, 1, 1]),
        mode="exclude",
        loss_divides_by_rows=True,
        dtype=torch.float64,
    )
    assert weights.tolist() == [7 / 3, 7 / 3, 7 / 3, 0, 0, 0, 0]


@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_the_factors_of_a_batch_without_truncation_are_1(mode: Any, by_rows: bool) -> None:
    weights = advantage_weights(flags([0] * 7), mode=mode, loss_divides_by_rows=by_rows)
    assert torch.equal(weights, torch.ones(7))


@pytest.mark.parametrize("by_rows", [False, True])
def test_the_factors_of_a_batch_of_truncated_rows_are_0(by_rows: bool) -> None:
    weights = advantage_weights(flags([1] * 5), mode="exclude", loss_divides_by_rows=by_rows)
    assert torch.equal(weights, torch.zeros(5))


def test_case_3_for_a_loss_that_divides_by_rows() -> None:
    truncated = flags([0, 0, 1, 1])
    advantages, _ = guard_advantages(rows([1, 0, 0, 0]), truncated, 4, mode="exclude")
    factor = advantage_weights(truncated, mode="exclude", loss_divides_by_rows=True)
    assert (advantages * factor).tolist() == pytest.approx([1.4140, -1.4140, 0, 0], abs=5e-5)
