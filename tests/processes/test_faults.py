"""Invariant 6 on two processes: they go on together, whichever of them fails, and where.

Each training has four generation batches, and the guard fails in the second.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.distributed import Launch, launch
from support.faults import places
from support.faults.expected import (
    GIVEN,
    GUARDED,
    KEPT_TOKENS,
    TOKENS,
    check_advantages,
    check_logged,
    collectives,
    guarded_batches,
    logged_batches,
)
from support.faults.places import STAGES


def each(scenarios: dict[str, Any]) -> list[Any]:
    """Parameters by scenario, as slow ones where the launch of all files does not have it."""
    return [
        pytest.param(*arguments, id=name, marks=() if name in places.SOME else pytest.mark.slow)
        for name, arguments in scenarios.items()
    ]


FAULTS = each({places.one_fault(*fault): fault for fault in places.ONE_FAULT})
TWO_FAULTS = each({places.two_faults(*faults): faults for faults in places.TWO_FAULTS})
EXCLUDE = each({f"exclude: {name} on 1": (name,) for name in STAGES})
SLEEPS = each({f"{name} sleeps": (name,) for name in ("generated", "counted")})
NONSENSE = each(
    {
        f"{name} returns {kind}": (name, kind)
        for name, kinds in places.NONSENSE.items()
        for kind in kinds
    }
)


@pytest.fixture
def faulty(request: pytest.FixtureRequest) -> Launch:
    """Some faults are part of the launch of all files; for the others there is one of its own."""
    is_slow = request.node.get_closest_marker("slow") is not None
    launched: Launch = request.getfixturevalue("every_fault" if is_slow else "two_processes")
    return launched.part("every_fault" if is_slow else "faults")


@pytest.fixture(scope="module")
def every_fault(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    return launch("together.py", 2, tmp_path_factory.mktemp("every_fault"), "every_fault")


def test_without_a_fault_all_batches_are_guarded(faulty: Launch) -> None:
    """What the tests below stand on."""
    calm, bare = faulty.of("no fault"), faulty.of("no guard")
    for rank in (0, 1):
        guarded, given = GUARDED["downweight"][rank], GIVEN[rank]
        check_advantages(calm[rank]["advantages"], guarded, given, 4)
        check_advantages(bare[rank]["advantages"], guarded, given, 0)
        check_logged(calm[rank], 4)
        check_logged(bare[rank], 0)
        assert calm[rank]["collectives"] == bare[rank]["collectives"] + 4


@pytest.mark.parametrize(("name", "ranks"), FAULTS)
def test_all_switch_off_together(faulty: Launch, name: str, ranks: tuple[int, ...]) -> None:
    scenario = places.one_fault(name, ranks)
    bare = faulty.of("no guard")
    for rank, result in enumerate(faulty.of(scenario)):
        here = rank in ranks
        assert result["fired"] == [True] * here
        check_advantages(
            result["advantages"],
            GUARDED["downweight"][rank],
            GIVEN[rank],
            guarded_batches(name, here=here),
        )
        check_logged(result, logged_batches(name, here=here))
        assert result["collectives"] == bare[rank]["collectives"] + collectives(name)


@pytest.mark.parametrize(("name", "ranks"), FAULTS)
def test_each_fault_leaves_one_traceback(faulty: Launch, name: str, ranks: tuple[int, ...]) -> None:
    scenario = places.one_fault(name, ranks)
    assert faulty.output(scenario).count("Traceback (most recent call last)") == len(ranks)
    errors = faulty.lines(scenario, "[truncation-guard] ERROR")
    told = [line for line in errors if "another process failed" in line]
    # The main process says so where the traceback is in the log of another.
    assert len(told) == (ranks == (1,))
    assert len(errors) == len(ranks) + len(told)


@pytest.mark.parametrize("name", EXCLUDE)
def test_exclude_switches_off_as_well(faulty: Launch, name: str) -> None:
    for rank, result in enumerate(faulty.of(f"exclude: {name} on 1")):
        batches = guarded_batches(name, here=rank == 1)
        # With the rewards changed, TRL's own advantages are those of the mode.
        in_rewards = 2 if name == "scored" else batches
        guarded = GUARDED["exclude"][rank]
        check_advantages(result["advantages"], guarded, GIVEN[rank], in_rewards)
        assert result["num_items"] == [KEPT_TOKENS] * batches + [TOKENS] * (4 - batches)
        assert result["masked_rows"] == [2] * batches + [0] * (4 - batches)
        check_logged(result, logged_batches(name, here=rank == 1))


def test_a_fault_in_the_first_batch_leaves_the_training_as_it_is_without_a_guard(
    faulty: Launch,
) -> None:
    bare, failed = faulty.of("no guard"), faulty.of("generated in the first batch")
    assert [rank["fired"] for rank in failed] == [[], [True]]
    assert [rank["weights"] for rank in failed] == [rank["weights"] for rank in bare]
    assert faulty.of("no fault")[0]["weights"] != bare[0]["weights"]


@pytest.mark.parametrize(("first", "when", "second"), TWO_FAULTS)
def test_another_fault_on_the_other_process(
    faulty: Launch, first: str, when: str, second: str
) -> None:
    scenario = places.two_faults(first, when, second)
    in_second_batch = (first,) if when else (first, second)
    flagged_at_once = any(n in places.BEFORE_THE_COLLECTIVE for n in in_second_batch)
    for rank, (result, bare) in enumerate(
        zip(faulty.of(scenario), faulty.of("no guard"), strict=True)
    ):
        assert result["advantages"][0] == pytest.approx(GUARDED["downweight"][rank], rel=1e-6)
        assert result["advantages"][2:] == [pytest.approx(GIVEN[rank], rel=1e-6)] * 2
        assert [len(entry) > 1 for entry in result["metrics"][2:]] == [False] * 2
        assert result["steps"] == places.BATCHES
        assert result["collectives"] - bare["collectives"] == (2 if flagged_at_once else 3)
    # A fault that the first one kept from happening leaves none.
    fired = sum(sum(rank["fired"]) for rank in faulty.of(scenario))
    assert faulty.output(scenario).count("Traceback (most recent call last)") == fired
    assert fired >= 1


@pytest.mark.parametrize(
    ("name", "batches"), [("end_evaluation", 2), ("saving", 2), ("end_training", 4)]
)
def test_events(faulty: Launch, name: str, batches: int) -> None:
    """Evaluation and checkpoint after the second and the fourth of four steps."""
    for rank, result in enumerate(faulty.of(name)):
        evaluations = [result["advantages"].pop(index) for index in (5, 2)]
        assert evaluations == [pytest.approx(GIVEN[rank], rel=1e-6)] * 2
        guarded = GUARDED["downweight"][rank]
        check_advantages(result["advantages"], guarded, GIVEN[rank], batches)
        logged = [len(entry) > 1 for entry in result["metrics"]]
        assert logged == [True] * 3 + [batches == 4] * 3
        assert result["steps"] == places.BATCHES
    assert faulty.output(name).count("Traceback (most recent call last)") == 1
    assert (faulty.folder / name / "checkpoint-4" / "trainer_state.json").exists()


def test_an_evaluation_on_its_own(faulty: Launch) -> None:
    assert faulty.of("evaluation alone") == [[], []]
    assert faulty.output("evaluation alone").count("Traceback (most recent call last)") == 1


@pytest.mark.parametrize("name", SLEEPS)
def test_a_slow_process_is_waited_for(faulty: Launch, name: str) -> None:
    results = faulty.of(f"{name} sleeps")
    assert sum(sum(rank["fired"]) for rank in results) == 1
    for rank, result in enumerate(results):
        guarded = GUARDED["downweight"][rank]
        check_advantages(result["advantages"], guarded, GIVEN[rank], 4)
        check_logged(result, 4)


@pytest.mark.parametrize(("name", "kind"), NONSENSE)
def test_nonsense_is_a_fault(faulty: Launch, name: str, kind: str) -> None:
    scenario = f"{name} returns {kind}"
    bare = faulty.of("no guard")
    for rank, result in enumerate(faulty.of(scenario)):
        batches = guarded_batches(name, here=rank == 1)
        check_advantages(result["advantages"], GUARDED["downweight"][rank], GIVEN[rank], batches)
        check_logged(result, logged_batches(name, here=rank == 1))
        assert result["collectives"] == bare[rank]["collectives"] + collectives(name)
    assert faulty.output(scenario).count("Traceback (most recent call last)") == 1
