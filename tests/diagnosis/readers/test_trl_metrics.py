"""What TRL's metrics mean, against `trl_logs`, which computes them from known completions."""

from __future__ import annotations

from typing import Any

import pytest

from truncation_guard.diagnosis.readers.trl_metrics import number, to_entry
from truncation_guard.diagnosis.run import LogEntry


def entry(metrics: dict[str, Any], **options: bool) -> LogEntry:
    found = to_entry(metrics, **options)
    assert found is not None
    return found[1]


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
    assert entry(metrics, printed=True).max_length == length
    assert entry(metrics, printed=True).logged_limit == length


def test_numbers_of_a_state_are_taken_as_they_are() -> None:
    assert entry({"completions/max_length": 16380.0}).max_length == 16380.0


def test_evaluation_is_told_by_its_prefix() -> None:
    assert to_entry({"eval_reward": 0.5, "epoch": 1.0}) == (
        False,
        LogEntry(epoch=1.0, reward=0.5),
        False,
    )
    assert to_entry({"reward": 0.5, "step": 3}) == (True, LogEntry(step=3.0, reward=0.5), False)


def test_weights_and_biases_names_are_read() -> None:
    metrics = {"train/reward": 0.5, "train/completions/clipped_ratio": 0.1, "train/global_step": 7}
    assert entry(metrics) == LogEntry(step=7.0, reward=0.5, ratio=0.1)
    assert to_entry({"eval/reward": 0.5}) == (False, LogEntry(reward=0.5), False)


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
    assert entry(metrics) == LogEntry(
        reward=0.3, silent_groups=0.5, truncated=0.4, elsewhere=pytest.approx(0.3), ratio=0.45
    )
    assert entry(metrics).unfinished == 0.4


def test_the_older_name_of_the_mean_length_does_not_replace_the_newer() -> None:
    for order in (1, -1):
        pairs = [("completion_length", 9.0), ("completions/mean_length", 8.0)][::order]
        assert entry(dict(pairs)).mean_length == 8.0
    assert entry({"completion_length": 9.0}).mean_length == 9.0


def test_calls_of_tools_are_noticed() -> None:
    found = to_entry({"reward": 0.5, "tools/call_frequency": 0.3})
    assert found is not None
    assert found[2]
    never = to_entry({"reward": 0.5, "tools/call_frequency": "0"})
    assert never is not None
    assert not never[2]  # then no tokens of theirs are left out of the lengths


@pytest.mark.parametrize(
    "metrics", [{}, {"loss": 1.0, "epoch": 1}, {"train_runtime": 3.0, "step": 8}, {"eval_loss": 1}]
)
def test_an_entry_about_something_else_is_none(metrics: dict[str, Any]) -> None:
    assert to_entry(metrics) is None


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
        assert to_entry({name: value, "reward_std": 0.5}) == to_entry({"reward_std": 0.5})


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
    assert entry({"reward": 0.5} | metrics).function_means == means
