"""`set_max_completion_length` on the real trainers, with the transformers backends."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
from support import tiny
from transformers import TrainerCallback

from truncation_guard import set_max_completion_length
from truncation_guard.trainer.limit import get_limit

BACKENDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "overridden": {"generation_kwargs": {"max_new_tokens": 8, "top_k": 0}},
    "continuous batching": {
        "use_transformers_continuous_batching": True,
        # Without these it fills half of the machine's memory with an empty cache, at each call.
        "transformers_continuous_batching_config": {
            "num_blocks": 16,
            "block_size": 32,
            "max_batch_tokens": 64,
        },
    },
}


class Lengths:
    """A reward that remembers how long the completions of each batch are."""

    __name__ = "lengths"

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def __call__(self, completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        self.batches.append([len(ids) for ids in completion_ids])
        return [float(sum(ids) % 7) for ids in completion_ids]


class Changing(TrainerCallback):
    """Sets the limit after each step to the next of these."""

    trainer: Any = None

    def __init__(self, *limits: int) -> None:
        self.limits = list(limits)

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        if self.limits:
            set_max_completion_length(self.trainer, self.limits.pop(0))


@pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_next_rollouts_obey_a_raised_and_a_lowered_limit(algorithm, backend, tmp_path):
    reward, changing = Lengths(), Changing(24, 4)
    args = tiny.config(
        tmp_path,
        algorithm,
        per_device_train_batch_size=32,
        max_steps=3,
        **copy.deepcopy(BACKENDS[backend]),
    )
    trainer = tiny.trainer(args, reward, [changing])
    changing.trainer = trainer
    trainer.train()
    assert [max(lengths) for lengths in reward.batches] == [8, 24, 4]
    assert any(8 < length < 24 for length in reward.batches[1])
    assert get_limit(trainer) == trainer.generation_config.max_new_tokens == 4
    assert trainer.max_completion_length == trainer.args.max_completion_length == 4
    if backend == "overridden":
        assert trainer.args.generation_kwargs == {"max_new_tokens": 4, "top_k": 0}


def test_the_object_that_configures_continuous_batching_stays_as_it_is(tmp_path):
    args = tiny.config(tmp_path, **copy.deepcopy(BACKENDS["continuous batching"]))
    trainer = tiny.trainer(args, Lengths())
    config = trainer.continuous_batching_config
    before = copy.deepcopy(vars(config))
    set_max_completion_length(trainer, 24)
    assert trainer.continuous_batching_config is config
    assert vars(config) == before


@pytest.mark.parametrize(
    ("limit", "longest_prompt", "message"),
    [
        (
            65,
            0,
            "`max_completion_length`=65 does not fit into the context window of 64 tokens. "
            "Pass at most 64.",
        ),
        (
            60,
            5,
            "`max_completion_length`=60 and the longest prompt (5 tokens) do not fit into the "
            "context window of 64 tokens. Pass at most 59.",
        ),
        (
            0,
            0,
            "`max_completion_length` must be an integer of at least 1, got 0. Pass a number of "
            "tokens, such as 1024.",
        ),
        *(
            (
                16,
                wrong,
                f"`longest_prompt` must be an integer of at least 0, got {wrong!r}. Pass the "
                "tokens of the longest prompt, or 0 to check the limit alone.",
            )
            for wrong in (-1, 2.5, True, None)
        ),
    ],
)
def test_what_cannot_be_set_is_refused_and_changes_nothing(
    limit, longest_prompt, message, tmp_path
):
    trainer = tiny.trainer(tiny.config(tmp_path), Lengths())
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        set_max_completion_length(trainer, limit, longest_prompt=longest_prompt)
    assert get_limit(trainer) == trainer.max_completion_length == 8


def test_another_trainer_is_refused():
    message = (
        "set_max_completion_length works with trl's GRPOTrainer, RLOOTrainer and their subclasses, "
        "got object. Pass such a trainer."
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        set_max_completion_length(object(), 8)


def test_the_loss_of_dr_grpo_is_divided_by_the_limit_of_the_moment(tmp_path):
    """As the docstring says: twice the limit, half the step."""
    norms = []
    for limit in (8, 16):
        trainer = tiny.trainer(
            tiny.config(tmp_path, loss_type="dr_grpo", scale_rewards="none", max_grad_norm=0.0),
            tiny.scripted([1.0, 0.0, 0.5, 0.25]),
            rollouts=[tiny.E3, tiny.T8, [5, 1], [7, 6, 1]],
        )
        set_max_completion_length(trainer, limit)
        trainer.train()
        norms.append(trainer.state.log_history[0]["loss"])
    assert norms[0] == pytest.approx(2 * norms[1], rel=1e-2)  # transformers 4 logs four decimals
    assert norms[0] != 0
