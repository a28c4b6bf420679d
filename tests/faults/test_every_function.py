"""Invariant 6 for every function of the guard that a training calls, found by watching trainings.

The weights at the end are compared bit for bit with those of a training, without a guard or with
one, that goes on from the weights before the first batch that the fault has no part in.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.distributed import Launch, launch
from support.faults.injecting import functions
from support.faults.sweep import COURSES

pytestmark = pytest.mark.sweep

WORKER = "sweep.py"
BEFORE_TRAINING = "callback.TruncationGuardCallback.on_train_begin"
"""What is refused is refused here, so that not all of it is contained."""
THE_CONTAINMENT = {
    "callback.TruncationGuardCallback._be_savable",
    "callback.TruncationGuardCallback._watch",
    "callback.TruncationGuardCallback.on_evaluate",
    "callback.TruncationGuardCallback.on_train_end",
    "callback.TruncationGuardCallback.rollout_stages",
    "callback.TruncationGuardCallback.state",
    "guard.fault_barrier.FaultBarrier.begin",
    "guard.fault_barrier.FaultBarrier.contain",
    "guard.fault_barrier.FaultBarrier.generated",
    "guard.fault_barrier.FaultBarrier.rewarded",
    "guard.fault_barrier.FaultBarrier.scored",
    "guard.fault_barrier._raise_limit",
    "batch.outcomes.failed_rows",
    "trainer.hooks._WrappedMethod.__call__",
    "trainer.hooks.find_listener",
    "trainer.hooks.find_trainer",
    "trainer.hooks.is_marked",
    "trainer.hooks.remember_options",
    "trainer.limit.tool_budget",
}
"""What the trainer calls in a training and what stands between it and `contain`: nobody catches a
fault of these, so there is nothing in them that can fail."""
THE_LIMIT = {
    "trainer.limit._kwarg",
    "trainer.limit._limits",
    "trainer.context_window.max_new_tokens",
    "trainer.limit._places",
    "trainer.limit.divides_by_limit",
    "trainer.limit.get_limit",
    "trainer.limit.raise_limit",
}
"""Called outside of `contain`, in a `try` of its own: see `test_containment.py`."""
NOT_IN_THESE_TRAININGS = {
    "before a training": {
        "callback.TruncationGuardCallback.__init__",
        "callback.TruncationGuardCallback.on_init_end",
        "options.GuardOptions.__post_init__",
        "trainer.hooks._WrappedMethod.__init__",
        "trainer.hooks.announce",
        "trainer.hooks.mark",
    },
    "in a resume that rebuilds the callback, before a training": {
        "trainer.hooks.remembered_options",
    },
    "after a fault": {
        "guard.fault_barrier.FaultBarrier.switch_off",
        "guard.fault_barrier._log_error",
    },
    "by users and by what is no training": {
        "batch.modes._group_relative_advantages",
        "batch.modes._nanstd",
        "batch.modes.check_mode_arguments",
        "batch.modes.guard_advantages",
        "callback.TruncationGuardCallback.advised_limit",
        "record.RecordedRun.trained",
        "record._parse",
        "record._resume",
        "record.batch_lengths",
        "record.read_record",
        "batch.outcomes.detect_truncated",
        "trainer.hooks._WrappedMethod.__deepcopy__",
        "trainer.limit._does_not_fit",
        "trainer.limit.set_limit",
        "trainer.limit.temporary_limit",
        "truncation_guard.__dir__",
        "truncation_guard.__getattr__",
    },
    "interfaces": {
        "trainer.hooks.RolloutListener.rollout_stages",
        "trainer.hooks.RolloutStages.begin",
        "trainer.hooks.RolloutStages.generated",
        "trainer.hooks.RolloutStages.rewarded",
        "trainer.hooks.RolloutStages.scored",
    },
    "with another backend": {
        "trainer.vllm_server._ask",
        "trainer.vllm_server.server_window",
    },
}
"""When each function is called instead, for the modules below."""
OTHER_MODULES = (
    "checks.",
    "cli.",
    "completions_tables.",
    "diagnosis.",
    "extrapolation.",
    "histograms.",
    "lengths.",
    "limit_setting.",
    "pictures.",
    "plots.",
    "profiling.",
    "recommendations.",
    "rendering.",
    "run_plot.",
    "trainer_sampling.",
    "trainer_snapshot.",
)
"""Of these, which serve profiles and diagnoses, what a training does not call is not looked at."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """Two processes that know nothing of each other and share the kinds of faults."""
    return launch(WORKER, 2, tmp_path_factory.mktemp("alone"), "alone")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    return launch(WORKER, 2, tmp_path_factory.mktemp("two"))


def reports(started: Launch, scenario: str) -> list[Any]:
    """What each process says that has this scenario; all of a training say the same."""
    found = [results[scenario] for results in started.results if scenario in results]
    assert found, "".join(output[-2000:] for output in started.outputs)
    return found


each_course = pytest.mark.parametrize("course", COURSES)
each_way = pytest.mark.parametrize("processes", ["alone", "two"])


@each_way
@each_course
def test_what_raises_leaves_one_traceback_and_a_training_without_a_guard(
    request: pytest.FixtureRequest, processes: str, course: str
) -> None:
    for fault in reports(request.getfixturevalue(processes), f"{course}: raises")[0]:
        tracebacks, weights = (0, "as_with") if fault["goes_on"] else (1, "as_without")
        assert fault["fired"], fault
        assert fault["to_the_end"], fault
        assert fault["alike"], fault
        assert fault["tracebacks"] == tracebacks, fault
        assert fault[weights] is not False, fault


@each_way
def test_the_two_ways_to_go_on_differ(request: pytest.FixtureRequest, processes: str) -> None:
    """Else the weights would show nothing."""
    faults = reports(request.getfixturevalue(processes), "plain: raises")[0]
    telling = [fault for fault in faults if None is not fault["as_with"] != fault["as_without"]]
    assert len(telling) > 0.75 * len(faults) > 100


@pytest.mark.parametrize(
    ("processes", "kind"),
    [("alone", "returns None"), ("alone", "returns another"), ("two", "in turn")],
)
@each_course
def test_nonsense_ends_no_training_and_lasts_no_longer_than_its_traceback(
    request: pytest.FixtureRequest, processes: str, kind: str, course: str
) -> None:
    for fault in reports(request.getfixturevalue(processes), f"{course}: {kind}")[0]:
        assert fault["fired"], fault
        assert fault["to_the_end"], fault
        assert fault["tracebacks"] <= 1, fault
        assert fault["as_without" if fault["tracebacks"] else "as_with"] is not False, fault


@each_way
@each_course
def test_what_hangs_is_waited_for(
    request: pytest.FixtureRequest, processes: str, course: str
) -> None:
    for found in reports(request.getfixturevalue(processes), f"{course}: hangs"):
        assert all(found["fired"])
        assert found["as_calm"]
        assert found["tracebacks"] == 0


@each_way
def test_nobody_but_the_containment_is_outside_of_it(
    request: pytest.FixtureRequest, processes: str
) -> None:
    started = request.getfixturevalue(processes)
    bare = {
        function
        for course in COURSES
        if not course.endswith(" alone")  # their first rollout may refuse, as `train` may
        for found in reports(started, f"{course}: calls")
        for entry, function in found["bare"]
        if entry != BEFORE_TRAINING
    }
    assert sorted(bare) == sorted(THE_CONTAINMENT | THE_LIMIT)


def test_every_function_is_called_or_known_not_to_be(alone: Launch, two: Launch) -> None:
    called = {
        function
        for started in (alone, two)
        for course in COURSES
        for found in reports(started, f"{course}: calls")
        for function in found["functions"]
    }
    all_functions = {name for name in functions() if not name.startswith(OTHER_MODULES)}
    excused = {name for names in NOT_IN_THESE_TRAININGS.values() for name in names}
    assert sorted(all_functions - called - excused) == []
    assert sorted(excused - (all_functions - called)) == []
