"""The length of what terminated, against `trl_logs`, which computes TRL's from completions."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support import trl_logs

from truncation_guard.diagnosis.readers.trl_metrics import to_entry
from truncation_guard.diagnosis.run import LogEntry

LIMIT = 100


def entry(metrics: dict[str, Any], **options: bool) -> LogEntry:
    found = to_entry(metrics, **options)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("seed", range(20))
def test_the_mean_length_of_what_terminated_is_put_right_exactly(seed: int) -> None:
    """However many batches of an entry had nothing that terminated, which TRL counts as 0."""
    draw = random.Random(seed)
    task = trl_logs.Task(seed, LIMIT, draw.uniform(60, 120), 20)
    batches = [task.batch(8) for _ in range(6)] + [[(LIMIT, False, 0.0)] * 8]
    ended = [length for batch in batches for length, is_ended, _ in batch if is_ended]
    metrics = trl_logs.window_figures(batches)
    found = entry(metrics).terminated_length(LIMIT)
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
    assert entry(metrics).terminated_length(LIMIT) == 40


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
    assert LogEntry(**figures).terminated_length(limit) is None  # type: ignore[arg-type]


def test_where_nothing_was_cut_the_mean_is_that_of_what_terminated() -> None:
    assert LogEntry(ratio=0.0, mean_length=60.0).terminated_length(None) == 60.0
