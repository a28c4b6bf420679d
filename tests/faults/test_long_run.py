"""Ten thousand generation batches: memory stays flat, and the record grows by a line for each."""

from __future__ import annotations

import gc
import json
import os
import random
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from support import tiny

from truncation_guard import TruncationGuardCallback
from truncation_guard.record import FILE_NAME, read_record

BATCHES = 10_000
ROWS, SIZE = 16, 4
LIMIT = 60
PART = 2_000
GROWTH = 2**20
"""Bytes in a part. A leak of one list of the batch's rows each time would be 2.5 MB, one of its
tokens 10."""


def resident() -> int:
    """Bytes of memory of this process."""
    gc.collect()
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def stubbed(folder: Path, draw: random.Random) -> Any:
    """A real trainer whose rollouts and scores cost nothing; the guard wraps it as it is."""
    made = tiny.trainer(
        tiny.config(folder, per_device_train_batch_size=ROWS, max_completion_length=LIMIT),
        tiny.scripted([1.0]),
    )

    def generate(prompts: list[Any]) -> tuple[Any, ...]:
        lengths = [draw.randrange(1, LIMIT + 20) for _ in prompts]
        ids = [[*[5] * (n - 1), tiny.EOS] if n <= LIMIT else [6] * LIMIT for n in lengths]
        return [[3]] * len(prompts), ids, None, [""] * len(prompts)

    def score(inputs: Any) -> dict[str, Any]:
        _, ids, _, _ = made._generate(inputs)
        rewards = made._calculate_rewards(inputs, None, None, None)
        advantages = (rewards - rewards.nanmean()).nan_to_num(0.0).flatten()
        made._logs["advantages"].extend(advantages.tolist())
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(row)) for row in ids], True)
        tokens = torch.tensor(sum(map(len, ids)))
        return {"advantages": advantages, "completion_mask": mask, "num_items_in_batch": tokens}

    made._generate, made._generate_and_score_completions = generate, score
    made._calculate_rewards = lambda *_: torch.tensor([[draw.random()] for _ in range(ROWS)])
    return made


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_ten_thousand_generation_batches(tmp_path: Path) -> None:
    made = stubbed(tmp_path, random.Random(0))
    guard = TruncationGuardCallback(mode="exclude", histogram_every=100, raise_limit_to=62)
    guard.attach(made)
    memory = []
    for batch in range(BATCHES):
        if batch and batch % PART == 0:  # every length has been seen, every buffer is full
            memory.append(resident())
        made.state.global_step = batch
        output = made._generate_and_score_completions(list(range(ROWS)))
        assert output["advantages"].isfinite().all()
        if batch % 100 == 99:
            made._metrics["train"] = defaultdict(list)  # as the trainer does when it logs
            guard.state()  # as for a checkpoint
    guard.on_train_end(made.args, made.state, made.control)
    # A leak grows in every part; what other tests left behind makes a jump in one.
    assert median(after - before for before, after in pairwise(memory)) < GROWTH
    lines = (tmp_path / FILE_NAME).read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines[:2]] == ["start", "batch"]
    assert len(lines) == 1 + BATCHES + 1
    assert max(map(len, lines[:-1])) < 1000
    (run,) = read_record(tmp_path / FILE_NAME)
    assert len(run.batches) == BATCHES
    assert run.end["completions"] == BATCHES * ROWS
    assert len(json.dumps(guard.state())) < 20_000
