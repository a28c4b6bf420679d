"""What `test_sharded.py` wants to know of two processes that share one model by FSDP."""

import os
import sys
from pathlib import Path
from typing import Any

import tiny
import torch
from accelerate.state import AcceleratorState, DistributedType, PartialState
from integration import canned
from integration.distributed import quit_now, scenario, settle_down

from truncation_guard import TruncationGuardCallback
from truncation_guard.trainer_limits import get_limit

FOLDER = Path(sys.argv[1])
FSDP = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_TRANSFORMER_CLS_TO_WRAP": "LlamaDecoderLayer",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
}
"""What `accelerate launch --use_fsdp` sets."""


def shard_on_cpus() -> None:
    """Accelerate (1.15) shards on accelerators only; torch's `fully_shard` does so on CPUs too."""
    os.environ.update(FSDP)
    initialize = AcceleratorState.__init__

    def initialized(self: Any, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
        initialize(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if self.distributed_type == DistributedType.MULTI_CPU:
            # The other state hands its type on to this one at each call.
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP
            self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin

    AcceleratorState.__init__ = initialized  # type: ignore[method-assign]


def weights(made: Any) -> list[float]:
    """Of all shards."""
    model = made.accelerator.unwrap_model(made.model)
    full = [p.full_tensor().detach().flatten() for p in model.parameters()]
    return torch.cat(full).tolist()


def mode(name: str) -> dict[str, Any]:
    """One step along the gradient."""
    guard = TruncationGuardCallback(mode=name, **canned.MODE_SETTINGS)
    made = canned.trainer(
        FOLDER / name, canned.TWELVE_IN_FOURS, guard, optim="sgd", max_grad_norm=0.0
    )
    result = canned.train(made)
    shards = [p.to_local().numel() for p in made.model_wrapped.parameters()]
    wholes = [p.numel() for p in made.model_wrapped.parameters()]
    return result | {"weights": weights(made), "shards": sum(shards), "wholes": sum(wholes)}


def generating(guarded: bool) -> dict[str, Any]:
    """Rollouts of the sharded model itself."""
    guards = [TruncationGuardCallback(mode="observe")] if guarded else []
    made = tiny.trainer(
        tiny.config(FOLDER / f"generating {guarded}", max_steps=3),
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


shard_on_cpus()
settle_down()
for each in canned.MODES:
    scenario(f"mode {each}", lambda each=each: mode(each))  # type: ignore[misc]
scenario("generating without", lambda: generating(False))
scenario("generating with", lambda: generating(True))
scenario("raising", raising)
quit_now()
