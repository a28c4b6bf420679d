"""Figures -> the verdict on a run, in full."""

from __future__ import annotations

import pytest
from support.log_entries import FLAT, LIMIT, RISES, answer, entries, trace, verdict

from truncation_guard.diagnosis.run import LogEntry, RunTrace


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (
            trace(entries([0.26] * 10, reward=FLAT), limit=LIMIT),
            "is what holds this run back: 26% of the completions were cut off at 100 tokens at "
            "the end, and the reward does not rise",
        ),
        (
            trace(entries([0.25] * 10, reward=FLAT), limit=LIMIT),
            "may be what holds this run back: 25% of the completions were cut off at 100 tokens "
            "at the end, and the reward does not rise",
        ),
        (
            trace(entries([0.9] * 10, reward=RISES), limit=LIMIT),
            "may be what holds this run back: 90% of the completions were cut off at 100 tokens "
            "at the end, but the reward rises",
        ),
        (
            trace(entries([0.75] * 10), limit=LIMIT),
            "is what holds this run back: 75% of the completions were cut off at 100 tokens at "
            "the end",
        ),
        (
            trace(entries([0.74] * 10), limit=LIMIT),
            "may be what holds this run back: 74% of the completions were cut off at 100 tokens "
            "at the end",
        ),
        (
            trace(entries([0.3] * 10, silent_groups=0.5), limit=LIMIT),
            "is what holds this run back: 30% of the completions were cut off at 100 tokens at "
            "the end, and 50% of the groups teach nothing",
        ),
        (
            trace(entries([0.3] * 10, reward_std=0.0), limit=LIMIT),
            "is what holds this run back: 30% of the completions were cut off at 100 tokens at "
            "the end, and most of the time all rewards are equal",
        ),
        (
            trace(entries([0.05] * 10, reward=FLAT), limit=LIMIT),
            "is not what holds this run back: only 5% of the completions were cut off, and the "
            "reward did not rise all the same",
        ),
        (
            trace(entries([0.0] * 10, reward=RISES)),
            "is not what holds this run back: no completion was cut off",
        ),
        (
            trace(entries([0.8] * 4 + [0.0] * 6), limit=LIMIT),
            "is not what holds this run back: 80% of the completions were cut off for a time, but "
            "0% at the end, and hardly any after step 4",
        ),
        (
            trace(entries([0.8])),
            "is what holds this run back: 80% of the completions were cut off at 100 tokens at "
            "the end, as far as a single entry tells",
        ),
        (
            trace(entries([1.0] * 5), limit=LIMIT),
            "is what holds this run back: 100% of the completions were cut off at 100 tokens at "
            "the end; stop tokens that do not fire would look the same",
        ),
        (
            trace(entries([0.5] * 10, mean_length=55.0, reward=FLAT), limit=LIMIT),
            "is what holds this run back: 50% of the completions were cut off at 100 tokens at "
            "the end, and the reward does not rise; but what ends does so much earlier, so a "
            "longer limit may not help",
        ),
        (
            trace(entries([None] * 5, reward=FLAT[:5])),
            "may be what holds this run back: what there is does not tell whether completions "
            "were cut off",
        ),
        (
            trace([], evaluation=entries([0.05])),
            "is not what holds this run back: 5% of the answers were cut off in its last "
            "evaluation, and there is nothing about its training",
        ),
        (
            trace([], evaluation=entries([0.06])),
            "may be what holds this run back: 6% of the answers were cut off in its last "
            "evaluation, but there is nothing about its training",
        ),
        (
            trace(
                [LogEntry(step=1.0, ratio=0.4, mean_length=31.0, max_length=101.0)] * 5, limit=101
            ),
            "may be what holds this run back: at most 30% of the completions were cut off at 101 "
            "tokens at the end",
        ),
        (
            trace([LogEntry(ratio=0.3)] * 5),
            "may be what holds this run back: 30% of the completions were cut off at the end",
        ),
    ],
)
def test_the_verdict(run: RunTrace, expected: str) -> None:
    assert verdict(run) == f"truncation {expected}"


@pytest.mark.parametrize(
    ("rewards", "severity"),
    [
        ([0.0, 0.5, 0.1, 0.4, 0.5], "unknown"),
        ([0.312, 0.5, 0.3, 0.6, 0.35, 0.58, 0.4, 0.609], "unknown"),
        ([0.4, 0.5, 0.1, 0.4, 0.5], "warning"),
    ],
)
def test_a_large_change_between_two_entries_is_neither_one_nor_none(
    rewards: list[float], severity: str
) -> None:
    found_severity, fact, _ = answer(trace(entries([0.0] * len(rewards), reward=rewards)), "reward")
    assert found_severity == severity
    assert ("too few to tell a change from noise" in fact) == (severity == "unknown")


def test_truncation_alone_is_not_blamed_where_most_finish_and_nothing_is_worth_more() -> None:
    constant = trace(entries([0.3] * 10, silent_groups=1.0, reward=[0.0] * 10))
    assert verdict(constant) == (
        "truncation may be what holds this run back: 30% of the completions were cut off at 100 "
        "tokens at the end, and 100% of the groups teach nothing; but most completions finish, and "
        "are worth no more than others: look at the reward functions as well"
    )
    assert verdict(trace(entries([0.6] * 10, silent_groups=1.0, reward=[0.0] * 10))).startswith(
        "truncation is what"
    )
