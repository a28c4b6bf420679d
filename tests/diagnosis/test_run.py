"""What TRL's metrics mean, against `trl_logs`, which computes them from known completions."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support import trl_logs

from truncation_guard.diagnosis.run import Window, number, to_window

LIMIT = 100


def window(metrics: dict[str, Any], **options: bool) -> Window:
    found = to_window(metrics, **options)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("seed", range(20))
def test_the_mean_length_of_what_terminated_is_put_right_exactly(seed: int) -> None:
    """However many batches of a window had nothing that terminated, which TRL counts as 0."""
    draw = random.Random(seed)
    task = trl_logs.Task(seed, LIMIT, draw.uniform(60, 120), 20)
    batches = [task.batch(8) for _ in range(6)] + [[(LIMIT, False, 0.0)] * 8]
    ended = [length for batch in batches for length, is_ended, _ in batch if is_ended]
    metrics = trl_logs.window_figures(batches)
    found = window(metrics).terminated_length(LIMIT)
    if metrics["completions/clipped_ratio"] > 0.95:
        assert found is None
        return
    truth = sum(ended) / len(ended)
    assert found == pytest.approx(truth)
    assert metrics["completions/mean_terminated_length"] < truth - 5


def test_one_batch_of_two_without_any_end_halves_trls_own_figure() -> None:
    metrics = trl_logs.window_figures([[(40, True, 1.0)] * 8, [(LIMIT, False, 0.0)] * 8])
    assert metrics["completions/mean_terminated_length"] == 20
    assert metrics["completions/clipped_ratio"] == 0.5
    assert window(metrics).terminated_length(LIMIT) == 40


@pytest.mark.parametrize(
    ("figures", "limit"),
    [
        ({"ratio": 1.0, "mean_length": 100.0}, LIMIT),  # nothing terminated
        ({"ratio": 0.5, "mean_length": 60.0}, None),  # cut at an unknown length
        ({"ratio": 0.5, "mean_length": 30.0}, LIMIT),  # not all cut at the limit
        ({"ratio": 0.96, "mean_length": 99.0}, LIMIT),  # four digits are too few
        ({"ratio": 0.5, "mean_length": 60.0, "stopped": 0.1}, LIMIT),
        ({"ratio": 0.5, "mean_length": 60.0, "elsewhere": 0.1}, LIMIT),
        ({"ratio": 0.5}, LIMIT),
        ({"mean_length": 60.0}, LIMIT),
    ],
)
def test_what_cannot_be_put_right_is_none(figures: dict[str, float], limit: int | None) -> None:
    assert Window(**figures).terminated_length(limit) is None  # type: ignore[arg-type]


def test_where_nothing_was_cut_the_mean_is_that_of_what_terminated() -> None:
    assert Window(ratio=0.0, mean_length=60.0).terminated_length(None) == 60.0


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0.0),
        ("0.9375", 0.9375),
        ("1.638e+04", 16380.0),
        (" 5 ", 5.0),
        ("np.float64(0.5)", 0.5),
        ("tensor(0.25, device='cuda:0')", 0.25),
        ("nan", None),
        (float("nan"), None),
        ("inf", None),
        ("-Infinity", None),
        (None, None),
        ("None", None),
        ("", None),
        ("Table(x)", None),
        (True, None),
        (False, None),
        ([1], None),
        (10**400, None),
    ],
)
def test_a_number_is_read_from_whatever_was_printed(value: Any, expected: float | None) -> None:
    assert number(value) == expected


@pytest.mark.parametrize(
    ("printed", "length"),
    [
        ("1.638e+04", 16384.0),
        ("1.229e+04", 12288.0),
        ("3.277e+04", 32768.0),
        ("1.311e+05", 131072.0),
        ("1.31e+05", 131000.0),
        ("1.000e+04", 10000.0),  # 9984 and 10048 would print otherwise
        ("9999", 9999.0),
    ],
)
def test_digits_that_printing_lost_come_back_where_a_round_number_tells_them(
    printed: str, length: float
) -> None:
    metrics = {"completions/max_length": printed, "truncation_guard/limit": printed}
    assert window(metrics, printed=True).max_length == length
    assert window(metrics, printed=True).logged_limit == length


def test_numbers_of_a_state_are_taken_as_they_are() -> None:
    assert window({"completions/max_length": 16380.0}).max_length == 16380.0


def test_evaluation_is_told_by_its_prefix() -> None:
    assert to_window({"eval_reward": 0.5, "epoch": 1.0}) == (
        False,
        Window(epoch=1.0, reward=0.5),
        False,
    )
    assert to_window({"reward": 0.5, "step": 3}) == (True, Window(step=3.0, reward=0.5), False)


def test_weights_and_biases_names_are_read() -> None:
    metrics = {"train/reward": 0.5, "train/completions/clipped_ratio": 0.1, "train/global_step": 7}
    assert window(metrics) == Window(step=7.0, reward=0.5, ratio=0.1)
    assert to_window({"eval/reward": 0.5}) == (False, Window(reward=0.5), False)


def test_the_guards_figures_go_before_trls() -> None:
    metrics = {
        "reward": 0.1,
        "truncation_guard/reward": 0.3,
        "truncation_guard/groups_without_signal": 0.5,
        "frac_reward_zero_std": 0.2,
        "truncation_guard/truncated_share": 0.4,
        "truncation_guard/cause/context": 0.1,
        "truncation_guard/cause/tool": 0.2,
        "completions/clipped_ratio": 0.45,
    }
    assert window(metrics) == Window(
        reward=0.3, silent_groups=0.5, truncated=0.4, elsewhere=pytest.approx(0.3), ratio=0.45
    )
    assert window(metrics).unfinished == 0.4


def test_the_older_name_of_the_mean_length_does_not_replace_the_newer() -> None:
    for order in (1, -1):
        pairs = [("completion_length", 9.0), ("completions/mean_length", 8.0)][::order]
        assert window(dict(pairs)).mean_length == 8.0
    assert window({"completion_length": 9.0}).mean_length == 9.0


def test_calls_of_tools_are_noticed() -> None:
    found = to_window({"reward": 0.5, "tools/call_frequency": 0.3})
    assert found is not None
    assert found[2]
    never = to_window({"reward": 0.5, "tools/call_frequency": "0"})
    assert never is not None
    assert not never[2]  # then no tokens of theirs are left out of the lengths


@pytest.mark.parametrize(
    "metrics", [{}, {"loss": 1.0, "epoch": 1}, {"train_runtime": 3.0, "step": 8}, {"eval_loss": 1}]
)
def test_an_entry_about_something_else_is_none(metrics: dict[str, Any]) -> None:
    assert to_window(metrics) is None


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("completions/clipped_ratio", [-0.1, 1.1, 7, 1e308]),
        ("completions/max_length", [-1, 1e16, 1e99]),
        ("completions/mean_length", [-1, 1e16]),
        ("truncation_guard/truncated_share", [-0.1, 2]),
        ("reward", [1e100, -1e300, float("nan"), float("inf"), 10**400, "1" * 500]),
    ],
)
def test_what_nothing_can_measure_is_not_taken(name: str, values: list[Any]) -> None:
    for value in values:
        assert to_window({name: value, "reward_std": 0.5}) == to_window({"reward_std": 0.5})


@pytest.mark.parametrize(
    ("metrics", "means"),
    [
        ({"rewards/a/mean": 0.5, "rewards/b/mean": 0.25, "rewards/a/std": 9.0}, (0.25, 0.5)),
        ({"rewards/a": 0.5}, (0.5, 0.5)),  # before TRL 0.16
        ({"train/rewards/a/mean": 0.5, "rewards/overlong_punishment/mean": -1.0}, (0.5, 0.5)),
        ({"rewards/length_penalty/mean": 0.0}, None),
        ({"eval_rewards/a/mean": 0.5}, None),
    ],
)
def test_the_lowest_and_highest_mean_of_a_reward_function(
    metrics: dict[str, float], means: tuple[float, float] | None
) -> None:
    assert window({"reward": 0.5} | metrics).function_means == means
