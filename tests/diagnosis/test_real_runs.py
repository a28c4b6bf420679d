"""Diagnoses of what real trainers leave behind and print."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest
from support import tiny

from truncation_guard import TruncationGuardCallback
from truncation_guard.diagnosis.diagnose import diagnose

ROLLOUTS = [tiny.E3, tiny.T8, tiny.T8, tiny.T8]
STEPS = 6


def train(folder: Path, algorithm: str, guard: bool, **options: Any) -> str:
    """Train on canned rollouts, three quarters of them cut; what was printed."""
    args = tiny.config(
        folder,
        algorithm,
        **(
            {
                "max_steps": STEPS,
                "save_strategy": "steps",
                "save_steps": 3,
                "eval_strategy": "steps",
                "eval_steps": 3,
                "per_device_eval_batch_size": 8,
            }
            | options
        ),
    )
    trainer = tiny.trainer(
        args,
        tiny.scripted([1.0, 0.0, 0.0, 0.0]),
        [TruncationGuardCallback()] if guard else [],
        ROLLOUTS,
        eval_dataset=tiny.prompts(8),
    )
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        trainer.train()
    return printed.getvalue()


@pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
@pytest.mark.parametrize("disable_tqdm", [True, False])
def test_state_and_log_of_a_run_without_a_guard(
    tmp_path: Path, algorithm: str, disable_tqdm: bool
) -> None:
    printed = train(tmp_path / "run", algorithm, False, disable_tqdm=disable_tqdm)
    (tmp_path / "train.log").write_text(printed, encoding="utf-8")
    for path, source in ((tmp_path / "run", "trainer_state"), (tmp_path / "train.log", "log")):
        diagnosis = diagnose(path)
        cut = diagnosis.measures.cut
        assert cut is not None
        assert diagnosis.trace.source == source
        assert (cut.entries, cut.overall, cut.last) == (STEPS, 0.75, 0.75)
        assert diagnosis.measures.limit.tokens == tiny.LIMIT
        assert diagnosis.measures.limit.assumed
        assert diagnosis.measures.ended_length == len(tiny.E3)
        assert diagnosis.measures.evaluation_cut == 0.75
        assert diagnosis.verdict.answer == "is"
        assert diagnosis.trace.steps_known is (source == "trainer_state" or not disable_tqdm)
    steps = [entry.step for entry in diagnosis.trace.training]
    assert steps == list(range(1, STEPS + 1))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
def test_the_record_of_a_guarded_run_is_exact(tmp_path: Path, algorithm: str) -> None:
    train(tmp_path, algorithm, True, logging_steps=2)
    diagnosis = diagnose(tmp_path)
    cut = diagnosis.measures.cut
    assert cut is not None
    assert diagnosis.trace.source == "record"
    assert (cut.entries, cut.overall) == (STEPS, 0.75)
    assert (diagnosis.trace.limit, diagnosis.trace.mode) == (tiny.LIMIT, "downweight")
    assert diagnosis.trace.warned == {"truncated": 1}
    assert diagnosis.measures.ended_length == len(tiny.E3)
    assert diagnosis.measures.evaluation_cut == 0.75
    assert diagnosis.trace.sample is not None
    assert diagnosis.trace.sample.histograms == ({3: 2 * STEPS}, {tiny.LIMIT: 6 * STEPS})
    codes = {found.code: found.severity for found in diagnosis.findings}
    assert codes["guarded"] == codes["warned"] == "fine"
    assert codes["truncated"] == "problem"


@pytest.mark.slow
def test_a_later_run_without_a_guard_in_the_folder_of_a_guarded_one(tmp_path: Path) -> None:
    train(tmp_path, "grpo", True, max_steps=3)
    assert diagnose(tmp_path).trace.source == "record"
    train(tmp_path, "grpo", False)
    trace = diagnose(tmp_path).trace
    assert (trace.source, len(trace.training), trace.guarded) == ("trainer_state", STEPS, False)
    name = tmp_path / "truncation_guard.jsonl"
    assert trace.notes == [f"Passed over: {name} is of an earlier run."]


@pytest.mark.slow
def test_an_evaluation_after_a_guarded_run_does_not_hide_it(tmp_path: Path) -> None:
    train(tmp_path, "grpo", True, save_strategy="no")
    trainer = tiny.trainer(
        tiny.config(tmp_path, per_device_eval_batch_size=8),
        tiny.scripted([1.0, 0.0, 0.0, 0.0]),
        [TruncationGuardCallback()],
        [tiny.E3],
        eval_dataset=tiny.prompts(8),
    )
    trainer.evaluate()
    diagnosis = diagnose(tmp_path)
    assert diagnosis.verdict.answer == "is"
    assert diagnosis.measures.cut is not None
    assert diagnosis.measures.cut.overall == 0.75


@pytest.mark.slow
def test_the_tables_of_a_run_alone_tell_its_rewards(tmp_path: Path) -> None:
    train(tmp_path, "grpo", False, log_completions=True, num_completions_to_print=0)
    diagnosis = diagnose(tmp_path / "completions")
    assert diagnosis.trace.source == "tables"
    assert diagnosis.verdict.answer == "may be"
    assert {entry.reward for entry in diagnosis.trace.training} == {0.25}
