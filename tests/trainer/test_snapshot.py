"""What is noted of a trainer, and put back."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from truncation_guard.trainer import snapshot
from truncation_guard.trainer.snapshot import put_back, seed_everything


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(1, 1)
        self.register_buffer("frequencies", torch.arange(3.0))
        self.register_buffer("nothing", None)
        self.gradient_checkpointing = True
        self.max_seq_len_cached = 16


def trainer(**attributes):
    device = attributes.pop("device", torch.device("cpu"))
    return SimpleNamespace(
        accelerator=SimpleNamespace(device=device),
        model_wrapped=Module(),
        state=SimpleNamespace(num_input_tokens_seen=5, log_history=[{"loss": 1.0}]),
        **attributes,
    )


def test_attributes_are_put_back_and_new_ones_go():
    made = trainer(_step=3, _buffered=None)
    with put_back(made):
        made._step, made._buffered, made.new = 4, [1], True
        made.state.num_input_tokens_seen = 7
        del made._buffered
    assert made._step == 3
    assert made._buffered is None
    assert not hasattr(made, "new")
    assert made.state.num_input_tokens_seen == 5


def test_containers_are_the_same_objects_and_hold_what_they_held():
    """Others may hold them too; what lies within containers is put back as well."""
    itself = []
    itself.append(itself)
    holds = {
        "metrics": {"train": defaultdict(list, {"reward": [1.0]}), "eval": defaultdict(list)},
        "log": deque(["a", "b"], maxlen=2),
        "names": {"x"},
        "batches": [{"ids": torch.ones(2)}, {"ids": torch.zeros(2)}],
        "itself": itself,
    }
    made = trainer(**holds)
    tensors = [part["ids"] for part in made.batches]
    with put_back(made):
        made.metrics["train"]["reward"].append(2.0)
        made.metrics["train"]["length"].append(3.0)
        made.metrics["eval"] = {}
        made.log.append("c")
        made.names.add("y")
        made.batches.reverse()
        made.batches[0]["ids"] = None
        made.itself.clear()
        made.state.log_history.append({"loss": 2.0})
    assert all(getattr(made, name) is value for name, value in holds.items())
    assert made.metrics == {"train": {"reward": [1.0]}, "eval": {}}
    assert isinstance(made.metrics["eval"], defaultdict)
    assert list(made.log) == ["a", "b"]
    assert made.log.maxlen == 2
    assert made.names == {"x"}
    assert [part["ids"] for part in made.batches] == tensors  # the same ones
    assert made.itself[0] is made.itself
    assert made.state.log_history == [{"loss": 1.0}]


def test_the_models_mode_flags_and_buffers_are_put_back():
    made = trainer()
    module = made.model_wrapped
    module.inner.eval()
    frequencies = module.frequencies
    with put_back(made):
        module.train()
        module.gradient_checkpointing = False
        module.max_seq_len_cached = torch.tensor(32)
        module.attention_scaling = 2.0
        module.frequencies.add_(1)
        module.register_buffer("frequencies", torch.zeros(3), persistent=False)
    assert (module.training, module.inner.training) == (True, False)
    assert module.gradient_checkpointing is True
    assert module.max_seq_len_cached == 16
    assert not hasattr(module, "attention_scaling")
    assert module.frequencies is frequencies
    assert frequencies.tolist() == [0.0, 1.0, 2.0]


def numbers():
    return random.random(), float(np.random.rand()), torch.rand(1).item()


def test_random_numbers_go_on_where_they_were():
    made = trainer()
    seed_everything(1)
    expected = numbers()
    seed_everything(1)
    with put_back(made):
        seed_everything(-7)
        seeded = numbers()
    assert numbers() == expected
    seed_everything(-7)
    assert numbers() == seeded != expected


@pytest.mark.parametrize("suffix", ["", "_all"], ids=["one device", "several devices"])
def test_those_of_the_device_as_well(suffix, monkeypatch):
    states = ["before"]
    module = SimpleNamespace(
        **{
            f"get_rng_state{suffix}": lambda: states[-1],
            f"set_rng_state{suffix}": states.append,
        }
    )
    monkeypatch.setattr(snapshot.torch, "get_device_module", lambda device: module)
    with put_back(trainer(device=torch.device("cuda"))):
        states.append("after")
    assert states[-1] == "before"


def test_everything_is_put_back_where_something_raises():
    made = trainer(_step=3)
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)

    def fail():
        with put_back(made):
            made._step = 4
            made.model_wrapped.eval()
            torch.rand(1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert made._step == 3
    assert made.model_wrapped.training
    assert torch.equal(torch.rand(1), expected)
