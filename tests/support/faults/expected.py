"""What a training with a fault in its second batch has to come to, written down by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from support.faults import places

A = 0.5 / (math.sqrt(1 / 2) + 1e-4)
"""The advantage of a reward of 1 in a group of 1 and 0."""
B = 0.5 / (math.sqrt(1 / 3) + 1e-4)
"""The same in a group of 1, 0, 1, 0."""
GIVEN = ([B, -B, B, -B], [B, -B, B, -B])
"""What TRL makes of the rewards, for the first half of the rows and the second."""
GUARDED = {
    "downweight": ([B, -B, 0.0, 0.0], [B, 0.0, 0.0, -B]),
    "exclude": ([A, -A, 0.0, 0.0], [A, 0.0, 0.0, -A]),
}
TOKENS, KEPT_TOKENS = 43, 11


def guarded_batches(name: str, *, here: bool) -> int:
    """Batches that the mode changed on this process, after a fault here or elsewhere."""
    if name in places.BEFORE_THE_COLLECTIVE:
        return 1
    return 1 if here and name in places.BEFORE_THE_ADVANTAGES else 2


def logged_batches(name: str, *, here: bool) -> int:
    """Batches whose metrics this process logged."""
    if name in places.BEFORE_THE_COLLECTIVE:
        return 1
    return 2 if not here or name in places.AFTER_THE_METRICS | places.ON_THE_MAIN_PROCESS else 1


def collectives(name: str) -> int:
    """Of the guard: until the flag of a failed process has gone round."""
    return 2 if name in places.BEFORE_THE_COLLECTIVE else 3


def check_advantages(found: Any, guarded: list[float], given: list[float], batches: int) -> None:
    expected = [guarded] * batches + [given] * (places.BATCHES - batches)
    assert found == [pytest.approx(batch, rel=1e-6) for batch in expected]


def check_logged(result: Any, batches: int) -> None:
    assert result["steps"] == places.BATCHES
    found = [len(entry) > 1 for entry in result["metrics"]]
    assert found == [True] * batches + [False] * (places.BATCHES - batches)
