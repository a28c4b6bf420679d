"""A snapshot of everything that TRL's rollouts change, and its restoration.

A rollout leaves plain containers and attributes on the trainer. The snapshot takes all of them
without naming any, so that it also restores the bookkeeping of a newer version; random state and
the model's flags and buffers it takes by name. Read in TRL 1.16 and transformers 5.24.
"""

import copy
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

_CONTAINERS = (dict, list, set, deque, defaultdict, OrderedDict, Counter)
_MODULE_ATTRIBUTES = (
    "training",
    # TRL switches these off around `generate` and, where that raises, does not switch them back.
    "gradient_checkpointing",
    "_gradient_checkpointing_func",
)
_ROPE_ATTRIBUTES = ("max_seq_len_cached", "original_inv_freq", "attention_scaling")
"""Endings of the attributes in which a dynamic position embedding keeps its longest sequence."""


@contextmanager
def put_back(trainer: Any) -> Iterator[None]:
    """Note the state of trainer, model and random numbers, and restore it in any case.

    Left out are the weights, which rollouts do not change, and what others own: a vLLM engine,
    environments, tools, a `rollout_func`.
    """
    with ExitStack() as undo:
        for note in (_note_random_state, _note_modules, _note_bookkeeping):
            undo.callback(note(trainer))
        yield


def seed_everything(seed: int) -> None:
    """Seed the random numbers of Python, numpy and torch on all devices."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _note_random_state(trainer: Any) -> Callable[[], None]:
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    device = trainer.accelerator.device
    module = None if device.type == "cpu" else torch.get_device_module(device)
    # A model may span several devices; MPS has one, and no `_all`.
    suffix = "_all" if hasattr(module, "get_rng_state_all") else ""
    others = getattr(module, f"get_rng_state{suffix}")() if module else None

    def undo() -> None:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if module:
            getattr(module, f"set_rng_state{suffix}")(others)

    return undo


def _note_modules(trainer: Any) -> Callable[[], None]:
    noted = [
        (module, _attributes(module), [(n, b, b.clone()) for n, b in _buffers(module)])
        for module in trainer.model_wrapped.modules()
    ]

    def undo() -> None:
        for module, attributes, buffers in noted:
            for name in _attributes(module).keys() - attributes.keys():
                delattr(module, name)
            vars(module).update(attributes)
            for name, buffer, value in buffers:
                module._buffers[name] = buffer
                if not torch.equal(buffer, value):
                    buffer.copy_(value)

    return undo


def _attributes(module: nn.Module) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(module).items()
        if name in _MODULE_ATTRIBUTES or name.endswith(_ROPE_ATTRIBUTES)
    }


def _buffers(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [(name, buffer) for name, buffer in module._buffers.items() if buffer is not None]


def _note_bookkeeping(trainer: Any) -> Callable[[], None]:
    """The attributes of the trainer and of its state, and the contents of their containers."""
    noted: dict[int, tuple[Any, Any]] = {}
    waiting: list[Any] = [vars(trainer), vars(trainer.state)]
    while waiting:
        container = waiting.pop()
        if id(container) in noted:
            continue
        noted[id(container)] = (container, copy.copy(container))
        inside = container.values() if isinstance(container, dict) else container
        waiting += [value for value in inside if type(value) in _CONTAINERS]

    def undo() -> None:
        for container, before in noted.values():
            if isinstance(container, dict):
                for key in container.keys() - before.keys():
                    del container[key]
                container.update(before)
            else:
                container.clear()
                (container.update if isinstance(container, set) else container.extend)(before)

    return undo
