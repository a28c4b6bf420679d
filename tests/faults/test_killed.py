"""A training that is killed while it writes goes on from its last whole checkpoint."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.distributed import Launch, launch
from support.faults import courses

from truncation_guard.record import FILE_NAME, read_record

pytestmark = pytest.mark.slow

WORKER = "killed.py"
PLACES = {"record": 4, "state": 2, "no state": 2}
"""Where it is killed -> the step of its last whole checkpoint."""
SETTINGS: dict[str, Any] = {
    "max_steps": 8,
    "save_strategy": "steps",
    "save_steps": 2,
    "options": {"raise_limit_to": None},
}
"""As in the worker."""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """Three processes that know nothing of each other."""
    return launch(WORKER, len(PLACES), tmp_path_factory.mktemp("killed"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> courses.Outcome:
    return courses.run(tmp_path_factory.mktemp("whole"), **SETTINGS)


def test_each_is_killed_where_it_should_be(killed: Launch) -> None:
    assert killed.exit_codes == [-9] * len(PLACES), killed.outputs
    folder = killed.folder
    torn = (folder / "record" / FILE_NAME).read_text()
    assert not torn.endswith("\n")
    assert '"step": 5' in torn.splitlines()[-1]
    state = (folder / "state" / "checkpoint-4" / "trainer_state.json").read_text()
    with pytest.raises(ValueError, match="line 1"):
        json.loads(state)
    left = {path.name for path in (folder / "no state" / "checkpoint-4").iterdir()}
    assert "trainer_state.json" not in left
    assert "model.safetensors" in left


@pytest.mark.parametrize(("place", "checkpoint"), PLACES.items())
def test_it_goes_on(killed: Launch, whole: courses.Outcome, place: str, checkpoint: int) -> None:
    folder = killed.folder / place
    lines = (folder / FILE_NAME).read_text().splitlines()
    complete = [json.loads(line) for line in lines if line.endswith("}}")]
    resume = str(folder / f"checkpoint-{checkpoint}")
    found = courses.run(
        folder, work=lambda made: made.train(resume_from_checkpoint=resume), **SETTINGS
    )
    assert (found.steps, found.failed_in, found.errors) == (8, [], [])
    assert found.weights == whole.weights
    assert found.limits == whole.limits[checkpoint:]
    (run,) = read_record(folder / FILE_NAME)
    assert sorted(run.batches) == [("train", step, 0) for step in range(8)]
    assert run.start["resumed_from_step"] == checkpoint
    assert run.end is not None
    # No complete line is lost, and what was done again has the numbers that it had.
    before = [entry for entry in complete if entry["kind"] == "batch"]
    assert len(before) == (5 if place == "record" else 4)
    for entry in before:
        assert run.batches["train", entry["step"], 0] == entry
