"""Invariant 6: whatever fails inside the guard, training goes on as if the guard were not there.

Each training has four generation batches, and the guard fails in the second. A batch gets either
TRL's advantages or those of the mode. `processes/test_faults.py` does the same on two processes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import canned
from support.faults import places
from support.faults.expected import (
    GIVEN,
    GUARDED,
    KEPT_TOKENS,
    TOKENS,
    check_advantages,
    check_logged,
    guarded_batches,
    logged_batches,
)
from support.faults.places import POINTS, fault

from truncation_guard import TruncationGuardCallback

PLACES = [
    name if name in places.STAGES else pytest.param(name, marks=pytest.mark.slow) for name in POINTS
]
NONSENSE = [(name, kind) for name in places.NONSENSE for kind in places.NONSENSE[name]]


@pytest.mark.parametrize("mode", GUARDED)
@pytest.mark.parametrize("name", PLACES)
def test_switches_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, mode: str
) -> None:
    result = places.train(tmp_path, fault(POINTS[name]), mode=mode)
    assert result["fired"] == [True]
    batches = guarded_batches(name, here=True)
    in_rewards = 2 if (name, mode) == ("scored", "exclude") else batches
    guarded = [number for half in GUARDED[mode] for number in half]
    check_advantages(result["advantages"], guarded, [*GIVEN[0], *GIVEN[1]], in_rewards)
    check_logged(result, logged_batches(name, here=True))
    if mode == "exclude":
        assert result["num_items"] == [KEPT_TOKENS] * batches + [TOKENS] * (4 - batches)
        assert result["masked_rows"] == [4] * batches + [0] * (4 - batches)
    assert caplog.text.count("Traceback (most recent call last)") == 1
    assert caplog.text.count("[truncation-guard] ERROR") == 1


@pytest.mark.parametrize(("name", "kind"), NONSENSE)
def test_nonsense_is_a_fault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, kind: str
) -> None:
    result = places.train(tmp_path, fault(POINTS[name], places.NONSENSE[name][kind]))
    guarded = [number for half in GUARDED["downweight"] for number in half]
    check_advantages(result["advantages"], guarded, [*GIVEN[0], *GIVEN[1]], 1)
    check_logged(result, 1)
    assert caplog.text.count("Traceback (most recent call last)") == 1


def test_what_follows_is_a_training_without_a_guard_from_where_it_failed(tmp_path: Path) -> None:
    failed = places.train(tmp_path, fault(POINTS["Reporter.batch"]), mode="exclude")
    guard = TruncationGuardCallback(mode="exclude")
    made = canned.trainer(tmp_path, canned.FAULTY, guard, max_steps=4, loss_type="dapo")
    made.add_callback(canned.AtStep(2, lambda: made.remove_callback(guard)))
    removed = canned.train(made)
    assert failed["advantages"] == removed["advantages"]
    assert failed["weights"] == places.fingerprint(made)
    assert failed["weights"] != places.train(tmp_path, mode="exclude")["weights"]
    assert failed["weights"] != places.train(tmp_path, mode=None)["weights"]
