"""What two trainings leave behind, compared bit for bit."""

import torch
from support.oracle import flat_gradient
from transformers import TrainerCallback


class Gradients(TrainerCallback):
    """Copies of the gradient before each optimizer step."""

    def __init__(self):
        self.seen = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.seen.append(flat_gradient(model))


class Sampled:
    """A reward that depends on the tokens, and remembers them batch by batch."""

    __name__ = "sampled"

    def __init__(self):
        self.batches = []

    def __call__(self, completion_ids, **kwargs):
        self.batches.append([list(ids) for ids in completion_ids])
        return [sum(ids) % 7 / 4 - 0.5 for ids in completion_ids]


def same(left, right):
    """Names of what differs."""

    def equal(one, other):
        if isinstance(one, torch.Tensor):
            return one.dtype == other.dtype and torch.equal(one, other)
        if isinstance(one, list) and one and isinstance(one[0], torch.Tensor):
            return len(one) == len(other) and all(map(equal, one, other))
        return one == other

    assert left["gradients"]
    assert any(gradient.abs().max() > 0 for gradient in left["gradients"])
    return [name for name in left if not equal(left[name], right[name])]
