"""The fault barrier alone, over a guard and a trainer that only write down what is asked of them.

`faults/test_stages.py` does the same with real ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from truncation_guard.batch.completion_row import Column
from truncation_guard.guard.fault_barrier import FaultBarrier

PROMPTS = ["a", "b"]
ROWS = torch.arange(2 * len(Column)).view(2, -1)
ROWS[:, Column.FAILED] = 0
ROWS[:, Column.LIMIT] = 16
REWARDS = torch.tensor([[1.0], [0.0], [1.0], [0.0]])
OUTPUT = {
    "advantages": torch.tensor([0.5, -0.5]),
    "completion_ids": torch.ones(2, 3),
    "completion_mask": torch.ones(2, 3, dtype=torch.int64),
}
BEFORE_THE_COLLECTIVE = ("begin", "generated")
AFTER_THE_COLLECTIVE = ("rewarded", "scored", "counted")
COUNTS: Any = "counts"


class Guard:
    """Stands for `BatchStages`: doubles the rewards, negates the advantages."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.failing: str | None = None
        self.results: dict[str, Any] = {}
        self.taken: list[Tensor] = []

    def begin(self, trainer: Any) -> None:
        self._call("begin")

    def generated(self, trainer: Any, generated: tuple[Any, ...]) -> Any:
        return self._call("generated", ROWS.clone())

    def rewarded(self, trainer: Any, gathered: Tensor, rewards: Tensor) -> Any:
        self.taken.append(gathered)
        return self._call("rewarded", 2 * rewards)

    def scored(self, trainer: Any, gathered: Tensor, output: dict[str, Tensor]) -> Any:
        assert gathered is self.taken[-1]
        return self._call("scored", {"advantages": -output["advantages"]})

    def counted(self, trainer: Any, gathered: Tensor) -> Any:
        assert gathered is self.taken[-1]
        return self._call("counted", None if gathered[:, Column.FAILED].any() else COUNTS)

    def _call(self, name: str, result: Any = None) -> Any:
        self.calls.append(name)
        if name == self.failing:
            raise ZeroDivisionError(name)
        return self.results.get(name, result)


class Accelerator:
    """Of the first of two processes; what the other one sends is up to the test."""

    device = torch.device("cpu")
    num_processes = 2

    def __init__(self, process_index: int = 0) -> None:
        self.process_index = process_index
        self.is_main_process = process_index == 0
        self.sent: list[Tensor] = []
        self.other_failed = False
        self.other_limit = 32

    def gather(self, rows: Tensor) -> Tensor:
        self.sent.append(rows)
        if rows.dim() == 1:
            return torch.cat([rows, torch.tensor([self.other_limit])])
        other = ROWS.clone()
        other[:, Column.FAILED] = int(self.other_failed)
        return torch.cat([rows, other])


class Run:
    """A trainer, its guard, and the barrier between them."""

    def __init__(self, process_index: int = 0) -> None:
        self.guard = Guard()
        self.accelerator = Accelerator(process_index)
        self.trainer = SimpleNamespace(accelerator=self.accelerator)
        self.stages = FaultBarrier(self.guard)  # type: ignore[arg-type]
        self.counts: Any = None

    def batch(self) -> tuple[Tensor, dict[str, Any]]:
        """The rewards and the output that the trainer goes on with."""
        self.stages.begin(self.trainer)
        self.stages.generated(self.trainer, PROMPTS, ("generated",))
        rewards = self.stages.rewarded(self.trainer, REWARDS)
        output, self.counts = self.stages.scored(self.trainer, OUTPUT)
        return rewards, output

    @property
    def sent_flags(self) -> list[list[int]]:
        return [rows[:, Column.FAILED].tolist() for rows in self.accelerator.sent if rows.dim() > 1]


@pytest.fixture
def run() -> Run:
    return Run()


def is_untouched(result: tuple[Tensor, dict[str, Any]]) -> bool:
    rewards, output = result
    return (
        rewards is REWARDS
        and output.keys() == OUTPUT.keys()
        and all(output[name] is OUTPUT[name] for name in OUTPUT)
    )


def tracebacks(caplog: pytest.LogCaptureFixture) -> int:
    return sum(record.exc_info is not None for record in caplog.records)


