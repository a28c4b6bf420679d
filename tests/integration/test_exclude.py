"""`exclude`: the gradient of the real trainers is that of the kept rows alone (invariant 3).

Two oracles, neither of which knows the guard: the losses written from the papers (`oracle.py`), and
TRL itself on a batch that holds the kept rows and nothing else.
"""

import math
from dataclasses import replace

import pytest
import torch
from support import passes, tiny, versions
from support.oracle import (
    DIVIDE_BY_ROWS,
    DIVIDE_BY_TOKENS,
    LOSSES,
    Setting,
    gradient,
    loss,
    relative_error,
)

from truncation_guard import TruncationGuardCallback

EVERY_LOSS = (*LOSSES, "rloo")
ONE_OF_EACH_KIND = ("dapo", "grpo", "bnpo", "rloo")
"""By what the loss is divided by: tokens of all, rows, tokens of a micro-batch, rows in RLOO."""
LOSSES_BY_KIND = [
    loss if loss in ONE_OF_EACH_KIND else pytest.param(loss, marks=pytest.mark.slow)
    for loss in EVERY_LOSS
]
HALF = ((0, 1, 1, 0), (1, 0, 0, 1), (1, 1, 0, 0), (0, 1, 0, 1))
"""Two kept rows in each group: TRL can train on the kept rows alone, in groups of two."""


def guard(**options):
    return TruncationGuardCallback(**({"mode": "exclude", "record": False} | options))


def setting(loss_type, **changes):
    """What `passes.train` configures: two optimizer steps of two micro-batches each."""
    known = {"loss": loss_type, "group_size": 4, "limit": tiny.LIMIT}
    known |= {"steps": 2, "micro_batches_per_step": 2}
    if loss_type == "cispo":
        known["epsilon_high"] = passes.CISPO_EPSILON_HIGH
    if loss_type == "luspo":
        versions.require("1.10", "LUSPO as in the paper")
    if loss_type in DIVIDE_BY_TOKENS and versions.Version("1.9.2") > versions.TRL:
        known["steps"] = 1  # it divided the loss of each step by the tokens of all of them
    return Setting(**(known | changes))


def error(seen, rows, wanted, micro_batches=None):
    """Distance of the summed gradient from the oracle's, over the latter's norm."""
    members = seen.members(rows) if micro_batches is None else micro_batches
    expected = gradient(seen.policy(), rows, wanted, seen.old, seen.reference, members)
    return relative_error(seen.gradient, expected)


@pytest.mark.parametrize("loss_type", LOSSES_BY_KIND)
def test_the_oracle_gives_trls_gradient_when_nothing_is_truncated(loss_type, tmp_path):
    rows = passes.rows(cut=((0,) * 4,) * 4)
    seen = passes.train(rows, tmp_path, loss_type)
    assert error(seen, rows, setting(loss_type)) < 1e-6


@pytest.mark.parametrize("masked", [False, True], ids=["", "mask_truncated_completions"])
@pytest.mark.parametrize("loss_type", EVERY_LOSS)
def test_the_gradient_is_that_of_the_kept_rows(loss_type, masked, tmp_path):
    rows = passes.rows()
    seen = passes.train(rows, tmp_path, loss_type, guard=guard(), mask_truncated_completions=masked)
    assert sorted(seen.kept(rows)) == [0, 2, 2, 3]
    assert error(seen, rows, setting(loss_type)) < 1e-6
    # The policy moved after scoring: with the ratios at 1 the gradient would be another one.
    on_policy = gradient(seen.policy(), rows, setting(loss_type), seen.policy())
    assert relative_error(on_policy, seen.gradient) > 1e-2


@pytest.mark.parametrize("loss_type", LOSSES_BY_KIND)
def test_the_loss_is_that_of_the_kept_rows(loss_type, tmp_path):
    rows = passes.rows()
    seen = passes.train(rows, tmp_path, loss_type, guard=guard())
    expected = loss(
        seen.policy(), rows, setting(loss_type), seen.old, micro_batches=seen.members(rows)
    )
    assert sum(seen.losses) == pytest.approx(expected.item(), rel=2e-6, abs=2e-6)


