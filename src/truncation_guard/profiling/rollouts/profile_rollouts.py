"""`profile_rollouts`: how long the model's own completions become, before a training.

The trainer generates as it will in training, at a generous limit, and then everything is put back,
so that the training that follows is the one that would have been.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from truncation_guard.argument_checks import check_positive, is_integer
from truncation_guard.batch.completion_row import Column, GenerationRules
from truncation_guard.batch.counts import length_histogram
from truncation_guard.batch.outcomes import describe_completions
from truncation_guard.lengths.sample import LengthSample
from truncation_guard.profiling.length_profile import LengthProfile
from truncation_guard.profiling.rollouts.profile_notes import rollout_notes
from truncation_guard.profiling.rollouts.prompt_draw import draw_prompts
from truncation_guard.trainer import sampling, settings, versions
from truncation_guard.trainer.limit import get_limit, temporary_limit
from truncation_guard.trainer.sampling import Row
from truncation_guard.trainer.snapshot import put_back, seed_everything


def profile_rollouts(
    trainer: Any,
    *,
    max_completion_length: int,
    num_prompts: int = 32,
    num_generations: int | None = None,
    seed: int = 0,
    progress: bool = True,
) -> LengthProfile:
    """Sample completions with the trainer's own generation path and measure them.

    Backend, chat template, sampling settings, tools and environments are the trainer's, and the
    model is the one it has at this moment. Afterwards limits, buffers, metrics, random state and
    the model's mode are what they were: on the transformers backends without environments or tools
    a training gives the same weights and the same log, bit for bit, as without the call. An
    attached guard does not count these completions.

    Not put back, because others own it:

    - vLLM: its sampler has drawn numbers, its prefix cache is filled, and the weights of this
      moment have been copied to it.
    - environments were reset and acted in; tools were called, with what they do to the world.
    - what a `rollout_func`, or a data set that is read only once, remembers.
    - continuous batching with `bf16` or `fp16` casts the model, as the first rollout of a training
      does.

    On several processes all of them make this call, and all get the same profile. An error in
    preparing the prompts is raised on every process. One in the middle of generation is raised
    where it happens; the others wait for that process in TRL's own collectives, as in training.

    Args:
        trainer: a GRPOTrainer or RLOOTrainer. Where FSDP or DeepSpeed shards the model, make the
            call in a callback's `on_train_begin` or after `train()`.
        max_completion_length: the limit to sample at, in tokens; generous, because a completion
            that it cuts only shows that it is longer.
        num_prompts: prompts over all processes, drawn from the training data; of a stream, its
            first ones.
        num_generations: completions per prompt; None: the trainer's.
        seed: of the prompts drawn and of the sampling.
        progress: whether to show a progress bar, on stderr of the main process.

    Returns:
        A profile with the source `"rollouts"`. Completions cut by the limit, the context window or
        a tool only show that they are longer; those that were stopped otherwise have ended. The
        longest prompt is that of the prompts drawn.

    Raises:
        TypeError: for another trainer, or a `seed` that is no integer.
        ValueError: for a number below 1, a trainer without training data, or a limit that does not
            fit into the context window beside the longest prompt.
        RuntimeError: where the model is not sharded yet, or another process failed.
    """
    _check(trainer, max_completion_length, num_prompts, num_generations, seed)
    sampling.check_prepared(trainer)
    layout = _Layout.of(trainer, num_generations)
    limit_before = get_limit(trainer)
    with put_back(trainer), sampling.as_in_training(trainer, layout.unit):
        seed_everything(seed)
        prompts = draw_prompts(trainer, num_prompts, seed)
        with temporary_limit(trainer, max_completion_length, longest_prompt=prompts.longest):
            seed_everything(seed + layout.process)
            rules = settings.generation_rules(trainer)
            with _progress(trainer, progress, prompts.rows, layout) as advance:
                rows = _sample(trainer, rules, layout, prompts.rows, advance)
    completions = rows.numpy()
    return LengthProfile(
        sample=LengthSample.of(length_histogram(completions.T, rules.limit)),
        source="rollouts",
        limit=limit_before,
        longest_prompt=int(completions[:, Column.LONGEST_PROMPT].max()),
        context_window=rules.context_window,
        notes=(*prompts.notes, *rollout_notes(completions, rules)),
    )


@dataclass(frozen=True, slots=True)
class _Layout:
    """How the completions lie over generation batches and processes: as TRL lays them."""

    per_prompt: int
    batch: int
    """Completions of a generation batch of training, all processes together."""
    processes: int
    process: int

    @classmethod
    def of(cls, trainer: Any, num_generations: int | None) -> "_Layout":
        return cls(
            per_prompt=trainer.num_generations if num_generations is None else num_generations,
            batch=trainer.args.generation_batch_size,
            processes=trainer.accelerator.num_processes,
            process=trainer.accelerator.process_index,
        )

    @property
    def unit(self) -> int:
        """Completions of a prompt that TRL may count on to be in one batch, one after the other."""
        return self.per_prompt if self.batch % self.per_prompt == 0 else 1

    def batches(self, prompts: int) -> Iterator[range]:
        """This process's completions of each generation batch, by number.

        All processes have the same number of them, so the last numbers may be of completions
        that nobody asked for.
        """
        # The batch is a multiple of both, and so are all its parts.
        step = math.lcm(self.unit, self.processes)
        total = -(prompts * self.per_prompt // -step) * step
        for start in range(0, total, self.batch):
            here = min(self.batch, total - start) // self.processes
            first = start + self.process * here
            yield range(first, first + here)


def _check(
    trainer: Any, limit: object, num_prompts: object, num_generations: object, seed: object
) -> None:
    versions.check_supported("profile_rollouts", trainer, "Pass such a trainer.")
    check_positive("max_completion_length", limit, "a generous number of tokens, such as 2048")
    check_positive("num_prompts", num_prompts, "32, for example")
    if num_generations is not None:
        check_positive("num_generations", num_generations, "None for the trainer's own number")
    if not is_integer(seed):
        raise TypeError(f"`seed` must be an integer, got {seed!r}. Pass 0, for example.")
    if trainer.train_dataset is None:
        raise ValueError(
            "The trainer has no `train_dataset`, so there are no prompts to sample from. Pass one "
            "when you build the trainer."
        )


def _sample(
    trainer: Any,
    rules: GenerationRules,
    layout: _Layout,
    prompts: Sequence[Row],
    advance: Callable[[int], None],
) -> Tensor:
    """One row for each completion of all processes: (completions, columns) int64."""
    wanted = len(prompts) * layout.per_prompt
    parts: list[Tensor] = []
    numbers: list[int] = []
    for batch in layout.batches(len(prompts)):
        rows = [prompts[n // layout.per_prompt % len(prompts)] for n in batch]
        parts.append(_measure(rules, sampling.generate(trainer, rows)))
        numbers += batch
        advance(len(batch) * layout.processes)
    is_wanted = torch.tensor(numbers).unsqueeze(1) < wanted
    figures = torch.cat([torch.cat(parts), is_wanted], dim=1)
    gathered: Tensor = trainer.accelerator.gather(figures.to(trainer.accelerator.device)).cpu()
    return gathered[gathered[:, -1] == 1, :-1]


def _measure(rules: GenerationRules, generated: tuple[Any, ...]) -> Tensor:
    """(completions, columns) int64, of what TRL's `_generate` returned."""
    prompt_ids, completion_ids, *more = generated
    tool_masks, completions = more[:2] if len(more) > 1 else (None, more[0])  # RLOO has no masks
    lengths = [len(ids) for ids in prompt_ids]
    return describe_completions(
        rules, lengths, completion_ids, tool_masks, completions, [False] * len(lengths)
    )


@contextmanager
def _progress(
    trainer: Any, is_wanted: bool, prompts: Sequence[Row], layout: _Layout
) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import Progress

    is_shown = is_wanted and trainer.accelerator.is_main_process
    with Progress(console=Console(stderr=True), disable=not is_shown) as bar:
        total = len(prompts) * layout.per_prompt
        task = bar.add_task("Sampling completions", total=total)
        yield lambda completions: bar.advance(task, completions)
