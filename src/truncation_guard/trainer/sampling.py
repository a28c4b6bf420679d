"""The trainer's own rollouts, without their scoring.

TRL prepares environments, tools and images inside the method that also scores. So the guard calls
that method as training does, and leaves it through an exception once the completions are there.
Read in TRL 1.16 and transformers 5.24.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from truncation_guard.trainer import hooks
from truncation_guard.trainer.versions import writes_prompts_itself

Row = Mapping[str, Any]


class _Leave(BaseException):
    """No `Exception`, which a subclass of the user's may catch."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result


def check_prepared(trainer: Any) -> None:
    """Refuse a model that cannot generate yet.

    Raises:
        RuntimeError: where FSDP or DeepSpeed is still to shard the model.
    """
    if trainer.is_deepspeed_enabled and trainer.deepspeed is None:
        raise RuntimeError(_not_prepared("DeepSpeed"))
    if trainer.is_fsdp_enabled:
        from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

        kinds = (FSDPModule, FullyShardedDataParallel)
        if not any(isinstance(module, kinds) for module in trainer.model_wrapped.modules()):
            raise RuntimeError(_not_prepared("FSDP"))


def generate(trainer: Any, rows: Sequence[Row]) -> tuple[Any, ...]:
    """The result of TRL's `_generate` for these rows of the data set, in the model's mode.

    All processes make this call together, each with the same number of rows.

    Args:
        trainer: a GRPOTrainer or RLOOTrainer.
        rows: of this process, one for each completion.

    Raises:
        RuntimeError: where a subclass does not call `_generate`, or a backend drops requests.
    """
    generated: tuple[Any, ...] = _leave_at_generate(trainer, rows, trainer._generate)
    if not len(generated[0]) == len(generated[1]) == len(rows):
        raise RuntimeError(
            f"Generation returned {len(generated[1])} completions for {len(rows)} prompts. Its log "
            "says why."
        )
    return generated


def prompt_lengths(trainer: Any, rows: Sequence[Row]) -> list[int] | None:
    """Tokens of each row's prompt as the model gets it, without generating.

    None where only a rollout shows them: environments write into the prompt, and a `rollout_func`
    may do anything.
    """
    if writes_prompts_itself(trainer):
        return None
    prompt_ids, *_ = _leave_at_generate(trainer, rows, trainer._tokenize_prompts)
    return [len(ids) for ids in prompt_ids]


@contextmanager
def as_in_training(trainer: Any, num_generations: int) -> Iterator[None]:
    """Rollouts as training makes them, hidden from the guard and from trackers."""
    handler, args = trainer.callback_handler, trainer.args
    callbacks, report_to = handler.callbacks, args.report_to
    # A new list: a caller may be iterating over the old one.
    handler.callbacks = [
        known for known in callbacks if not isinstance(known, hooks.RolloutListener)
    ]
    args.report_to = []  # TRL's profiling contexts log to W&B at once, which moves its step on
    trainer.num_generations = num_generations
    try:
        trainer.model.train()  # a loaded model is in evaluation mode until `train()`
        yield
    finally:
        handler.callbacks, args.report_to = callbacks, report_to


def training_dataset(trainer: Any) -> Any:
    """The training data with the columns that a training gets."""
    from datasets import Dataset

    dataset = trainer.train_dataset
    # The trainer drops a stream's columns row by row, which leaves the prompts as they are.
    if not isinstance(dataset, Dataset):
        return dataset
    return trainer._remove_unused_columns(dataset, description="training")


def _leave_at_generate(trainer: Any, rows: Sequence[Row], work: Callable[[Any], Any]) -> Any:
    def leave(prompts: Sequence[Any]) -> None:
        raise _Leave(work(prompts))

    attributes = vars(trainer)
    before = {"_generate": attributes["_generate"]} if "_generate" in attributes else {}
    trainer._generate = leave
    try:
        trainer._generate_and_score_completions(trainer.data_collator([dict(row) for row in rows]))
    except _Leave as left:
        return left.result
    finally:
        del trainer._generate
        attributes.update(before)
    raise RuntimeError(
        f"{type(trainer).__name__} does not call TRL's `_generate`: its completions cannot be "
        "measured. Use a trainer that does."
    )


def _not_prepared(wrapper: str) -> str:
    return (
        f"{wrapper} has not sharded the model yet, so it cannot generate: `train()` does that. "
        "Call profile_rollouts from the `on_train_begin` of a TrainerCallback of yours, or in a "
        f"run of its own without {wrapper}."
    )
