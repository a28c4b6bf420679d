"""What TRL would log of given completions, computed apart from the package.

A batch is a list of (length, whether TRL knows its last token for a stop token, reward); groups are
`group` consecutive ones. Formulas: `GRPOTrainer._generate`, `_generate_and_score_completions` and
`log` of TRL 1.16. Printing: `ProgressCallback` and `PrinterCallback` of transformers 5.24, which
format floats with `.4g`, and of 4.57, which do not.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, pstdev, stdev
from typing import Any

Completion = tuple[int, bool, float]


def batch_figures(batch: Sequence[Completion], group: int) -> dict[str, float]:
    """The metrics of one generation batch."""
    lengths = [length for length, _, _ in batch]
    ended = [length for length, is_ended, _ in batch if is_ended] or [0]
    rewards = [reward for _, _, reward in batch]
    groups = [rewards[start : start + group] for start in range(0, len(rewards), group)]
    return {
        "completions/mean_length": fmean(lengths),
        "completions/min_length": float(min(lengths)),
        "completions/max_length": float(max(lengths)),
        "completions/clipped_ratio": fmean(not is_ended for _, is_ended, _ in batch),
        "completions/mean_terminated_length": fmean(ended),
        "completions/min_terminated_length": float(min(ended)),
        "completions/max_terminated_length": float(max(ended)),
        "rewards/accuracy_reward/mean": fmean(rewards),
        "rewards/accuracy_reward/std": stdev(rewards),
        "reward": fmean(rewards),
        "reward_std": stdev(rewards),
        "frac_reward_zero_std": fmean(pstdev(part) == 0 for part in groups),
    }


def window_figures(batches: Sequence[Sequence[Completion]], group: int = 4) -> dict[str, float]:
    """The metrics of a log window: the mean of each over its batches."""
    figures = [batch_figures(batch, group) for batch in batches]
    return {name: fmean(one[name] for one in figures) for name in figures[0]}


def entry(
    step: int, steps: int, batches: Sequence[Sequence[Completion]], evaluation: bool = False
) -> dict[str, float]:
    """A log entry without its step, as `Trainer.log` hands it on."""
    figures = window_figures(batches)
    if evaluation:
        named = {f"eval_{name}": value for name, value in figures.items()}
        return {"eval_loss": 0.0, "eval_runtime": 4.031, **named, "epoch": step / steps}
    return {
        "loss": 0.0123,
        "grad_norm": 0.25,
        "learning_rate": 1e-6 * (1 - step / steps),
        "num_tokens": 1000.0 * step,
        **figures,
        "entropy": 0.42,
        "clip_ratio/low_mean": 0.0,
        "clip_ratio/high_max": 0.0,
        "step_time": 1.73,
        "epoch": step / steps,
    }


def printed(metrics: dict[str, Any]) -> str:
    """As transformers 5 prints it."""
    return str({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in metrics.items()})


def bar(step: int, steps: int) -> str:
    """A progress bar of tqdm."""
    percent = 100 * step // steps
    filled = "█" * (percent // 10)
    return f"{percent:3d}%|{filled:<10}| {step}/{steps} [00:{step % 60:02d}<01:00,  1.78s/it]"


def state(entries: Iterable[tuple[int, dict[str, Any]]], steps: int, **more: Any) -> str:
    """A `trainer_state.json`; transformers sorts its keys."""
    history = [{**metrics, "step": step} for step, metrics in entries]
    content = {
        "best_metric": None,
        "epoch": 1.0,
        "global_step": history[-1]["step"] if history else 0,
        "is_world_process_zero": True,
        "log_history": history,
        "logging_steps": 1,
        "max_steps": steps,
        "stateful_callbacks": {},
        **more,
    }
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


class Task:
    """Completions of a task under a limit.

    Args:
        seed: of the draws.
        limit: in tokens.
        mean: of the normal lengths that completions would have.
        spread: standard deviation of these.
        never: share of completions that never end.
        right: share of finished completions that are right (reward 1); cut ones get 0.
        partial: reward of cut completions.
    """

    def __init__(
        self,
        seed: int,
        limit: int,
        mean: float,
        spread: float,
        *,
        never: float = 0.0,
        right: float = 0.5,
        partial: float = 0.0,
    ) -> None:
        self.random = random.Random(seed)
        self.limit, self.mean, self.spread = limit, mean, spread
        self.never, self.right, self.partial = never, right, partial

    def batch(self, size: int = 16) -> list[Completion]:
        """One generation batch."""
        return [self.completion() for _ in range(size)]

    def completion(self) -> Completion:
        """One completion."""
        length = max(round(self.random.gauss(self.mean, self.spread)), 1)
        if length > self.limit or self.random.random() < self.never:
            return self.limit, False, self.partial
        return length, True, float(self.random.random() < self.right)


def write(path: Path, text: str) -> Path:
    """A file, its folder included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