class TestWithoutAFault:
    def test_the_stages_come_in_order_and_their_results_go_to_the_trainer(self, run: Run) -> None:
        rewards, output = run.batch()
        assert run.guard.calls == [
            "begin",
            "generated",
            "rewarded",
            "scored",
            "counted",
        ]
        assert rewards.tolist() == [[2.0], [0.0], [2.0], [0.0]]
        assert output["advantages"].tolist() == [-0.5, 0.5]
        assert output["completion_ids"] is OUTPUT["completion_ids"]
        assert OUTPUT["advantages"].tolist() == [0.5, -0.5]

    def test_the_rows_of_both_processes_are_taken_in(self, run: Run) -> None:
        run.batch()
        assert [rows.tolist() for rows in run.guard.taken] == [[*ROWS.tolist(), *ROWS.tolist()]]

    def test_the_counts_go_to_the_caller(self, run: Run) -> None:
        run.batch()
        assert run.counts == COUNTS

    def test_each_batch_has_one_collective(self, run: Run) -> None:
        for _ in range(3):
            run.batch()
        assert run.sent_flags == [[0, 0]] * 3

    def test_a_loss_mask_may_be_new(self, run: Run) -> None:
        mask = torch.tensor([[1, 1, 1], [0, 0, 0]])
        run.guard.results["scored"] = {"tool_mask": mask}
        assert run.batch()[1]["tool_mask"] is mask

    def test_no_changes_are_fine(self, run: Run) -> None:
        run.guard.results["scored"] = {}
        _, output = run.batch()
        assert output == OUTPUT
        run.batch()
        assert len(run.accelerator.sent) == 2

    def test_what_somebody_else_generates_is_none_of_its_business(self, run: Run) -> None:
        """A script that calls `trainer._generate` outside of a batch."""
        run.stages.generated(run.trainer, PROMPTS, ("generated",))
        assert run.stages.rewarded(run.trainer, REWARDS) is REWARDS
        assert run.stages.scored(run.trainer, OUTPUT) == (OUTPUT, None)
        assert run.guard.calls == []
        assert run.accelerator.sent == []

    def test_a_wrapper_around_the_wrapper_is_measured_once(self, run: Run) -> None:
        """The outer one begins, the inner one does the work, the outer one has nothing left."""
        run.stages.begin(run.trainer)
        _, inner = run.batch()
        run.stages.generated(run.trainer, PROMPTS, ("generated",))
        assert run.stages.scored(run.trainer, inner)[0] is inner
        assert run.guard.calls.count("generated") == run.guard.calls.count("counted") == 1
        assert len(run.accelerator.sent) == 1

    def test_an_event_gets_its_answer(self, run: Run) -> None:
        assert run.stages.contain(lambda: 1 + 2, otherwise=0) == 3


class TestFaultBeforeTheCollective:
    @pytest.mark.parametrize("name", BEFORE_THE_COLLECTIVE)
    def test_the_process_takes_part_flagged_and_leaves_the_batch_alone(
        self, run: Run, caplog: pytest.LogCaptureFixture, name: str
    ) -> None:
        run.guard.failing = name
        assert is_untouched(run.batch())
        assert run.sent_flags == [[1, 1]]
        assert run.guard.calls[-1] == name
        assert tracebacks(caplog) == 1

    @pytest.mark.parametrize("name", BEFORE_THE_COLLECTIVE)
    def test_the_next_batches_know_no_guard(self, run: Run, name: str) -> None:
        run.guard.failing = name
        run.batch()
        run.guard.calls.clear()
        assert is_untouched(run.batch())
        assert is_untouched(run.batch())
        assert run.guard.calls == []
        assert len(run.accelerator.sent) == 1


class TestFaultAfterTheCollective:
    @pytest.mark.parametrize("name", AFTER_THE_COLLECTIVE)
    def test_the_next_batch_carries_the_flag_and_is_the_last(
        self, run: Run, caplog: pytest.LogCaptureFixture, name: str
    ) -> None:
        run.guard.failing = name
        run.batch()
        assert run.sent_flags == [[0, 0]]
        assert is_untouched(run.batch())
        assert run.sent_flags == [[0, 0], [1, 1]]
        assert is_untouched(run.batch())
        assert len(run.accelerator.sent) == 2
        assert run.guard.calls[-1] == name
        assert tracebacks(caplog) == 1

    @pytest.mark.parametrize("name", ["rewarded"])
    def test_the_batch_stays_as_it_was(self, run: Run, name: str) -> None:
        run.guard.failing = name
        assert is_untouched(run.batch())

    def test_without_changes_the_output_stays_as_it_was(self, run: Run) -> None:
        run.guard.failing = "scored"
        _, output = run.batch()
        assert output["advantages"] is OUTPUT["advantages"]

    def test_an_event_fails(self, run: Run, caplog: pytest.LogCaptureFixture) -> None:
        asked: list[int] = []

        def fails() -> None:
            asked.append(1)
            raise ZeroDivisionError

        run.batch()
        assert run.stages.contain(fails, otherwise=None) is None
        assert run.stages.contain(fails, otherwise=None) is None
        assert asked == [1]
        assert is_untouched(run.batch())
        assert run.sent_flags == [[0, 0], [1, 1]]
        run.batch()
        assert len(run.accelerator.sent) == 2
        assert tracebacks(caplog) == 1


