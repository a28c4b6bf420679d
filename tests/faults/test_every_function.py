"""Invariant 6 for every function of the guard that a training calls, found by watching trainings.

The weights at the end are compared bit for bit with those of a training, without a guard or with
one, that goes on from the weights before the first batch that the fault has no part in.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.distributed import Launch, launch
from support.faults.injecting import CALLBACK, functions, marked, reachable
from support.faults.sweep import COURSES

pytestmark = pytest.mark.sweep

WORKER = "sweep.py"
BEFORE_ROLLOUTS = {f"{CALLBACK}.{name}" for name in ("__init__", "on_init_end", "on_train_begin")}
"""What is refused is refused in these, so that not all of it is contained."""
FOR_EVERYBODY = ("argument_checks.", "marks_for_tests.", "lengths.")
"""Of these, which profiles and diagnoses use as well, a training need not call everything."""


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
def test_what_runs_outside_of_the_barrier_is_marked(
    request: pytest.FixtureRequest, processes: str
) -> None:
    started = request.getfixturevalue(processes)
    bare = {
        function
        for course in COURSES
        if not course.endswith(" alone")  # their first rollout may refuse, as `train` may
        for found in reports(started, f"{course}: calls")
        for entry, function in found["bare"]
        if entry not in BEFORE_ROLLOUTS
    }
    assert sorted(bare) == sorted(marked("outside"))


def test_every_function_is_called_or_known_not_to_be(alone: Launch, two: Launch) -> None:
    def said(what: str) -> set[str]:
        return {
            function
            for started in (alone, two)
            for course in COURSES
            for found in reports(started, f"{course}: calls")
            for function in found[what]
        }

    called = said("functions")
    reached = {name for name in reachable(said("entries")) if not name.startswith(FOR_EVERYBODY)}
    not_found = called & functions().keys() - reached
    assert sorted(n for n in not_found if not n.startswith(FOR_EVERYBODY)) == []
    assert sorted(reached - called - said("after a fault") - marked("unswept")) == []
    assert sorted(said("left out")) == []
