"""The guard on every subclass of GRPOTrainer and RLOOTrainer among TRL's experimental trainers."""

from __future__ import annotations

import importlib
import json
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from support import tiny

from truncation_guard import TruncationGuardCallback


@dataclass(frozen=True)
class Experimental:
    """A trainer of `trl.experimental`; which versions have it is for TRL to say."""

    module: str
    trainer: str
    config: str | None = None
    """None: GRPOConfig."""
    guarded: bool = True
    """Whether the mode is applied: it is not where the trainer has rollout methods of its own."""
    given: Callable[[], dict[str, Any]] = dict

    def __str__(self) -> str:
        return f"{self.module}.{self.trainer}"


TRAINERS = [
    Experimental("gmpo", "GMPOTrainer", "GMPOConfig"),
    Experimental("gspo_token", "GRPOTrainer"),
    Experimental(
        "minillm", "MiniLLMTrainer", "MiniLLMConfig", given=lambda: {"teacher_model": tiny.model(1)}
    ),
    Experimental(
        "grpo_with_replay_buffer",
        "GRPOWithReplayBufferTrainer",
        "GRPOWithReplayBufferConfig",
        guarded=False,
    ),
    Experimental("gfpo", "GFPOTrainer", "GFPOConfig", guarded=False),
    Experimental("dppo", "DPPOTrainer", "DPPOConfig", guarded=False),
]
NOT_HERE = {"papo.PAPOTrainer"}
"""Needs a model that sees."""


def installed(name: str) -> bool:
    return find_spec(f"trl.experimental.{name}") is not None


class Sampled:
    """A reward that remembers the completions."""

    __name__ = "sampled"

    def __init__(self) -> None:
        self.rows: list[list[int]] = []

    def __call__(self, completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        self.rows += completion_ids
        return [float(sum(ids) % 7) for ids in completion_ids]


def is_truncated(row: list[int]) -> bool:
    return len(row) == tiny.LIMIT and row[-1] != tiny.EOS


@pytest.mark.parametrize("case", TRAINERS, ids=str)
def test_it_trains_with_the_guard(
    case: Experimental, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if not installed(case.module):
        pytest.skip(f"this TRL has no trl.experimental.{case.module}")
    module = importlib.import_module(f"trl.experimental.{case.module}")
    config = None if case.config is None else getattr(module, case.config)
    caplog.set_level(logging.WARNING, logger="truncation_guard")
    reward = Sampled()
    made = tiny.trainer(
        tiny.config(tmp_path, made_of=config, max_steps=2),
        reward,
        [TruncationGuardCallback()],
        base=getattr(module, case.trainer),
        **case.given(),
    )
    outputs = tiny.capture(made)
    made.train()

    assert made.state.global_step == 2
    lines = map(json.loads, (tmp_path / "truncation_guard.jsonl").read_text().splitlines())
    batches = [line for line in lines if line["kind"] == "batch"]
    cut = list(map(is_truncated, reward.rows))
    assert 0 < sum(cut) < len(cut) == 16
    assert [batch["truncated"] for batch in batches] == [sum(cut[:8]), sum(cut[8:])]
    text = caplog.text
    assert "ERROR" not in text
    assert ("WARN measured-only" in text) == (not case.guarded)
    advantages = torch.cat([output["advantages"] for output in outputs]).reshape(len(cut), -1)
    zero = (advantages == 0).all(dim=1)
    assert bool(zero[cut].all()) == case.guarded
    assert not zero[[not one for one in cut]].all()


def test_there_are_no_others() -> None:
    import trl.experimental

    folder = Path(next(iter(trl.experimental.__path__)))
    found = {
        f"{path.relative_to(folder).parts[0]}.{name}"
        for path in folder.rglob("*.py")
        for name in re.findall(
            r"^class (\w+)\(.*\b_?(?:GRPO|RLOO)Trainer\b", path.read_text(), re.MULTILINE
        )
    }
    known = {str(case) for case in TRAINERS} | NOT_HERE
    assert found == {name for name in known if installed(name.partition(".")[0])}
    assert found