class TestFaultOfAnotherProcess:
    @pytest.mark.parametrize("process_index", [0, 1])
    def test_switches_off_and_the_main_process_says_so(
        self, caplog: pytest.LogCaptureFixture, process_index: int
    ) -> None:
        run = Run(process_index)
        run.batch()
        run.accelerator.other_failed = True
        run.batch()
        lines = [record.getMessage() for record in caplog.records]
        assert len(lines) == (process_index == 0)
        assert all(line.startswith("[truncation-guard] ERROR the guard of anoth") for line in lines)
        assert tracebacks(caplog) == 0
        run.guard.calls.clear()
        assert is_untouched(run.batch())
        assert run.guard.calls == []
        assert len(run.accelerator.sent) == 2

    @pytest.mark.parametrize("name", AFTER_THE_COLLECTIVE)
    def test_in_the_same_batch_as_one_here_switches_off_at_once(self, run: Run, name: str) -> None:
        """The other one does not come to the next collective."""
        run.guard.failing = name
        run.accelerator.other_failed = True
        run.batch()
        assert is_untouched(run.batch())
        assert len(run.accelerator.sent) == 1


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("generated", None),
        ("generated", "nonsense"),
        ("generated", ROWS[:1]),
        ("generated", ROWS[:, :-1]),
        ("generated", ROWS.float()),
        ("rewarded", None),
        ("rewarded", "nonsense"),
        ("rewarded", REWARDS[:-1]),
        ("rewarded", REWARDS.double()),
        ("scored", None),
        ("scored", "nonsense"),
        ("scored", {"advantages": None}),
        ("scored", {"advantages": OUTPUT["advantages"][:1]}),
        ("scored", {"advantages": OUTPUT["advantages"].double()}),
        ("scored", {"tool_mask": torch.ones(2, 2, dtype=torch.int64)}),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
class TestNonsense:
    def test_does_not_reach_the_trainer(self, run: Run, name: str, result: Any) -> None:
        run.guard.results[name] = result
        rewards, output = run.batch()
        assert output == OUTPUT
        assert rewards is REWARDS or name == "scored"

    def test_is_a_fault(
        self, run: Run, caplog: pytest.LogCaptureFixture, name: str, result: Any
    ) -> None:
        run.guard.results[name] = result
        for _ in range(3):
            run.batch()
        assert len(run.accelerator.sent) == (1 if name in BEFORE_THE_COLLECTIVE else 2)
        assert run.sent_flags[-1] == [1, 1]
        assert tracebacks(caplog) == 1


