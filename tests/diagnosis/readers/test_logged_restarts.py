"""What counts of a log in which a training was started again."""

from __future__ import annotations

from typing import Any

import pytest

from truncation_guard.diagnosis.readers.logged_restarts import drop_what_was_done_again


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


@pytest.mark.parametrize(
    ("entries", "kept", "notes"),
    [
        # Another run, whose first entry is further on than the last of the one before.
        ([(0.1, 9), (0.2, 99), (0.3, 9), (0.6, 20)], [(0.3, 9), (0.6, 20)], ["2 runs"]),
        # Or within it.
        ([(0.1, 90), (0.2, 99), (0.15, 9), (0.3, 20)], [(0.15, 9), (0.3, 20)], ["2 runs"]),
        # Resumed from a checkpoint between two entries, with other samples since.
        ([(0.1, 90), (0.2, 180), (0.2, 175)], [(0.1, 90), (0.2, 175)], ["resumed once"]),
        # An entry that was cut does not say, nor does an evaluation.
        ([(0.1, 90), (None, None), (0.2, None), (0.3, 99)], 4, []),
        ([(0.1, 9), (None, None), (None, 3), (0.2, 6)], [(None, 3), (0.2, 6)], ["2 runs"]),
        # Printed with four digits, and in full.
        ([(0.1, 12350), (0.1, 12345), (0.2, 20000)], 3, []),
    ],
)
def test_a_resumed_training_goes_on_counting_its_tokens(
    entries: list[tuple[float | None, float | None]], kept: Any, notes: list[str]
) -> None:
    found, said = drop_what_was_done_again(
        entries, lambda entry: entry[0], lambda entry: entry[1], rounding=1e-3
    )
    assert found == (entries if isinstance(kept, int) else kept)
    assert len(said) == len(notes)
    assert all(note in text for note, text in zip(notes, said, strict=True))


def test_whole_steps_go_back_by_one() -> None:
    steps = [5000, 5001, 5000, 5001]
    assert drop_what_was_done_again(steps, lambda step: step)[0] == [5000, 5001]
