"""What `test_limits.py` wants to know: rollouts under changing limits, and profiles of them."""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from support.vllm_engine import WINDOW, leave, make_trainer, words
from transformers import TrainerCallback

from truncation_guard import profile_rollouts, set_max_completion_length
from truncation_guard.trainer.context_window import get_context_window
from truncation_guard.trainer.limit import get_limit, temporary_limit

FOLDER, ADDRESS, SETTINGS = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])


class Lengths:
    """A reward that remembers how long the completions of each batch are."""

    __name__ = "lengths"

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def __call__(self, completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        self.batches.append([len(ids) for ids in completion_ids])
        return [sum(ids) % 7 / 4 - 0.5 for ids in completion_ids]


class Changing(TrainerCallback):
    """Sets the limit after each step to the next of these."""

    def __init__(self, limits: list[int]) -> None:
        self.limits, self.trainer, self.seen = limits, None, []

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.seen.append(get_limit(self.trainer))
        if self.limits:
            set_max_completion_length(self.trainer, self.limits.pop(0))


def places(trainer: Any) -> list[Any]:
    """Everything that holds the limit."""
    backend = trainer.vllm_generation
    kwargs = [dict(owner.generation_kwargs or {}) for owner in (backend, trainer.args)]
    limits = [owner.max_completion_length for owner in (trainer, trainer.args, backend)]
    return [*limits, *kwargs, get_limit(trainer)]


def refusal(work: Any) -> str | None:
    try:
        work()
    except ValueError as error:
        return str(error)
    return None


def profile(trainer: Any, limit: int, **arguments: Any) -> dict[str, Any]:
    """The profile's lengths, and those of what vLLM returned while it was made."""
    backend, returned = trainer.vllm_generation, []
    generate = backend.generate

    def recorded(*args: Any, **kwargs: Any) -> Any:
        result = generate(*args, **kwargs)
        returned.extend([list(ids) for ids in result[1]])
        return result

    backend.generate = recorded
    found = profile_rollouts(
        trainer, max_completion_length=limit, num_prompts=6, progress=False, **arguments
    )
    del backend.generate
    ended, cut = found.sample.histograms
    is_cut = [ids[-1] != trainer.processing_class.eos_token_id for ids in returned]
    lengths = list(zip(map(len, returned), is_cut, strict=True))
    return {
        "ended": sorted(ended.items()),
        "cut": sorted(cut.items()),
        "returned_ended": sorted(Counter(n for n, over in lengths if not over).items()),
        "returned_cut": sorted(Counter(n for n, over in lengths if over).items()),
        "limit": found.limit,
        "longest_prompt": found.longest_prompt,
        "context_window": found.context_window,
        "notes": found.notes,
    }


def beyond_the_window(trainer: Any) -> Any:
    """Lengths, or an error, under a limit that leaves no room for the prompt."""
    with temporary_limit(trainer, WINDOW):
        try:
            _, ids, *_ = trainer.vllm_generation.generate([[5, 6, 7, 8]] * 64, None, 64)
        except Exception as error:
            return str(error)
    return [len(row) for row in ids]


def main() -> dict[str, Any]:
    reward, changing = Lengths(), Changing([16, 4])
    overrides = (
        {"generation_kwargs": {"max_tokens": 8, "top_k": 0}} if SETTINGS["overrides"] else {}
    )
    trainer = make_trainer(
        FOLDER,
        ADDRESS,
        reward,
        [words(2 + i % 4, i) for i in range(12)],
        SETTINGS["algorithm"],
        [changing],
        max_completion_length=12 if overrides else 8,
        max_steps=3,
        **overrides,
    )
    changing.trainer = trainer
    left: dict[str, Any] = {"window": get_context_window(trainer, 8)}
    trainer.train()
    left |= {
        "batches": list(reward.batches),
        "limits": list(changing.seen),
        "before": places(trainer),
    }
    left["refusals"] = [
        refusal(lambda: set_max_completion_length(trainer, 25)),
        refusal(lambda: set_max_completion_length(trainer, 20, longest_prompt=5)),
        refusal(lambda: profile(trainer, 20)),
    ]
    left["after_refusals"] = places(trainer)
    left["profiles"] = [profile(trainer, 19), profile(trainer, 19, num_generations=6)]
    left["after_profiles"] = places(trainer)
    left["beyond_the_window"] = beyond_the_window(trainer)
    trainer.args.max_steps = 1
    weights = trainer.model.lm_head.weight.detach().clone()
    trainer.train()
    left["batch_after"] = reward.batches[3:]
    left["has_learned"] = not weights.equal(trainer.model.lm_head.weight)
    return left


if __name__ == "__main__":
    leave(FOLDER, main())
