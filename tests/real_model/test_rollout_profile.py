"""SmolLM2-135M-Instruct: a profile of its rollouts, and one of a table of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.smollm2 import questions
from trl import GRPOConfig, GRPOTrainer

from truncation_guard.profiling.finished_run import profile_completions
from truncation_guard.profiling.rollouts.profile_rollouts import profile_rollouts

pytestmark = pytest.mark.real_model

LIMIT = 96


def test_rollouts_and_a_table_of_their_token_counts_agree(
    model_and_tokenizer: tuple[Any, Any], tmp_path: Path
) -> None:
    model, tokenizer = model_and_tokenizer
    args = GRPOConfig(
        output_dir=str(tmp_path),
        use_cpu=True,
        bf16=False,
        report_to="none",
        per_device_train_batch_size=8,
        num_generations=2,
        max_completion_length=16,
        shuffle_dataset=False,
        seed=5,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **kwargs: [0.0] * len(completions),
        args=args,
        train_dataset=questions(8),
        processing_class=tokenizer,
    )
    batches: list[list[list[int]]] = []
    generate = trainer._generate_single_turn

    def generated(*args: Any, **kwargs: Any) -> Any:
        result = generate(*args, **kwargs)
        batches.append(result[0])
        return result

    trainer._generate_single_turn = generated
    profile = profile_rollouts(
        trainer, max_completion_length=LIMIT, num_prompts=8, num_generations=2, progress=False
    )
    rows = [ids for batch in batches for ids in batch]
    ended, cut = profile.sample.histograms
    ends = [row[-1] == tokenizer.eos_token_id for row in rows]
    assert len(rows) == 16
    assert sum(cut.values()) == len(rows) - sum(ends) > 0
    assert set(cut) == {LIMIT}
    lengths = sorted(len(row) for row, end in zip(rows, ends, strict=True) if end)
    assert sorted(n for n, count in ended.items() for _ in range(count)) == lengths
    prompts = tokenizer.apply_chat_template(
        list(trainer.train_dataset["prompt"]), add_generation_prompt=True, return_dict=True
    )["input_ids"]
    assert profile.longest_prompt == max(map(len, prompts))

    texts = tokenizer.batch_decode(rows, skip_special_tokens=True)
    counts = [len(row) for row in rows]
    table = tmp_path / "completions_00001.parquet"
    pd.DataFrame({"completion": texts, "completion_length": counts}).to_parquet(table)
    # None of them terminated at the limit, which a table could not tell from truncated.
    assert profile_completions(table, limit=LIMIT).sample == profile.sample