def test_it_can_be_switched_off_from_outside(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run.stages.switch_off(RuntimeError("Nobody came."))
    assert is_untouched(run.batch())
    assert is_untouched(run.batch())
    assert run.accelerator.sent == []
    assert run.guard.calls == []
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.getMessage() == (
        "[truncation-guard] ERROR Nobody came. The guard is switched off."
    )


def test_a_log_handler_that_raises_does_not_reach_the_trainer(run: Run) -> None:
    class Raises(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise ConnectionError("the sink is gone")

    handler = Raises()
    logging.getLogger("truncation_guard").addHandler(handler)
    try:
        run.guard.results["generated"] = None
        assert is_untouched(run.batch())
        run.stages.switch_off("Enough.")
    finally:
        logging.getLogger("truncation_guard").removeHandler(handler)


def test_a_trainer_that_does_not_call_generate_is_left_alone(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        run.stages.begin(run.trainer)
        assert run.stages.rewarded(run.trainer, REWARDS) is REWARDS
        assert run.stages.scored(run.trainer, OUTPUT) == (OUTPUT, None)
    (record,) = caplog.records
    assert "SimpleNamespace does not call TRL's `_generate`" in record.getMessage()
    assert run.accelerator.sent == []


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_the_user_may_interrupt(run: Run, interruption: Callable[..., BaseException]) -> None:
    def interrupted(trainer: Any, generated: Any) -> Any:
        raise interruption

    run.guard.generated = interrupted  # type: ignore[method-assign]
    with pytest.raises(interruption):  # type: ignore[call-overload]
        run.batch()


# --- a limit that all agree on ------------------------------------------------------------------


@pytest.fixture
def raised(run: Run, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The limits that were set, in order."""
    limits: list[int] = []
    monkeypatch.setattr(
        "truncation_guard.guard.limit_agreement.raise_limit",
        lambda trainer, limit: limits.append(limit),
    )
    monkeypatch.setattr(
        "truncation_guard.guard.limit_agreement.get_limit", lambda trainer: trainer.limit
    )
    run.trainer.model, run.trainer.limit = SimpleNamespace(training=True), 16
    return limits


def test_a_limit_is_set_once_the_batch_after_the_proposal_shows_no_failure(
    run: Run, raised: list[int]
) -> None:
    run.batch()
    run.stages.limit.propose(32, before=16)
    run.batch()
    assert raised == []
    run.batch()
    assert raised == [32]
    run.batch()
    assert raised == [32]


def test_a_limit_that_not_all_propose_is_not_set(run: Run, raised: list[int]) -> None:
    run.stages.limit.propose(32, before=16)
    run.accelerator.other_failed = True
    for _ in range(3):
        run.batch()
    assert raised == []


def test_a_limit_that_somebody_has_lowered_meanwhile_is_left_alone(
    run: Run, raised: list[int]
) -> None:
    run.stages.limit.propose(32, before=17)  # 16 in the rows of the next batch
    run.batch()
    run.batch()
    assert raised == []
    run.stages.limit.propose(32, before=16)
    run.batch()
    run.trainer.limit = 12
    run.batch()
    run.batch()
    assert raised == []


@pytest.mark.parametrize("stage", AFTER_THE_COLLECTIVE)
def test_a_guard_that_fails_after_all_agreed_sets_the_limit_like_the_others(
    stage: str, run: Run, raised: list[int]
) -> None:
    """The others learn of its failure with the next batch, before which they set the limit."""
    run.stages.limit.propose(32, before=16)
    run.guard.failing = stage
    run.batch()
    assert raised == []
    run.batch()
    assert raised == [32]


def test_a_limit_waits_for_training(run: Run, raised: list[int]) -> None:
    run.stages.limit.propose(32, before=16)
    run.batch()
    run.trainer.model.training = False
    run.batch()
    assert raised == []
    run.trainer.model.training = True
    run.batch()
    assert raised == [32]


def test_a_limit_that_cannot_be_set_is_logged_and_not_tried_again(
    run: Run, raised: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(trainer: Any, limit: int) -> None:
        raise ValueError("no room")

    monkeypatch.setattr("truncation_guard.guard.limit_agreement.raise_limit", refuse)
    run.stages.limit.propose(32, before=16)
    for _ in range(3):
        run.batch()
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [error.getMessage() for error in errors] == [
        "[truncation-guard] ERROR the limit could not be raised."
    ]
    assert errors[0].exc_info is not None


# --- the limit of a checkpoint ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("here", "there", "restored"),
    [(32, 32, [32]), (48, 32, [32]), (24, 32, [24]), (32, 0, []), (0, 32, []), (-1, 32, [])],
)
def test_the_limit_of_a_checkpoint_is_the_lowest_that_a_process_finds(
    run: Run, raised: list[int], here: int, there: int, restored: list[int]
) -> None:
    run.accelerator.other_limit = there
    run.stages.restore_limit(run.trainer, lambda: here)
    assert raised == restored


@pytest.mark.parametrize("nonsense", [None, "nonsense", 10**30, ZeroDivisionError])
def test_a_process_that_cannot_find_it_takes_part_and_nobody_sets_one(
    run: Run, raised: list[int], caplog: pytest.LogCaptureFixture, nonsense: Any
) -> None:
    def find() -> Any:
        if nonsense is ZeroDivisionError:
            raise ZeroDivisionError
        return nonsense

    run.stages.restore_limit(run.trainer, find)
    assert raised == []
    assert [sent.tolist() for sent in run.accelerator.sent] == [[0]]
    assert tracebacks(caplog) == 1
    assert is_untouched(run.batch())
    assert run.sent_flags[-1] == [1, 1]
