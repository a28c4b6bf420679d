"""For `processes/test_raise_limit.py`: the limit of each rollout."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

from support import tiny
from support.distributed import COLLECTIVE_TIMEOUT, folder_of, scenario

from truncation_guard import TruncationGuardCallback
from truncation_guard.preflight import raise_limit_to
from truncation_guard.trainer.limit import get_limit

FOLDER = folder_of("raise_limit")


def raising(differs: bool = False) -> dict[str, Any]:
    """Completions that need 40 tokens on one process, and 20 on the other."""
    guard = TruncationGuardCallback(window=64, raise_limit_to=58 if differs else 62)
    args = tiny.config(
        FOLDER / str(differs),
        per_device_train_batch_size=4,
        max_completion_length=16,
        max_steps=60,
        ddp_timeout=COLLECTIVE_TIMEOUT,
    )
    made = tiny.trainer(args, tiny.scripted([1.0, 0.0]), [guard])
    told = made.accelerator.process_index
    if differs:
        made.model.config.max_position_embeddings = (64, 60)[told]
    needed = 40 - 20 * told
    limits: list[int | None] = []

    def generate(prompt_ids: Sequence[Any], *args: Any, **kwargs: Any) -> tuple[Any, None]:
        limits.append(get_limit(made))
        row = [*[5] * (needed - 1), tiny.EOS]
        return [row[: limits[-1]] for _ in prompt_ids], None

    made._generate_single_turn = generate
    longest = patch.object(raise_limit_to, "find_longest_prompt", lambda *args: (20, 1)[told])
    with longest if differs else nullcontext():
        made.train()
    return {"limits": limits}


def scenarios() -> None:
    """On two processes."""
    scenario("raising", raising)
    scenario("differing", lambda: raising(differs=True))