@pytest.mark.parametrize("loss_type", LOSSES_BY_KIND)
def test_every_optimizer_step_of_two_iterations_uses_the_kept_rows(loss_type, tmp_path):
    """With a real optimizer: the later steps are off policy because the earlier ones moved it."""
    rows = passes.rows()
    seen = passes.train(
        rows,
        tmp_path,
        loss_type,
        guard=guard(),
        drift=0.0,
        num_iterations=2,
        gradient_accumulation_steps=4,
        optim="sgd",
        learning_rate=0.01 if loss_type == "rloo" else 0.1,
        max_grad_norm=0.0,
    )
    assert len(seen.outputs) == 1
    assert len(seen.gradients) == 8
    # One optimizer step for each pass over the generation batch.
    wanted = setting(loss_type, steps=1, micro_batches_per_step=4)
    for step in (slice(0, 4), slice(4, 8)):
        policy = seen.policy(step.start)
        expected = gradient(policy, rows, wanted, seen.old, None, seen.members(rows)[step])
        assert relative_error(torch.stack(seen.gradients[step]).sum(0), expected) < 1e-6
    assert (
        relative_error(seen.weights[4]["lm_head.weight"], seen.weights[0]["lm_head.weight"]) > 1e-3
    )


@pytest.mark.parametrize("loss_type", LOSSES_BY_KIND)
def test_a_batch_without_old_log_probabilities(loss_type, tmp_path):
    """One optimizer step for each generation batch: GRPO takes the ratios as 1."""
    rows = passes.rows()
    seen = passes.train(
        rows,
        tmp_path,
        loss_type,
        guard=guard(),
        drift=0.0,
        gradient_accumulation_steps=4,
        max_steps=1,
    )
    assert ("old_per_token_logps" in seen.outputs[0]) is False
    assert error(seen, rows, setting(loss_type, steps=1, micro_batches_per_step=4)) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    "loss_type", ["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "vespo", "sapo", "luspo"]
)
def test_ratios_of_whole_sequences(loss_type, tmp_path):
    rows = passes.rows()
    seen = passes.train(
        rows,
        tmp_path,
        loss_type,
        guard=guard(),
        importance_sampling_level="sequence",
        epsilon=0.05,
    )
    high = {} if loss_type == "cispo" else {"epsilon_high": 0.05}
    wanted = setting(loss_type, level="sequence", epsilon=0.05, **high)
    assert error(seen, rows, wanted) < 1e-6
    if loss_type != "vespo":  # which takes whole sequences at either level
        assert error(seen, rows, replace(wanted, level="token")) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("loss_type", ["grpo", "dapo"])
@pytest.mark.parametrize("scale_rewards", ["group", "batch", "none"])
@pytest.mark.parametrize("aggregation", ["sum_then_normalize", "normalize_then_sum"])
def test_two_reward_functions(loss_type, scale_rewards, aggregation, tmp_path):
    """One of them abstains on some rows; a group of one survivor and one without are there too."""
    rows = passes.rows(functions=2)
    assert any(None in row.rewards for row in rows if row.kept)
    seen = passes.train(
        rows,
        tmp_path,
        loss_type,
        guard=guard(),
        scale_rewards=scale_rewards,
        multi_objective_aggregation=aggregation,
        reward_weights=[1.0, 0.5],
    )
    wanted = setting(
        loss_type,
        scale_rewards=scale_rewards,
        aggregation=aggregation,
        reward_weights=(1.0, 0.5),
    )
    assert error(seen, rows, wanted) < 1e-6


@pytest.mark.parametrize("normalize", [False, True])
def test_two_reward_functions_of_rloo(normalize, tmp_path):
    rows = passes.rows(functions=2)
    seen = passes.train(
        rows,
        tmp_path,
        "rloo",
        guard=guard(),
        normalize_advantages=normalize,
        reward_weights=[1.0, 0.5],
    )
    wanted = setting("rloo", normalize_advantages=normalize, reward_weights=(1.0, 0.5))
    assert error(seen, rows, wanted) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss_type", "options"),
    [
        *((loss_type, {"use_bias_correction_kl": False}) for loss_type in LOSSES),
        *((loss_type, {"use_bias_correction_kl": True}) for loss_type in ("dapo", "grpo")),
        ("rloo", {}),
    ],
    ids=str,
)
def test_a_kl_term(loss_type, options, tmp_path):
    """In the losses that divide by rows, the kept rows' KL term stays divided by all rows."""
    rows = passes.rows()
    seen = passes.train(
        rows,
        tmp_path,
        loss_type,
        guard=guard(),
        beta=0.1,
        given={"model": passes.policy_with_reference(tmp_path)},
        **options,
    )
    corrected = options.get("use_bias_correction_kl", False)
    wanted = setting(loss_type, beta=0.1, kl_corrected=corrected)
    if loss_type in DIVIDE_BY_ROWS and loss_type != "rloo":
        assert error(seen, rows, wanted) > 1e-3
        wanted = replace(wanted, kl_rows=len(rows))
    assert error(seen, rows, wanted) < 1e-6
    assert error(seen, rows, setting(loss_type)) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("loss_type", LOSSES)
