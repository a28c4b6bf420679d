"""Real trainings of a model that two processes share: all is as on one process.

By FSDP always, by DeepSpeed where it is installed (`nox -s deepspeed`).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import canned
from support.distributed import Launch, launch

from truncation_guard import TruncationGuardCallback


@pytest.fixture(scope="module", params=["fsdp", "zero2", "zero3"])
def sharded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Launch:
    if request.param == "fsdp":
        two: Launch = request.getfixturevalue("two_processes")
        return two.part("sharded")
    pytest.importorskip("deepspeed")
    return launch("together.py", 2, tmp_path_factory.mktemp("zero"), request.param).part(
        request.param
    )


@pytest.mark.parametrize("mode", canned.MODES)
def test_a_mode_makes_the_step_that_it_makes_on_one_process(
    sharded: Launch, tmp_path: Path, mode: str
) -> None:
    guard = TruncationGuardCallback(mode=mode, **canned.MODE_SETTINGS)
    made = canned.trainer(tmp_path, canned.TWELVE_IN_FOURS, guard, optim="sgd", max_grad_norm=0.0)
    before = canned.weights(made)
    alone = canned.train(made)
    step = canned.weights(made) - before
    ranks = sharded.of(f"mode {mode}")
    assert [a for rank in ranks for a in rank["advantages"][0]] == alone["advantages"][0]
    for rank in ranks:
        assert rank["shared"]
        assert rank["metrics"] == [pytest.approx(alone["metrics"][0], rel=1e-6)]
        off = before.new_tensor(rank["weights"]) - before - step
        assert off.norm() < 1e-4 * step.norm()


def test_the_modes_make_different_steps(sharded: Launch) -> None:
    """Else the test above would show nothing."""
    weights = [sharded.of(f"mode {mode}")[0]["weights"] for mode in canned.MODES]
    assert all(a != b for i, a in enumerate(weights) for b in weights[:i])


def test_observe_changes_nothing(sharded: Launch) -> None:
    """Invariant 1, where the model writes the rollouts itself."""
    assert sharded.of("generating with") == sharded.of("generating without")


def test_a_raised_limit_is_that_of_both_and_comes_back_with_the_checkpoint(
    sharded: Launch,
) -> None:
    for rank in sharded.of("raising"):
        assert rank["limits"][0] == 8
        assert rank["limits"][-1] == 16
        assert rank["resumed"] == [16, 16]
