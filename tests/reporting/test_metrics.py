from __future__ import annotations

import math

import pytest
from support.batches import batch, groups

from truncation_guard.batch.counts import BatchCounts
from truncation_guard.reporting.metrics import batch_metrics

NAMES = {
    "truncation_guard/truncated_share",
    "truncation_guard/cause/limit",
    "truncation_guard/cause/context",
    "truncation_guard/cause/tool",
    "truncation_guard/stopped_share",
    "truncation_guard/groups_truncated",
    "truncation_guard/groups_all_truncated",
    "truncation_guard/groups_without_signal",
    "truncation_guard/survivor_advantage_sum",
    "truncation_guard/reward_terminated",
    "truncation_guard/reward_truncated",
    "truncation_guard/reward",
    "truncation_guard/limit",
}
"""The names of the issue: they are API, in every tracker."""


def whole() -> BatchCounts:
    return batch(
        16,
        of=64,
        causes={"limit": 8, "context": 6, "tool": 2},
        stopped=4,
        groups=groups(
            16,
            truncated=5,
            all_truncated=2,
            one_survivor=1,
            worst=4,
            without_signal=4,
            truncated_without_signal=3,
            survivor_advantage_sum=-0.75,
        ),
        reward=0.25,
        reward_terminated=0.5,
        reward_truncated=-1.0,
    )


def test_a_batch_of_which_all_is_known_has_exactly_the_promised_names_and_values() -> None:
    assert batch_metrics(whole()) == {
        "truncation_guard/truncated_share": 0.25,
        "truncation_guard/cause/limit": 0.125,
        "truncation_guard/cause/context": 0.09375,
        "truncation_guard/cause/tool": 0.03125,
        "truncation_guard/stopped_share": 0.0625,
        "truncation_guard/groups_truncated": 0.3125,
        "truncation_guard/groups_all_truncated": 0.125,
        "truncation_guard/groups_without_signal": 0.25,
        "truncation_guard/survivor_advantage_sum": -0.75,
        "truncation_guard/reward_terminated": 0.5,
        "truncation_guard/reward_truncated": -1.0,
        "truncation_guard/reward": 0.25,
        "truncation_guard/limit": 256.0,
    }


def test_every_metric_is_a_float() -> None:
    assert {type(value) for value in batch_metrics(whole()).values()} == {float}


@pytest.mark.parametrize(
    ("counts", "absent"),
    [
        (batch(reward=0.0, reward_terminated=0.0), {"reward_truncated", "survivor_advantage_sum"}),
        (
            batch(limit=None, groups=groups(without_signal=None, survivor_advantage_sum=0.0)),
            {"limit", "groups_without_signal", "reward", "reward_terminated", "reward_truncated"},
        ),
    ],
)
def test_what_was_not_measured_is_absent_and_a_zero_is_there(
    counts: BatchCounts, absent: set[str]
) -> None:
    metrics = batch_metrics(counts)
    assert NAMES - metrics.keys() == {f"truncation_guard/{name}" for name in absent}
    assert metrics.keys() <= NAMES
    assert all(math.isfinite(value) for value in metrics.values())


def test_the_docstring_lists_every_metric() -> None:
    documented = batch_metrics.__doc__ or ""
    assert {name for name in NAMES if f"| `{name}` |" not in documented} == set()
