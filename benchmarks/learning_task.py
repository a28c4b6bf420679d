"""What `learning.py` trains on: a taught model, its problems, and limits that cut given shares.

The limits come from the taught model's own rollouts, so that a share means the same for every seed.
"""

import random
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import mean
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import quickstart
import sums
from quiet import keep_quiet as keep_quiet

GENEROUS_LIMIT = quickstart.GENEROUS_LIMIT
HELD_OUT = 1024  # problems
PROFILED_PROMPTS = 128  # whose rollouts say which limit cuts how many


def restated(terms: list[int], chance: random.Random) -> str:
    """The answer of a teacher that begins half of its answers by writing the terms once more."""
    text = sums.answer_text(terms, chance)
    return f"{'+'.join(map(str, terms))};{text}" if chance.random() < 0.5 else text


TEACHERS = {"restated": restated, "quickstart": sums.answer_text}


@dataclass(frozen=True)
class Start:
    """What the cells of a task and a seed share."""

    task: quickstart.Task
    lengths: list[int]
    """Tokens of the taught model's rollouts, `num_generations` after each other of each prompt."""
    before: dict[str, float]
    """Held-out accuracy and length before the training."""

    def limit(self, share: float) -> int:
        """The limit that cuts this share of the rollouts, to the nearest percent."""
        off = {limit: round(abs(self.cut(limit) - share), 2) for limit in range(1, GENEROUS_LIMIT)}
        return min(off, key=lambda limit: (off[limit], limit))

    def cut(self, limit: int) -> float:
        """The share of the rollouts that a limit cuts."""
        return mean(length > limit for length in self.lengths)

    def mixed_groups(self, limit: int) -> float:
        """The share of prompts of whose rollouts a limit cuts some but not all."""
        size = quickstart.NUM_GENERATIONS
        cut = [length > limit for length in self.lengths]
        groups = [cut[first : first + size] for first in range(0, len(cut), size)]
        return mean(any(group) and not all(group) for group in groups)


@lru_cache(maxsize=1)
def start_of(task_name: str, seed: int) -> Start:
    """Teaches the model of a task and a seed, and measures it."""
    torch.set_num_threads(1)
    tokenizer = sums.build_tokenizer()
    model = sums.build_model(tokenizer, seed)
    sums.teach(model, tokenizer, seed=seed, write=TEACHERS[task_name])
    task = quickstart.Task(
        model=model,
        tokenizer=tokenizer,
        train=sums.problems(quickstart.PROBLEMS, seed + 1000),
        held_out=sums.problems(HELD_OUT, seed, held_out=True),
        reward=sums.reward,
        limit=0,
        generous_limit=GENEROUS_LIMIT,
        learning_rate=quickstart.LEARNING_RATE,
        use_cpu=True,
        seed=seed,
    )
    prompts = [
        prompt
        for prompt in task.train["prompt"][:PROFILED_PROMPTS]
        for _ in range(quickstart.NUM_GENERATIONS)
    ]
    texts = sums.sample(model, tokenizer, prompts, GENEROUS_LIMIT, seed)
    return Start(task, [tokens_of(text) for text in texts], measure(task, model))


def tokens_of(text: str) -> int:
    """The length of a completion: one token a character, and one that ends it."""
    return min(len(text) + 1, GENEROUS_LIMIT)


def measure(task: quickstart.Task, model: Any) -> dict[str, float]:
    """Held-out accuracy (a share) and mean length (tokens), sampled once at the generous limit."""
    was_training = model.training
    texts = sums.sample(
        model, task.tokenizer, list(task.held_out["prompt"]), GENEROUS_LIMIT, task.seed
    )
    model.train(was_training)
    right = sums.reward(texts, list(task.held_out["answer"]))
    return {"accuracy": mean(right), "length": mean(map(tokens_of, texts))}
