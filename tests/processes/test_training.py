"""Real trainings on two and three processes of torch.distributed give what one process gives.

The figures of case 5 are those of `cases.md`, the gradients those of `oracle.py`; what a mode does
to the advantages is compared with a training on one process, which other tests look at.
"""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from support import canned, oracle, tiny
from support.distributed import Launch, launch

from truncation_guard import TruncationGuardCallback

A = 0.5 / (math.sqrt(0.5) + 1e-4)
"""The advantage of a reward of 1 in a group of 1 and 0."""


@pytest.fixture(scope="module")
def two(two_processes: Launch) -> Launch:
    return two_processes.part("training")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    started = launch("together.py", 3, tmp_path_factory.mktemp("three"), "training")
    return started.part("training")


def metrics(**figures: float) -> dict[str, Any]:
    return {f"{canned.GUARD}{name.replace('__', '/')}": value for name, value in figures.items()}


class TestCase5:
    def test_both_ranks_log_the_counts_of_all_rows(self, two: Launch) -> None:
        expected = metrics(
            truncated_share=3 / 6,
            cause__limit=3 / 6,
            cause__context=0.0,
            cause__tool=0.0,
            stopped_share=0.0,
            groups_truncated=2 / 3,
            groups_all_truncated=1 / 3,
            groups_without_signal=1 / 3,
            survivor_advantage_sum=A / 2,
            reward_terminated=2 / 3,
            reward_truncated=1 / 3,
            reward=1 / 2,
            limit=8.0,
        )
        for rank in two.of("case 5"):
            assert rank["metrics"] == [pytest.approx(expected | {"step": 1}, rel=1e-6)]

    def test_each_rank_gets_its_share_of_the_guarded_advantages(self, two: Launch) -> None:
        first, second = two.of("case 5")
        assert first["advantages"] == [pytest.approx([A, -A, A], rel=1e-6)]
        assert second["advantages"] == [[0.0, 0.0, 0.0]]

    def test_the_main_process_alone_writes_one_line(self, two: Launch) -> None:
        (line,) = two.lines("case 5", "[truncation-guard]")
        assert "WARN all-truncated step=0 mode=downweight share=0.5" in line
        assert "completions=3/6 groups=2/3 worst=2/2 limit=8 |" in line

    def test_the_main_process_alone_writes_the_record(self, two: Launch) -> None:
        first, second = (rank["record"] for rank in two.of("case 5"))
        assert [entry["kind"] for entry in first] == ["start", "batch", "end"]
        assert second is None
        expected = {
            "completions": 6,
            "terminated": 3,
            "truncated": 3,
            "groups": 3,
            "groups_truncated": 2,
            "groups_all_truncated": 1,
            "groups_one_survivor": 1,
            "groups_without_signal": 1,
        }
        assert {key: first[1][key] for key in expected} == expected
        assert first[1]["lengths"] == {"bin_width": 1, "ended": [[3, 3]], "cut": [[8, 3]]}


