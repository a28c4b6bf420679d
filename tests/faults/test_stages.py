"""Invariant 6: whatever fails inside the guard, training goes on as if the guard were not there.

Each training has four generation batches, and the guard fails in the second. What a batch gets is
written down by hand: TRL's advantages, or those of the mode.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from support import canned, fault_places
from support.distributed import Launch, launch
from support.fault_places import POINTS, STAGES, fault

from truncation_guard import TruncationGuardCallback

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
FAULTS = [
    pytest.param(name, ranks, id=fault_places.scenario(name, ranks))
    for name, ranks in fault_places.ONE_FAULT
]
NONSENSE = [(name, kind) for name in fault_places.NONSENSE for kind in fault_places.NONSENSE[name]]


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    return launch("stages.py", 2, tmp_path_factory.mktemp("faulty"))


def guarded_batches(name: str, *, here: bool) -> int:
    """Batches that the mode changed on this process, after a fault here or elsewhere."""
    if name in fault_places.BEFORE_THE_COLLECTIVE:
        return 1
    return 1 if here and name in fault_places.BEFORE_THE_ADVANTAGES else 2


def logged_batches(name: str, *, here: bool) -> int:
    """Batches whose metrics this process logged."""
    if name in fault_places.BEFORE_THE_COLLECTIVE:
        return 1
    return (
        2
        if not here or name in fault_places.AFTER_THE_METRICS | fault_places.ON_THE_MAIN_PROCESS
        else 1
    )


def collectives(name: str) -> int:
    """Of the guard: until the flag of a failed process has gone round."""
    return 2 if name in fault_places.BEFORE_THE_COLLECTIVE else 3


def check_advantages(found: Any, guarded: list[float], given: list[float], batches: int) -> None:
    expected = [guarded] * batches + [given] * (fault_places.BATCHES - batches)
    assert found == [pytest.approx(batch, rel=1e-6) for batch in expected]


def check_logged(result: Any, batches: int) -> None:
    assert result["steps"] == fault_places.BATCHES
    found = [len(entry) > 1 for entry in result["metrics"]]
    assert found == [True] * batches + [False] * (fault_places.BATCHES - batches)


class TestOnTwoProcesses:
    def test_without_a_fault_all_batches_are_guarded(self, faulty: Launch) -> None:
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
    def test_all_switch_off_together(
        self, faulty: Launch, name: str, ranks: tuple[int, ...]
    ) -> None:
        scenario = fault_places.scenario(name, ranks)
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
    def test_each_fault_leaves_one_traceback(
        self, faulty: Launch, name: str, ranks: tuple[int, ...]
    ) -> None:
        scenario = fault_places.scenario(name, ranks)
        assert faulty.output(scenario).count("Traceback (most recent call last)") == len(ranks)
        errors = faulty.lines(scenario, "[truncation-guard] ERROR")
        told = [line for line in errors if "another process failed" in line]
        # The main process says so where the traceback is in the log of another.
        assert len(told) == (ranks == (1,))
        assert len(errors) == len(ranks) + len(told)

    @pytest.mark.parametrize("name", STAGES)
    def test_exclude_switches_off_as_well(self, faulty: Launch, name: str) -> None:
        for rank, result in enumerate(faulty.of(f"exclude: {name} on 1")):
            batches = guarded_batches(name, here=rank == 1)
            # With the rewards changed, TRL's own advantages are those of the mode.
            in_rewards = 2 if name == "changes" else batches
            guarded = GUARDED["exclude"][rank]
            check_advantages(result["advantages"], guarded, GIVEN[rank], in_rewards)
            assert result["num_items"] == [KEPT_TOKENS] * batches + [TOKENS] * (4 - batches)
            assert result["masked_rows"] == [2] * batches + [0] * (4 - batches)
            check_logged(result, logged_batches(name, here=rank == 1))

    def test_a_fault_in_the_first_batch_leaves_the_training_as_it_is_without_a_guard(
        self, faulty: Launch
    ) -> None:
        bare, failed = faulty.of("no guard"), faulty.of("describe in the first batch")
        assert [rank["fired"] for rank in failed] == [[], [True]]
        assert [rank["weights"] for rank in failed] == [rank["weights"] for rank in bare]
        assert faulty.of("no fault")[0]["weights"] != bare[0]["weights"]

    @pytest.mark.parametrize(("first", "when", "second"), fault_places.TWO_FAULTS)
    def test_another_fault_on_the_other_process(
        self, faulty: Launch, first: str, when: str, second: str
    ) -> None:
        scenario = f"{first} on 0, {when}{second} on 1"
        in_second_batch = (first,) if when else (first, second)
        flagged_at_once = any(n in fault_places.BEFORE_THE_COLLECTIVE for n in in_second_batch)
        for rank, (result, bare) in enumerate(
            zip(faulty.of(scenario), faulty.of("no guard"), strict=True)
        ):
            assert result["advantages"][0] == pytest.approx(GUARDED["downweight"][rank], rel=1e-6)
            assert result["advantages"][2:] == [pytest.approx(GIVEN[rank], rel=1e-6)] * 2
            assert [len(entry) > 1 for entry in result["metrics"][2:]] == [False] * 2
            assert result["steps"] == fault_places.BATCHES
            assert result["collectives"] - bare["collectives"] == (2 if flagged_at_once else 3)
        # A fault that the first one kept from happening leaves none.
        fired = sum(sum(rank["fired"]) for rank in faulty.of(scenario))
        assert faulty.output(scenario).count("Traceback (most recent call last)") == fired
        assert fired >= 1

    @pytest.mark.parametrize(
        ("name", "batches"), [("end_evaluation", 2), ("saving", 2), ("end_training", 4)]
    )
    def test_events(self, faulty: Launch, name: str, batches: int) -> None:
        """Evaluation and checkpoint after the second and the fourth of four steps."""
        for rank, result in enumerate(faulty.of(name)):
            evaluations = [result["advantages"].pop(index) for index in (5, 2)]
            assert evaluations == [pytest.approx(GIVEN[rank], rel=1e-6)] * 2
            guarded = GUARDED["downweight"][rank]
            check_advantages(result["advantages"], guarded, GIVEN[rank], batches)
            logged = [len(entry) > 1 for entry in result["metrics"]]
            assert logged == [True] * 3 + [batches == 4] * 3
            assert result["steps"] == fault_places.BATCHES
        assert faulty.output(name).count("Traceback (most recent call last)") == 1
        assert (faulty.folder / name / "checkpoint-4" / "trainer_state.json").exists()

    def test_an_evaluation_on_its_own(self, faulty: Launch) -> None:
        assert faulty.of("evaluation alone") == [[], []]
        assert faulty.output("evaluation alone").count("Traceback (most recent call last)") == 1

    @pytest.mark.parametrize("name", ["describe", "report"])
    def test_a_slow_process_is_waited_for(self, faulty: Launch, name: str) -> None:
        results = faulty.of(f"{name} sleeps")
        assert sum(sum(rank["fired"]) for rank in results) == 1
        for rank, result in enumerate(results):
            guarded = GUARDED["downweight"][rank]
            check_advantages(result["advantages"], guarded, GIVEN[rank], 4)
            check_logged(result, 4)

    @pytest.mark.parametrize(("name", "kind"), NONSENSE)
    def test_nonsense_is_a_fault(self, faulty: Launch, name: str, kind: str) -> None:
        scenario = f"{name} returns {kind}"
        bare = faulty.of("no guard")
        for rank, result in enumerate(faulty.of(scenario)):
            batches = guarded_batches(name, here=rank == 1)
            check_advantages(
                result["advantages"], GUARDED["downweight"][rank], GIVEN[rank], batches
            )
            check_logged(result, logged_batches(name, here=rank == 1))
            assert result["collectives"] == bare[rank]["collectives"] + collectives(name)
        assert faulty.output(scenario).count("Traceback (most recent call last)") == 1


class TestOnOneProcess:
    @pytest.mark.parametrize("mode", GUARDED)
    @pytest.mark.parametrize("name", POINTS)
    def test_switches_off(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, mode: str
    ) -> None:
        result = fault_places.train(tmp_path, fault(POINTS[name]), mode=mode)
        assert result["fired"] == [True]
        batches = guarded_batches(name, here=True)
        in_rewards = 2 if (name, mode) == ("changes", "exclude") else batches
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
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, kind: str
    ) -> None:
        result = fault_places.train(
            tmp_path, fault(POINTS[name], fault_places.NONSENSE[name][kind])
        )
        guarded = [number for half in GUARDED["downweight"] for number in half]
        check_advantages(result["advantages"], guarded, [*GIVEN[0], *GIVEN[1]], 1)
        check_logged(result, 1)
        assert caplog.text.count("Traceback (most recent call last)") == 1

    def test_what_follows_is_a_training_without_a_guard_from_where_it_failed(
        self, tmp_path: Path
    ) -> None:
        failed = fault_places.train(tmp_path, fault(POINTS["Reporter.batch"]), mode="exclude")
        guard = TruncationGuardCallback(mode="exclude")
        made = canned.trainer(tmp_path, canned.FAULTY, guard, max_steps=4, loss_type="dapo")
        made.add_callback(canned.AtStep(2, lambda: made.remove_callback(guard)))
        removed = canned.train(made)
        assert failed["advantages"] == removed["advantages"]
        assert failed["weights"] == fault_places.fingerprint(made)
        assert failed["weights"] != fault_places.train(tmp_path, mode="exclude")["weights"]
        assert failed["weights"] != fault_places.train(tmp_path, mode=None)["weights"]
