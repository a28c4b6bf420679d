"""Where the guard must change nothing, the real trainers train bit for bit as without it.

`observe` always (invariant 1), every mode where nothing is truncated (invariant 2), and every mode
in evaluation. Completions are really sampled in the first and the last, so that a single random
number drawn by the guard would show. Each test also holds the guard's counts against its own.
"""

import json
import random

import numpy as np
import pytest
import torch
from datasets import Dataset
from support import passes, tiny
from support.bit_for_bit import Gradients, Sampled, same

from truncation_guard import TruncationGuardCallback

MODES = ("observe", "downweight", "exclude", "penalize")
TIMING = ("_runtime", "_per_second", "step_time", "preparation_time")


def truncated_in(batch, limit=tiny.LIMIT):
    return sum(len(ids) == limit and ids[-1] != tiny.EOS for ids in batch)


def train(tmp_path, algorithm, guard, rollouts=None, reward=None, model=None, **overrides):
    """Everything that a run leaves behind, and the trainer."""
    gradients, reward = Gradients(), reward or Sampled()
    trainer = tiny.trainer(
        tiny.config(tmp_path, algorithm, **overrides),
        reward,
        [gradients] if guard is None else [guard, gradients],
        rollouts=rollouts,
        model=model or tiny.model(),
        train_dataset=Dataset.from_dict({"prompt": ["w3", "w4 w5 w6", "w7 w8", "w9"] * 8}),
        eval_dataset=tiny.prompts(3),
    )
    random.seed(3)
    np.random.seed(3)
    trainer.train()
    log = [
        {
            name: value
            for name, value in entry.items()
            if "truncation_guard/" not in name and not name.endswith(TIMING)
        }
        for entry in trainer.state.log_history
    ]
    left = {
        "log": json.dumps(log),
        "gradients": gradients.seen,
        "weights": list(trainer.model.state_dict().values()),
        "torch": torch.get_rng_state(),
        "numpy": [str(part) for part in np.random.get_state()],
        "python": random.getstate(),
    }
    return left, trainer, reward


def recorded(tmp_path, split="train"):
    lines = (tmp_path / "truncation_guard.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    return [e for e in entries if e["kind"] == "batch" and e["split"] == split]


def model_with_a_path(tmp_path):
    """TRL loads its reference model from where the policy came from."""
    tiny.model().save_pretrained(tmp_path / "model")
    return type(tiny.model()).from_pretrained(tmp_path / "model")


SETTINGS = {
    "accumulation": {"gradient_accumulation_steps": 2},
    "two passes": {
        "num_iterations": 2,
        "steps_per_generation": 4,
        "gradient_accumulation_steps": 2,
    },
    "mask": {"mask_truncated_completions": True, "gradient_accumulation_steps": 2},
    "beta": {"beta": 0.1, "gradient_accumulation_steps": 2},
    "evaluation": {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "num_generations_eval": 2,
        "per_device_eval_batch_size": 2,
    },
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
def test_observe_trains_bit_for_bit_as_without_a_guard(algorithm, settings, tmp_path):
    options = {"per_device_train_batch_size": 4, "max_steps": 4} | settings
    runs = []
    for guard in (None, TruncationGuardCallback(mode="observe", histogram_every=1)):
        model = model_with_a_path(tmp_path) if "beta" in settings else None
        runs.append(train(tmp_path, algorithm, guard, model=model, **options))
    (without, _, plain), (guarded, trainer, watched) = runs
    assert same(without, guarded) == []
    assert plain.batches == watched.batches

    steps_per_batch = trainer.args.steps_per_generation * trainer.num_iterations
    wanted = 4 * trainer.args.gradient_accumulation_steps // steps_per_batch
    batches = [b for b in watched.batches if len(b) == trainer.args.generation_batch_size]
    counted = recorded(tmp_path)
    assert len(counted) == len(batches) == wanted
    assert [entry["completions"] for entry in counted] == [len(batch) for batch in batches]
    assert [entry["truncated"] for entry in counted] == [truncated_in(b) for b in batches]
    assert 0 < sum(map(truncated_in, batches)) < sum(map(len, batches))
    if "eval_steps" in settings:
        evaluated = [b for b in watched.batches if len(b) == 2]
        counted = recorded(tmp_path, "eval")
        assert len(evaluated) == 2 * 3  # two evaluations of three prompts
        assert [entry["truncated"] for entry in counted] == [truncated_in(b) for b in evaluated]


NOTHING_TRUNCATED = [
    [5, 6, 1],
    [7, 1],
    [5, 6, 7, 8, 9, 10, 11, 1],  # its stop token is exactly at the limit
    [8, 9, 1],
    [9, 10],  # stopped: below the limit, without a stop token
    [11, 12, 13, 1],
    [12, 1],
    [13, 14, 15, 3, 1],
]


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("grpo", {}),
        ("grpo", {"loss_type": "grpo", "num_iterations": 2}),
        ("grpo", {"loss_type": "dr_grpo", "mask_truncated_completions": True}),
        ("rloo", {"num_iterations": 2}),
    ],
    ids=str,
)
def test_without_truncation_every_mode_trains_bit_for_bit_as_no_guard(algorithm, options, tmp_path):
    options = {"max_steps": 3} | options
    scores = [1.0, 0.0, 0.5, -1.0, 0.25, 0.75, 0.0, 2.0]

    def run(guard):
        reward = tiny.scripted(scores)
        return train(tmp_path, algorithm, guard, NOTHING_TRUNCATED, reward, **options)[0]

    without = run(None)
    for mode in MODES:
        guard = TruncationGuardCallback(mode=mode, truncated_weight=0.3, truncated_reward=-5.0)
        assert same(without, run(guard)) == [], mode
    counted = recorded(tmp_path)
    batches = 2 if "num_iterations" in options else 3
    assert [e["completions"] for e in counted] == [8] * batches * len(MODES)
    assert [e["truncated"] for e in counted] == [0] * batches * len(MODES)
    assert [e["stopped"] for e in counted] == [1] * batches * len(MODES)


