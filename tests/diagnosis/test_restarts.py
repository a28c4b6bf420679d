"""What counts of a log in which a training was started again."""

from __future__ import annotations

import pytest

from truncation_guard.diagnosis.restarts import drop_what_was_done_again


@pytest.mark.parametrize(
    ("progress", "kept", "notes"),
    [
        ([0.1, 0.2, 0.3], [0.1, 0.2, 0.3], []),
        (
            [0.1, 0.2, 0.3, 0.2, 0.3, 0.4],
            [0.1, 0.2, 0.3, 0.4],
            ["Training was resumed once; what was done again counts once."],
        ),
        ([0.1, 0.2, 0.1, 0.2], [0.1, 0.2], ["The log holds 2 runs; this is the last one."]),
        # An evaluation at the end of a training says with all digits what that printed with four.
        ([0.123, 0.124, 0.123967], [0.123, 0.124, 0.123967], []),
        ([12.34, 12.35, 12.3463], [12.34, 12.35, 12.3463], []),
    ],
)
def test_only_going_back_is_a_restart(
    progress: list[float], kept: list[float], notes: list[str]
) -> None:
    found = drop_what_was_done_again(progress, lambda entry: entry, rounding=1e-3)
    assert found == (kept, notes)


def test_whole_steps_go_back_by_one() -> None:
    steps = [5000, 5001, 5000, 5001]
    assert drop_what_was_done_again(steps, lambda step: step)[0] == [5000, 5001]