def test_only_tokens_of_the_model_count(loss_type, tmp_path, monkeypatch):
    """With a `rollout_func` and its `env_mask`, which RLOO does not have."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    rows = [
        replace(row, counted=(*(int(i % 3 != 1) for i in range(len(row.tokens) - 1)), 1))
        for row in passes.rows()
    ]

    def rollout(prompts, trainer):
        return {
            "prompt_ids": [list(row.prompt) for row in rows],
            "completion_ids": [list(row.tokens) for row in rows],
            "logprobs": None,
            "env_mask": [list(row.counted) for row in rows],
        }

    seen = passes.train(rows, tmp_path, loss_type, guard=guard(), given={"rollout_func": rollout})
    assert error(seen, rows, setting(loss_type)) < 1e-6
    kept_tokens = sum(sum(row.counted) for row in rows if row.kept)
    assert seen.outputs[0]["num_items_in_batch"].item() == kept_tokens
    assert error(seen, [replace(row, counted=None) for row in rows], setting(loss_type)) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss_type", "options"),
    [
        ("dapo", {"entropy_coef": 0.05}),
        ("grpo", {"entropy_coef": 0.05}),
        ("dapo", {"top_entropy_quantile": 0.5}),
        ("grpo", {"top_entropy_quantile": 0.5}),
        ("grpo", {"off_policy_mask_threshold": 0.001}),
        ("grpo", {"delta": 1.1}),
        ("dapo", {"beta": 0.1, "use_bias_correction_kl": True}),
        ("sapo", {"sapo_temperature_neg": 2.0}),
        ("luspo", {"importance_sampling_level": "sequence", "scale_rewards": "batch"}),
        ("rloo", {"reward_clip_range": (-0.25, 0.6), "normalize_advantages": True}),
        ("rloo", {"beta": 0.1}),
    ],
    ids=str,
)
def test_trl_on_the_kept_rows_alone_gives_the_same_gradient(loss_type, options, tmp_path):
    """The other oracle, for what the papers' losses do not hold: one micro-batch, two passes."""
    rows = passes.rows(cut=HALF)
    kept = [row for row in rows if row.kept]

    def train(batch, group_size, callback):
        return passes.train(
            batch,
            tmp_path,
            loss_type,
            guard=callback,
            group_size=group_size,
            per_device_train_batch_size=len(batch),
            steps_per_generation=1,
            gradient_accumulation_steps=1,
            num_iterations=2,
            exact=loss_type == "rloo",
            given={"model": passes.policy_with_reference(tmp_path)},
            **options,
        )

    guarded, alone = train(rows, 4, guard()), train(kept, 2, None)
    assert len(guarded.gradients) == len(alone.gradients) == 2
    assert relative_error(guarded.gradient, alone.gradient) < 1e-6
    assert guarded.losses == pytest.approx(alone.losses, rel=2e-6, abs=2e-6)


def test_the_denominator_is_recounted_and_attention_stays_true(tmp_path):
    rows = passes.rows()
    plain = passes.train(rows, tmp_path).outputs[0]
    output = passes.train(rows, tmp_path, guard=guard()).outputs[0]
    assert plain["num_items_in_batch"].item() == sum(len(row.tokens) for row in rows)
    kept_tokens = sum(len(row.tokens) for row in rows if row.kept)
    assert output["num_items_in_batch"].item() == kept_tokens
    assert output["num_items_in_batch"].dtype == plain["num_items_in_batch"].dtype
    assert torch.equal(output["completion_mask"], plain["completion_mask"])
    in_loss = (output["completion_mask"] * output["tool_mask"]).sum(1).tolist()
    assert in_loss == [len(row.tokens) if row.kept else 0 for row in rows]


def test_a_stopped_row_that_trl_masks_stays_a_row(tmp_path):
    """Below the limit without a stop token: no mode touches it, but TRL's own mask takes it."""
    rows = passes.rows()
    stopped = next(index for index, row in enumerate(rows) if row.kept and len(row.tokens) > 2)
    row = rows[stopped]
    rows[stopped] = replace(row, tokens=row.tokens[:-1], counted=(0,) * (len(row.tokens) - 1))
    for loss_type in ("grpo", "dapo", "dr_grpo"):
        seen = passes.train(
            rows, tmp_path, loss_type, guard=guard(), mask_truncated_completions=True
        )
        assert error(seen, rows, setting(loss_type)) < 1e-6


