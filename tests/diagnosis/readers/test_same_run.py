"""Which run a `trainer_state.json` is of, told by what the guard recorded and logged."""

from __future__ import annotations

import pytest

from truncation_guard.diagnosis.readers.same_run import goes_on, is_of_run
from truncation_guard.diagnosis.run import LogEntry, RunTrace

SHARES = [0.0, 0.5, 0.25, 0.75, 1.0, 0.125]
"""Of the batches of steps 0 to 5."""
MEANS = [(2, 0.25), (4, 0.5), (6, 0.5625)]
"""What the guard logs of them every two steps."""


def record(shares: list[float] = SHARES, reward: float | None = 1.0) -> RunTrace:
    training = [LogEntry(step=n, truncated=s, reward=reward) for n, s in enumerate(shares)]
    return RunTrace("record", "r", training)


def state(*entries: tuple[float, float | None], reward: float | None = 1.0) -> RunTrace:
    training = [LogEntry(step=step, truncated=s, reward=reward) for step, s in entries]
    return RunTrace("trainer_state", "s", training)


def test_an_entry_holds_the_means_of_the_batches_since_the_one_before() -> None:
    assert is_of_run(record(), state(*MEANS))
    assert not is_of_run(record(), state((2, 0.5), (4, 0.25), (6, 1.0)))
    assert not is_of_run(record(), state(*MEANS, reward=0.9))


def test_entries_that_no_batch_is_recorded_of_do_not_count() -> None:
    before = [(step + 10, share) for step, share in MEANS]
    late = RunTrace(
        "record", "r", [LogEntry(step=n + 10, truncated=s) for n, s in enumerate(SHARES)]
    )
    assert is_of_run(late, state((5, None), (10, None), *before))
    assert is_of_run(record(), state(*MEANS, (8, None), (10, None), (12, 0.0), (14, 0.0)))
    assert not is_of_run(late, state((5, 0.25), (10, 0.5)))
    assert not is_of_run(record([]), state(*MEANS))


def test_half_of_the_entries_have_to_agree() -> None:
    assert is_of_run(record(SHARES[:4]), state((2, 0.25), (4, 0.75)))
    assert not is_of_run(record(), state((2, 0.25), (4, 0.75), (6, 0.0)))
    assert not is_of_run(record(SHARES[:2]), state((2, 0.5)))


def test_a_run_without_a_guard_is_another_one() -> None:
    assert not is_of_run(record([0.0] * 6), state((2, None), (4, None), (6, None)))


@pytest.mark.parametrize(("recorded", "logged"), [(None, 1.0), (1.0, None), (None, None)])
def test_a_reward_that_is_not_known_tells_nothing(
    recorded: float | None, logged: float | None
) -> None:
    assert is_of_run(record(reward=recorded), state(*MEANS, reward=logged))


@pytest.mark.parametrize(
    ("steps", "further"),
    [((6,), False), ((2, 4, 6), False), ((4, 8), False), ((5, 6), False), ((6, 7), True)],
)
def test_a_run_goes_on_past_its_record_by_an_entry_of_its_own(
    steps: tuple[int, ...], further: bool
) -> None:
    assert goes_on(record(), state(*((step, 0.5) for step in steps))) is further
