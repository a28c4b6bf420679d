"""SmolLM2-135M-Instruct on real questions, counted again from what a reward function gets."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.smollm2 import questions
from trl import GRPOConfig, GRPOTrainer

from truncation_guard import TruncationGuardCallback
from truncation_guard.record import FILE_NAME, read_record

pytestmark = pytest.mark.real_model

LIMIT, GENERATIONS, PROMPTS, STEPS = 48, 4, 3, 2


def group_advantages(rewards: Sequence[float]) -> list[float]:
    """(reward - mean) / (deviation + 1e-4), by hand."""
    mean, deviation = statistics.fmean(rewards), statistics.stdev(rewards)
    return [(reward - mean) / (deviation + 1e-4) for reward in rewards]


def test_counts_and_advantages_equal_an_independent_count(
    model_and_tokenizer: tuple[Any, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, tokenizer = model_and_tokenizer
    batches: list[list[list[int]]] = []

    def digits(completions: Any, completion_ids: Any, **kwargs: Any) -> list[float]:
        batches.append(completion_ids)
        texts = [messages[0]["content"] for messages in completions]
        return [sum(c.isdigit() for c in text) / (len(text) + 1) for text in texts]

    trainer = GRPOTrainer(
        model=model,
        reward_funcs=digits,
        args=GRPOConfig(
            output_dir=str(tmp_path),
            use_cpu=True,
            bf16=False,
            per_device_train_batch_size=PROMPTS * GENERATIONS,
            num_generations=GENERATIONS,
            max_completion_length=LIMIT,
            max_steps=STEPS,
            learning_rate=1e-6,
            logging_steps=1,
            log_completions=True,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            gradient_checkpointing=False,
            shuffle_dataset=False,
        ),
        train_dataset=questions(PROMPTS * STEPS),
        processing_class=tokenizer,
        callbacks=[TruncationGuardCallback()],
    )
    trainer.train()

    assert len(batches) == STEPS
    recorded = list(read_record(tmp_path / FILE_NAME)[0].batches.values())
    lines = [r.getMessage() for r in caplog.records if " WARN " in r.getMessage()]
    assert any(f"were cut off at max_completion_length={LIMIT}" in line for line in lines)
    ended_somewhere = 0
    for step, (rows, entry) in enumerate(zip(batches, recorded, strict=True)):
        cut = [len(row) == LIMIT and row[-1] != tokenizer.eos_token_id for row in rows]
        groups = [cut[i : i + GENERATIONS] for i in range(0, len(cut), GENERATIONS)]
        ended_somewhere += len(cut) - sum(cut)
        assert entry["truncated"] == sum(cut) == entry["causes"]["limit"]
        assert entry["terminated"] == len(cut) - sum(cut)
        assert entry["groups_truncated"] == sum(any(group) for group in groups)
        assert entry["groups_all_truncated"] == sum(all(group) for group in groups)
        assert entry["groups_one_survivor"] == sum(
            sum(group) == GENERATIONS - 1 for group in groups
        )

        table = pd.read_parquet(tmp_path / "completions" / f"completions_{step + 1:05d}.parquet")
        rewards = table["digits"].tolist()
        expected = [
            0.0 if is_cut else advantage
            for i in range(0, len(rewards), GENERATIONS)
            for is_cut, advantage in zip(
                cut[i : i + GENERATIONS],
                group_advantages(rewards[i : i + GENERATIONS]),
                strict=True,
            )
        ]
        assert table["advantage"].tolist() == pytest.approx(expected, abs=1e-4)
        history = trainer.state.log_history[step]
        assert history["truncation_guard/truncated_share"] == pytest.approx(sum(cut) / len(cut))
    assert ended_somewhere > 0