@pytest.mark.parametrize("loss_type", LOSSES_BY_KIND)
def test_nothing_but_truncated_rows(loss_type, tmp_path):
    rows = passes.rows(cut=((1,) * 4,) * 4)
    seen = passes.train(rows, tmp_path, loss_type, guard=guard())
    assert seen.losses == [0.0] * 4
    assert seen.gradient.abs().max() == 0.0
    assert seen.outputs[0]["advantages"].tolist() == [0.0] * 16


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("loss_type", LOSSES_BY_KIND)
def test_an_abandoned_row_leaves_loss_and_gradient_alone(loss_type, masked, tmp_path):
    """Case 12, with TRL's own log-probabilities: float32 does not hold its ratio of exp(92)."""
    rows = passes.rows()
    options = {"guard": guard(), "mask_truncated_completions": masked, "exact": False}
    seen = passes.train(rows, tmp_path, loss_type, old_log_probability=(1, -95.0), **options)
    assert not rows[1].kept
    assert all(math.isfinite(value) for value in seen.losses)
    assert error(seen, rows, setting(loss_type)) < 2e-6  # float32: see `passes.train`
    plain = passes.train(rows, tmp_path, loss_type, **options)
    assert torch.equal(seen.gradient, plain.gradient)
    assert seen.losses == plain.losses


@pytest.mark.parametrize("loss_type", LOSSES_BY_KIND)
def test_an_abandoned_row_whose_ratio_is_that_of_the_sequence(loss_type, tmp_path):
    """Of a sequence of eight tokens float64 holds no ratio of exp(10000 / 8), nor their product."""
    rows = passes.rows()
    level = {} if loss_type == "rloo" else {"importance_sampling_level": "sequence"}
    seen = passes.train(
        rows, tmp_path, loss_type, guard=guard(), old_log_probability=(1, -10000.0), **level
    )
    level = {} if loss_type == "rloo" else {"level": "sequence"}
    assert error(seen, rows, setting(loss_type, **level)) < 1e-6


@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "rloo"])
def test_without_the_guard_an_abandoned_row_ends_the_training(loss_type, tmp_path):
    """The test of the tests above."""
    if loss_type != "rloo":
        versions.require("1.16", "log-probabilities in float32 for a float64 model")
    value = -10000.0 if loss_type == "rloo" else -95.0
    seen = passes.train(
        passes.rows(), tmp_path, loss_type, old_log_probability=(1, value), exact=False
    )
    assert not seen.gradient.isfinite().all()


CASE_3 = [
    # rewards, truncated, options, advantages
    ([1, 0, 0, 0], [0, 0, 1, 1], {}, [0.7070, -0.7070, 0, 0]),
    ([1, 0, 0, 0], [0, 0, 1, 1], {"scale_rewards": "none"}, [0.5, -0.5, 0, 0]),
    ([1, 1, 0, 0], [0, 0, 1, 1], {}, [0, 0, 0, 0]),
    ([1, 0, 0, 0], [0, 0, 1, 0], {}, [1.1545, -0.5773, 0, -0.5773]),
    # Case 4: one survivor, none.
    ([1, 0, 0, 0], [0, 1, 1, 1], {}, [0, 0, 0, 0]),
    ([1, 0, 0, 0], [1, 1, 1, 1], {}, [0, 0, 0, 0]),
]


@pytest.mark.parametrize(("rewards", "truncated", "options", "expected"), CASE_3)
def test_advantages_of_one_group(rewards, truncated, options, expected, tmp_path):
    """Cases 3 and 4, under dapo; a loss that divides by rows multiplies by rows / rows kept."""
    for loss_type in ("dapo", "grpo"):
        args = tiny.config(tmp_path, per_device_train_batch_size=4, loss_type=loss_type, **options)
        trainer = tiny.trainer(
            args,
            tiny.scripted([float(reward) for reward in rewards]),
            [guard()],
            rollouts=[tiny.T8 if cut else tiny.E3 for cut in truncated],
        )
        outputs = tiny.capture(trainer)
        trainer.train()
        kept = 4 - sum(truncated)
        factor = 4 / max(kept, 1) if loss_type == "grpo" else 1.0
        found = outputs[0]["advantages"].tolist()
        assert found == pytest.approx([factor * value for value in expected], abs=1e-4 * factor)
        silent = trainer.state.log_history[0]["truncation_guard/groups_without_signal"]
        assert silent == float(not any(expected))


def test_advantages_of_one_group_in_rloo(tmp_path):
    """Leave one out: among [1, 0] it is 1 - 0 and 0 - 1, times 4 rows / 2 rows kept."""
    args = tiny.config(tmp_path, "rloo", per_device_train_batch_size=4)
    trainer = tiny.trainer(
        args,
        tiny.scripted([1.0, 0.0, 0.0, 0.0]),
        [guard()],
        rollouts=[tiny.E3, tiny.E3, tiny.T8, tiny.T8],
    )
    outputs = tiny.capture(trainer)
    trainer.train()
    assert outputs[0]["advantages"].tolist() == pytest.approx([2.0, -2.0, 0.0, 0.0])
