"""The check of a set-up changes nothing of the training that follows it, bit for bit.

Completions are really sampled, so that a random number, a prompt or a metric that the check takes
away would show.
"""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset, IterableDataset
from support import chats, tiny
from transformers import TrainerCallback

from truncation_guard.preflight.config_checks import check_setup
from truncation_guard.trainer.hooks import find_trainer

MODES = ("observe", "downweight", "exclude", "penalize")
TIMING = ("_runtime", "_per_second", "step_time", "preparation_time")
WORDS = ["w3", "w4 w5 w6", "w7 w8", "w9"] * 8
CHATS = [[chats.user(words)] for words in WORDS]


class Preflight(TrainerCallback):
    """Checks the set-up at the start of training, or only looks for the trainer."""

    def __init__(self, checks: bool) -> None:
        self.checks = checks
        self.kinds: list[list[str]] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer = find_trainer(self)
        if self.checks:
            found = [check_setup(trainer, mode, 0.0) for mode in MODES]
            self.kinds = [[finding.kind for finding in findings] for findings in found]


def generated(prompts):
    """A stream that tells how far it was read."""
    read = []

    def rows():
        for prompt in prompts:
            read.append(prompt)
            yield {"prompt": prompt}

    return IterableDataset.from_generator(rows), read


def wrong_set_up(tmp_path, algorithm, callback, dataset):
    """A real trainer with something for nearly every check to find."""
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['content'] }} <eot> {% endfor %}"
        "{% if add_generation_prompt %}w15{% endif %}"
    )
    made = tiny.trainer(
        tiny.config(
            tmp_path,
            algorithm,
            max_steps=3,
            num_generations=2,
            shuffle_dataset=True,
            mask_truncated_completions=True,
        ),
        [
            tiny.SoftPunishment(20, 2),
            lambda completion_ids, **kwargs: [sum(ids) % 7 / 4 for ids in completion_ids],
        ],
        [callback],
        train_dataset=dataset,
        processing_class=tokenizer,
    )
    made.model.config.max_position_embeddings = 10
    return made


def train(tmp_path, algorithm, checks, dataset):
    """Everything that a run leaves behind, and its callback."""
    callback = Preflight(checks)
    made = wrong_set_up(tmp_path, algorithm, callback, dataset)
    random.seed(3)
    np.random.seed(3)
    made.train()
    log = [
        {name: value for name, value in entry.items() if not name.endswith(TIMING)}
        for entry in made.state.log_history
    ]
    left = {
        "log": json.dumps(log),
        "prompts": list(made._logs["prompt"]),
        "weights": [weight.tolist() for weight in made.model.state_dict().values()],
        "random": random_state(),
    }
    return left, callback


def random_state():
    numpy = [str(part) for part in np.random.get_state()]
    return [torch.get_rng_state().tolist(), numpy, random.getstate()]


@pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
@pytest.mark.parametrize("prompts", [WORDS, CHATS], ids=["words", "chats"])
def test_a_training_is_the_same_with_and_without_the_check(tmp_path, algorithm, prompts):
    dataset = Dataset.from_dict({"prompt": prompts})
    without, _ = train(tmp_path / "without", algorithm, False, dataset)
    checked, callback = train(tmp_path / "checked", algorithm, True, dataset)
    stops = ["stop-tokens"] if prompts is CHATS else []
    always = ["context", *stops, "soft-punishment"]
    assert callback.kinds == [
        always,
        always,
        [*always, "masked-twice", "groups"],
        [*always, "masked-twice"],
    ]
    assert [name for name in without if without[name] != checked[name]] == []


def test_a_training_on_a_stream_reads_the_same_rows(tmp_path):
    (stream, read), (other, read_too) = generated(WORDS), generated(WORDS)
    without, _ = train(tmp_path / "without", "grpo", False, stream)
    checked, callback = train(tmp_path / "checked", "grpo", True, other)
    assert callback.kinds[1] == ["soft-punishment"]
    assert len(read) > 0
    assert read == read_too
    assert [name for name in without if without[name] != checked[name]] == []


@pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
def test_nothing_of_the_trainer_is_touched(tmp_path, algorithm):
    made = wrong_set_up(tmp_path, algorithm, Preflight(False), Dataset.from_dict({"prompt": CHATS}))

    def state():
        containers = (made._metrics, made._logs, vars(made.state), made.reward_func_names)
        return {
            "attributes": {name: id(value) for name, value in vars(made).items()},
            "containers": copy.deepcopy(containers),
            "args": made.args.to_dict(),
            "generation": made.generation_config.to_dict(),
            "flags": [module.training for module in made.model.modules()],
            "buffers": [buffer.tolist() for buffer in made.model.buffers()],
            "data": (made.train_dataset._fingerprint, made.train_dataset.format),
            "tokenizer": made.processing_class.backend_tokenizer.to_str(),
            "random": random_state(),
        }

    before = state()
    for mode in MODES:
        assert check_setup(made, mode, 0.5)
    after = state()
    assert [name for name in before if before[name] != after[name]] == []


def test_no_process_asks_another(tmp_path, monkeypatch):
    class Unreachable:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"accelerator.{name}")

    made = wrong_set_up(tmp_path, "grpo", Preflight(False), Dataset.from_dict({"prompt": CHATS}))
    expected = [check_setup(made, mode, 0.5) for mode in MODES]
    monkeypatch.setattr(made, "accelerator", Unreachable())
    assert [check_setup(made, mode, 0.5) for mode in MODES] == expected
    assert all(expected)
