"""For `processes/test_sharded.py`: trainings of a model that two processes share."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from accelerate.state import AcceleratorState, DistributedType, PartialState
from support import canned, tiny
from support.distributed import folder_of, scenario
from torch.distributed.tensor import DTensor

from truncation_guard import TruncationGuardCallback
from truncation_guard.trainer.limit import get_limit

FOLDER = folder_of("sharded")
STRATEGY = "fsdp"
"""Or `zero2` or `zero3`, in processes of their own: what DeepSpeed needs is not undone."""
FSDP = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_TRANSFORMER_CLS_TO_WRAP": "LlamaDecoderLayer",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
}
DEEPSPEED = {
    "ACCELERATE_USE_DEEPSPEED": "true",
    "ACCELERATE_TORCH_DEVICE": "cpu",
    "DS_ACCELERATOR": "cpu",
}


def use_cpu() -> bool:
    """For the trainer's settings: accelerate turns DeepSpeed off with it."""
    return STRATEGY == "fsdp"


@contextmanager
def fsdp_on_cpus() -> Iterator[None]:
    """What `accelerate launch` sets; and accelerate (1.15) shares models on accelerators only.

    Torch's `fully_shard` does so on CPUs as well.
    """
    initialize = AcceleratorState.__init__

    def initialized(self: Any, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
        initialize(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if self.distributed_type == DistributedType.MULTI_CPU:
            # The other state hands its type on to this one at each call.
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP
            self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin

    with (
        patch.dict(os.environ, FSDP),
        patch.object(AcceleratorState, "__init__", initialized),
    ):
        yield


def run_deepspeed(stage: str) -> None:
    """The scenarios with DeepSpeed, which can share on CPUs what accelerate calls GPUs."""
    global STRATEGY
    STRATEGY = f"zero{stage}"
    os.environ.update(DEEPSPEED | {"ACCELERATE_DEEPSPEED_ZERO_STAGE": stage})
    PartialState._prepare_backend = lambda *args: (  # type: ignore[method-assign]
        "gloo",
        DistributedType.MULTI_GPU,
    )
    run()


def is_shared(made: Any) -> bool:
    """Else it is what other tests train."""
    if STRATEGY == "fsdp":
        return all(isinstance(p, DTensor) for p in made.model_wrapped.parameters())
    return bool(made.model_wrapped.zero_optimization_stage() == int(STRATEGY[-1]))


def weights(made: Any) -> list[float]:
    """All of them, whoever has them."""
    parameters = list(made.accelerator.unwrap_model(made.model).parameters())
    if STRATEGY == "fsdp":
        return torch.cat([p.full_tensor().detach().flatten() for p in parameters]).tolist()
    import deepspeed

    with deepspeed.zero.GatheredParameters(parameters, enabled=STRATEGY == "zero3"):
        return torch.cat([p.detach().flatten() for p in parameters]).tolist()


def mode(name: str) -> dict[str, Any]:
    """One step along the gradient."""
    guard = TruncationGuardCallback(mode=name, **canned.MODE_SETTINGS)
    settings: dict[str, Any] = {"optim": "sgd", "max_grad_norm": 0.0, "use_cpu": use_cpu()}
    made = canned.trainer(FOLDER / name, canned.TWELVE_IN_FOURS, guard, **settings)
    return canned.train(made) | {"weights": weights(made), "shared": is_shared(made)}


def generating(guarded: bool) -> dict[str, Any]:
    """Rollouts of the sharded model itself."""
    guards = [TruncationGuardCallback(mode="observe")] if guarded else []
    made = tiny.trainer(
        tiny.config(FOLDER / f"generating {guarded}", max_steps=3, use_cpu=use_cpu()),
        tiny.scripted([1.0, 0.0]),
        guards,
    )
    outputs = tiny.capture(made)
    made.train()
    return {
        "completions": [output["completion_ids"].tolist() for output in outputs],
        "weights": weights(made),
        "random": torch.get_rng_state().tolist(),
    }


def raising() -> dict[str, Any]:
    """A limit that is raised after four steps, a checkpoint, and two more steps from there."""
    folder = FOLDER / "raising"
    batch = canned.Batch([[5] * 8] * 64, [1.0, 0.0] * 32, 4)
    settings: dict[str, Any] = {"max_steps": 6, "save_strategy": "steps", "save_steps": 4}
    settings["use_cpu"] = use_cpu()

    def train(**kwargs: Any) -> list[int | None]:
        guard = TruncationGuardCallback(window=64, raise_limit_to=16)
        made = canned.trainer(folder, batch, guard, **settings)
        generate, limits = made._generate_single_turn, []

        def generated(*args: Any, **kwargs: Any) -> Any:
            limits.append(get_limit(made))
            return generate(*args, **kwargs)

        made._generate_single_turn = generated
        made.train(**kwargs)
        return limits

    checkpoint = str(folder / "checkpoint-4")
    return {"limits": train(), "resumed": train(resume_from_checkpoint=checkpoint)}


def run() -> None:
    """All of them."""
    for each in canned.MODES:
        scenario(f"mode {each}", lambda each=each: mode(each))  # type: ignore[misc]
    scenario("generating without", lambda: generating(False))
    scenario("generating with", lambda: generating(True))
    scenario("raising", raising)


def scenarios() -> None:
    """With FSDP."""
    with fsdp_on_cpus():
        run()
