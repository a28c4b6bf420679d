"""Unsloth's trainers, and whether their loss ignores `tool_mask`."""

from __future__ import annotations

import pytest
from trl import GRPOTrainer

from truncation_guard.trainer.unsloth import rebuilds_loss_mask


def like_unsloths(loss, name="UnslothGRPOTrainer"):
    """A trainer as Unsloth generates it."""
    return type(f"_{name}", (GRPOTrainer,), {"compute_loss": loss, "__module__": name})


def old_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
    completion_mask = inputs["completion_mask"]
    return completion_mask.sum()


def new_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
    tool_mask = inputs.get("tool_mask", None)
    return (inputs["completion_mask"] * tool_mask).sum()


@pytest.mark.parametrize(
    ("cls", "rebuilds"),
    [
        (GRPOTrainer, False),
        (like_unsloths(old_loss), True),
        (like_unsloths(old_loss, "unsloth_compiled_cache.UnslothGRPOTrainer"), True),
        (type("Mine", (like_unsloths(old_loss),), {}), True),
        (like_unsloths(new_loss), False),
        (like_unsloths(old_loss, "OtherGRPOTrainer"), False),
    ],
    ids=["trl", "old", "old, in a package", "subclass of old", "new", "another subclass"],
)
def test_unsloths_trainer_is_told_by_its_name_and_its_loss(cls, rebuilds):
    assert rebuilds_loss_mask(cls.__new__(cls)) is rebuilds