def test_the_same_batch_with_truncation_trains_differently_in_every_other_mode(tmp_path):
    """The test of the tests above: what they compare can differ."""
    rollouts = [tiny.T8, *NOTHING_TRUNCATED[1:]]

    def run(guard):
        reward = tiny.scripted([1.0, 0.0, 0.5, -1.0, 0.25, 0.75, 0.0, 2.0])
        return train(tmp_path, "grpo", guard, rollouts, reward)[0]

    without = run(None)
    for mode in ("downweight", "exclude", "penalize"):
        changed = same(without, run(TruncationGuardCallback(mode=mode)))
        assert {"log", "gradients", "weights"} <= set(changed), mode


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
@pytest.mark.parametrize("generations", [1, 4])
def test_evaluation_is_only_measured(algorithm, mode, generations, tmp_path):
    """Every completion is truncated, and `eval_reward` and `eval_loss` are as without the guard."""
    settings = {
        "num_generations_eval": generations,
        "per_device_eval_batch_size": 4,
        "eval_strategy": "steps",
        "mask_truncated_completions": False,
    }

    def evaluate(callbacks):
        trainer = tiny.trainer(
            tiny.config(tmp_path, algorithm, **settings),
            tiny.scripted([1.0, 0.5, 0.25, 2.0]),
            callbacks,
            rollouts=[tiny.T8],
            eval_dataset=tiny.prompts(4),
        )
        outputs = tiny.capture(trainer)
        return trainer.evaluate(), outputs

    plain, plain_outputs = evaluate([])
    guard = TruncationGuardCallback(mode=mode, truncated_weight=0.0, truncated_reward=-3.0)
    guarded, outputs = evaluate([guard])

    assert plain["eval_reward"] == pytest.approx(0.9375)
    untimed = [{k: v for k, v in m.items() if not k.endswith(TIMING)} for m in (plain, guarded)]
    own = {name for name in guarded if "truncation_guard/" in name}
    assert {name: v for name, v in untimed[1].items() if name not in own} == untimed[0]
    assert own == {
        f"eval_truncation_guard/{name}"
        for name in (
            "truncated_share",
            "cause/limit",
            "cause/context",
            "cause/tool",
            "stopped_share",
            "groups_truncated",
            "groups_all_truncated",
            "groups_without_signal",
            "survivor_advantage_sum",
            "reward_truncated",
            "reward",
            "limit",
        )
    }
    assert guarded["eval_truncation_guard/truncated_share"] == 1.0
    assert guarded["eval_truncation_guard/groups_all_truncated"] == 1.0
    assert guarded["eval_truncation_guard/reward_truncated"] == pytest.approx(0.9375)
    assert guarded["eval_truncation_guard/groups_without_signal"] == float(generations == 1)
    assert len(outputs) == len(plain_outputs) == generations
    for one, other in zip(plain_outputs, outputs, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert [e["truncated"] for e in recorded(tmp_path, "eval")] == [4] * generations


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_training_goes_on_guarded_after_an_evaluation(mode, tmp_path):
    """An evaluation before and between the batches takes nothing from the batches of training."""
    rows = passes.rows()

    def run(**options):
        seen = passes.train(
            rows, tmp_path, guard=TruncationGuardCallback(mode=mode, record=False), **options
        )
        return seen.outputs

    def scores(outputs):
        return [output["advantages"] for output in outputs if len(output["advantages"]) == 16]

    plain = run(max_steps=4)
    evaluated = run(
        max_steps=4,
        eval_strategy="steps",
        eval_steps=2,
        eval_on_start=True,
        num_generations_eval=4,
        per_device_eval_batch_size=4,
        given={"eval_dataset": tiny.prompts(4)},
    )
    assert len(plain) == len(scores(plain)) == 2
    assert len(evaluated) > len(scores(evaluated)) == 2
    assert all(map(torch.equal, scores(plain), scores(evaluated)))