@pytest.mark.parametrize("mode", canned.MODES)
class TestAnyLayoutGivesWhatOneProcessGives:
    """Invariant 5, with groups that straddle."""

    def test_two_processes(self, two: Launch, tmp_path: Any, mode: str) -> None:
        self.check(two.of(f"mode {mode}"), canned.TWELVE_IN_FOURS, tmp_path, mode)

    @pytest.mark.slow
    def test_three_processes(self, three: Launch, tmp_path: Any, mode: str) -> None:
        self.check(three.of(f"mode {mode}"), canned.TWELVE_IN_SIXES, tmp_path, mode)

    def check(self, ranks: list[Any], batch: canned.Batch, folder: Any, mode: str) -> None:
        guard = TruncationGuardCallback(mode=mode, **canned.MODE_SETTINGS)
        alone = canned.train(canned.trainer(folder, batch, guard))
        together = [advantage for rank in ranks for advantage in rank["advantages"][0]]
        assert together == alone["advantages"][0]
        for rank in ranks:
            assert rank["metrics"] == [pytest.approx(alone["metrics"][0], rel=1e-6)]
            assert rank["num_items"] == alone["num_items"]
        # What does not need a trainer to know: 5 of the 12 rows are cut off, at least one in each
        # group; the others have 28 tokens.
        counts = metrics(truncated_share=5 / 12, groups_truncated=1.0, groups_all_truncated=0.0)
        assert {name: alone["metrics"][0][name] for name in counts} == pytest.approx(counts)
        assert alone["num_items"] == [28 if mode == "exclude" else 28 + 5 * 8]
        masked = [rank["masked_rows"][0] for rank in ranks]
        kept = [batch.kept[i::1][: 12 // len(ranks)] for i in range(0, 12, 12 // len(ranks))]
        expected = [rows.count(False) for rows in kept]
        assert masked == (expected if mode == "exclude" else [0] * len(ranks))


def test_the_modes_differ(two: Launch) -> None:
    advantages = [two.of(f"mode {mode}")[0]["advantages"] for mode in canned.MODES]
    assert all(a != b for i, a in enumerate(advantages) for b in advantages[:i])


@pytest.mark.parametrize("layout", canned.LAYOUTS)
@pytest.mark.parametrize("loss", ["dapo", "grpo", "rloo"])
class TestExclude:
    """Invariant 3 over two processes."""

    def test_steps_along_the_gradient_of_the_kept_rows(
        self, two: Launch, loss: str, layout: str
    ) -> None:
        two.of(f"{loss} {layout}")
        batch = canned.LAYOUTS[layout]
        rows = [
            oracle.Row((3 + index // 4,), tuple(tokens), (reward,), kept)
            for index, (tokens, reward, kept) in enumerate(
                zip(batch.rollouts, batch.rewards, batch.kept, strict=True)
            )
        ]
        expected = oracle.gradient(
            tiny.model(dtype=torch.float64),
            rows,
            oracle.Setting(loss=loss, group_size=4, limit=tiny.LIMIT),
            old=tiny.model(seed=1, dtype=torch.float64),
        )
        steps = [torch.load(two.folder / f"{loss} {layout} {rank}.pt") for rank in (0, 1)]
        assert torch.equal(*steps)
        assert oracle.relative_error(steps[0], expected) < 1e-6

    def test_keeps_another_number_of_rows_in_each_micro_batch(
        self, two: Launch, loss: str, layout: str
    ) -> None:
        """What the test above is about: its name would be a lie otherwise."""
        first, second = (rank["kept_per_micro_batch"] for rank in two.of(f"{loss} {layout}"))
        assert sorted(first) == [2, 3]
        assert sum(second) == (2 if layout == "rows kept on both" else 0)

    def test_counts_the_kept_tokens_on_both_ranks(
        self, two: Launch, loss: str, layout: str
    ) -> None:
        kept = 28 if layout == "rows kept on both" else 19
        expected = [None] if loss == "rloo" else [kept]
        assert [rank["num_items"] for rank in two.of(f"{loss} {layout}")] == [expected] * 2


def test_one_collective_for_each_generation_batch(two: Launch) -> None:
    """Invariant 7, in training and evaluation."""
    without, guarded = two.of("collectives without"), two.of("collectives with")
    for before, after in zip(without, guarded, strict=True):
        assert before["batches"] == after["batches"] == 3 + 2 * 2
        gathers = before["counts"].pop("c10d::allgather_")
        assert after["counts"].pop("c10d::allgather_") == gathers + before["batches"]
        assert after["counts"] == before["counts"]


class TestEvaluation:
    def test_without_a_training_is_counted(self, two: Launch) -> None:
        counts = metrics(truncated_share=1 / 2, groups_truncated=2 / 3, groups_all_truncated=1 / 3)
        for rank in two.of("evaluation"):
            for logged in rank["metrics"]:
                found = {name: logged[f"eval_{name}"] for name in counts}
                assert found == pytest.approx(counts)
        assert two.of("evaluation")[0]["record"] == ["start", *["batch"] * 4]

    def test_with_a_guard_on_one_process_goes_on_without_it(self, two: Launch) -> None:
        first, second = two.of("one-sided evaluation")
        assert first["metrics"] == second["metrics"] == []
        assert first["counts"] == second["counts"]
        (line,) = two.lines("one-sided evaluation", "[truncation-guard]")
        assert "ERROR" in line
        assert "guards of the other processes (2 in all)" in line
        assert "Add it on every process" in line
        assert "switched off" in line

    @pytest.mark.slow
    def test_with_a_guard_on_one_process_does_not_harm_a_later_training(
        self, three: Launch
    ) -> None:
        """With one on every process, as the error says."""
        assert three.of("training after it") == three.of("mode downweight")


def test_training_with_a_guard_on_one_process_is_refused(two: Launch) -> None:
    error = two.results[0]["one-sided training"]
    assert "on process 0 waited 2 s for the guards of the other processes (2 in all)" in error
    assert "Add it on every process." in error


def test_a_guard_that_is_removed_lets_go(two: Launch) -> None:
    guarded, given = ([A, -A, 0.0], [0.0, 0.0, 0.0]), ([A, -A, A], [-A, A, -A])
    for rank, result in enumerate(two.of("removed")):
        batches = [guarded[rank]] * 2 + [given[rank]] * 2
        assert result["advantages"] == [pytest.approx(batch, rel=1e-6) for batch in batches]
        assert [len(entry) > 1 for entry in result["metrics"]] == [True, True, False, False]
        assert result["masked_rows"] == ([3, 3, 0, 0] if rank == 1 else [0] * 4)
        assert result["steps"] == 4


def test_a_second_training_is_guarded_too(two: Launch) -> None:
    for rank in two.of("second training"):
        first, second = rank["first"]["metrics"], rank["second"]["metrics"]
        assert first == second
        assert first[0].items() >= metrics(truncated_share=0.5, reward=0.5).items()
        batches = rank["second"]["advantages"]
        assert len(batches) == 2
        assert batches[0] == batches[1]
    assert two.of("second training")[0]["record"] == ["start", "batch", "end"] * 2


@pytest.mark.parametrize("scenario", ["resumed", "resumed and restored"])
def test_resuming_goes_on_where_the_checkpoint_left_off(two: Launch, scenario: str) -> None:
    checkpoint = two.folder / scenario / "checkpoint-2" / "trainer_state.json"
    callbacks = json.loads(checkpoint.read_text())["stateful_callbacks"]
    saved = callbacks["TruncationGuardCallback"]["attributes"]["restored_state"]["monitor"]
    assert len(saved["window"]) == 2
    third = pytest.approx(1 / 3)
    assert saved["said"] == {"all-truncated": [0, 1000, third], "no-signal": [1, 1000, third]}
    for rank in two.of(scenario):
        assert rank["states"] == [saved]
        assert rank["steps"] == 4
        assert len(rank["advantages"]) == 2
    # The cool-downs hold on: the resumed training repeats nothing.
    assert len(two.lines(scenario, "[truncation-guard] WARN")) == 2
