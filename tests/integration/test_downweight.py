"""`downweight`: truncated rows keep their reward and their tokens, their advantage is scaled.

Invariant 4: the gradient is linear in `truncated_weight`, and weight 1 is `observe`.
"""

import pytest
import torch
from support import passes, tiny, versions
from support.oracle import LOSSES, relative_error

from truncation_guard import TruncationGuardCallback

EVERY_LOSS = (*LOSSES, "rloo")


def guard(weight, mode="downweight"):
    return TruncationGuardCallback(mode=mode, truncated_weight=weight, record=False)


@pytest.mark.parametrize(
    ("loss_type", "beta"), [*((name, 0.0) for name in EVERY_LOSS), ("dapo", 0.1), ("rloo", 0.1)]
)
def test_the_gradient_is_linear_in_the_weight(loss_type, beta, tmp_path):
    """The policy moved after scoring, so ratios are clipped on either side."""
    rows = passes.rows()

    def gradient(weight):
        given = {"model": passes.policy_with_reference(tmp_path)} if beta else None
        seen = passes.train(rows, tmp_path, loss_type, guard=guard(weight), beta=beta, given=given)
        return seen.gradient

    none, half, full = map(gradient, (0.0, 0.5, 1.0))
    assert relative_error(half, (none + full) / 2) < 1e-6
    assert relative_error(none, full) > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True], ids=["", "mask_truncated_completions"])
@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "rloo"])
def test_weight_one_is_observe(loss_type, masked, tmp_path):
    rows = passes.rows()
    options = {
        "exact": False,
        "learning_rate": 1e-2,
        "max_steps": 4,
        "mask_truncated_completions": masked,
    }
    observe, full, plain = (
        passes.train(rows, tmp_path, loss_type, guard=callback, **options)
        for callback in (guard(1.0, "observe"), guard(1.0), None)
    )
    assert observe.losses == full.losses == plain.losses
    assert torch.equal(observe.gradient, full.gradient)
    assert torch.equal(plain.gradient, full.gradient)
    weights = [list(seen.trainer.model.state_dict().values()) for seen in (observe, full)]
    assert all(map(torch.equal, *weights))


@pytest.mark.parametrize("weight", [0.0, 0.3])
@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "rloo"])
def test_only_the_advantages_of_truncated_rows_change(loss_type, weight, tmp_path):
    """Baseline, loss mask, denominator and old log-probabilities are those of no guard."""
    rows = passes.rows()
    plain = passes.train(rows, tmp_path, loss_type).outputs[0]
    output = passes.train(rows, tmp_path, loss_type, guard=guard(weight)).outputs[0]
    factors = torch.tensor([1.0 if row.kept else weight for row in rows])
    assert torch.equal(output.pop("advantages"), plain.pop("advantages") * factors)
    assert output.keys() == plain.keys()
    assert all(torch.equal(output[name], plain[name]) for name in plain)


@pytest.mark.parametrize(
    ("algorithm", "options", "weight", "expected"),
    [
        # Case 3, and the same with a weight between.
        ("grpo", {}, 0.0, [1.4997, -0.4999, 0.0, 0.0]),
        ("grpo", {"loss_type": "grpo"}, 0.0, [1.4997, -0.4999, 0.0, 0.0]),
        ("grpo", {}, 0.5, [1.4997, -0.4999, -0.24995, -0.24995]),
        ("grpo", {"scale_rewards": "none"}, 0.0, [0.75, -0.25, 0.0, 0.0]),
        # Leave one out: 1 - 0, 0 - 1/3.
        ("rloo", {}, 0.0, [1.0, -1 / 3, 0.0, 0.0]),
        ("rloo", {}, 0.5, [1.0, -1 / 3, -1 / 6, -1 / 6]),
    ],
)
def test_advantages_of_one_group(algorithm, options, weight, expected, tmp_path):
    trainer = tiny.trainer(
        tiny.config(tmp_path, algorithm, per_device_train_batch_size=4, **options),
        tiny.scripted([1.0, 0.0, 0.0, 0.0]),
        [guard(weight)],
        rollouts=[tiny.E3, tiny.E3, tiny.T8, tiny.T8],
    )
    outputs = tiny.capture(trainer)
    trainer.train()
    assert outputs[0]["advantages"].tolist() == pytest.approx(expected, abs=1e-4)


def test_weight_nought_gives_the_advantages_of_trls_own_mask_over_more_tokens(tmp_path):
    """TRL's mask takes the same rows out of the loss, but their tokens out of its denominator."""
    versions.require("1.9", "the denominator of what mask_truncated_completions leaves")
    rows = passes.rows()
    guarded = passes.train(rows, tmp_path, guard=guard(0.0))
    masked = passes.train(rows, tmp_path, mask_truncated_completions=True)
    all_tokens = sum(len(row.tokens) for row in rows)
    kept_tokens = sum(len(row.tokens) for row in rows if row.kept)
    expected = masked.gradient * kept_tokens / all_tokens
    assert relative_error(guarded.gradient, expected) < 1e-6
