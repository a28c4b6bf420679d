"""A trainer's live settings (stop tokens, loss, groups), and its log.

Settings are read when they are used, from where generation reads them, so that a change during
training is seen. Read in TRL 1.16 and transformers 5.24.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truncation_guard.batch.completion_row import GenerationRules
from truncation_guard.trainer.context_window import get_context_window, stops_at_window
from truncation_guard.trainer.end_of_turn import end_of_turn_tokens
from truncation_guard.trainer.limit import get_limit, get_row_limit, limit_name
from truncation_guard.trainer.versions import (
    eos_token_ids,
    is_gmpo,
    is_grpo,
    uses_continuous_batching,
    writes_prompts_itself,
)

# Some tokenizers have thousands of added tokens, and in a training they stay the same.
_end_of_turn_tokens = lru_cache(maxsize=1)(end_of_turn_tokens)
_EARLY_STOPS = ("stop_strings", "stop", "max_time", "stopping_criteria")
"""Keys of `generation_kwargs` that end a completion without a stop token."""


def loss_divides_by_rows(trainer: Any) -> bool:
    """Whether an excluded row would dilute the others, by TRL 1.16's `_compute_loss`."""
    if not is_grpo(trainer) or is_gmpo(trainer):
        return True
    return trainer.loss_type in ("grpo", "sapo", "dr_grpo", "luspo")


def total_rewards(trainer: Any, rewards: NDArray[np.float32]) -> NDArray[np.float32]:
    """TRL's one reward of each completion, the weighted sum of its functions'.

    Args:
        trainer: the trainer of the batch.
        rewards: shape (rows, reward functions), NaN where a function abstains.

    Returns:
        Shape (rows,), NaN where all functions abstain.
    """
    abstains = np.isnan(rewards)
    weighted = np.where(abstains, np.float32(0), rewards * trainer.reward_weights.cpu().numpy())
    return np.where(abstains.all(axis=1), np.float32(np.nan), weighted.sum(axis=1))


def baselined_rewards(
    trainer: Any, rewards: NDArray[np.float32], total: NDArray[np.float32]
) -> NDArray[np.float32] | None:
    """The figures whose equality in a group makes its advantages 0, rounding aside.

    By TRL 1.16: the total reward, or each function's; RLOO clips the total, and may subtract a KL
    term.

    Args:
        trainer: the trainer of the batch.
        rewards: shape (rows, reward functions), NaN where a function abstains.
        total: their `total_rewards`.

    Returns:
        Shape (rows, figures); None where equal rewards do not make equal figures.
    """
    if is_grpo(trainer):
        if trainer.multi_objective_aggregation == "normalize_then_sum":
            return rewards
        return total[:, None]
    if trainer.beta != 0.0:
        return None
    clip = trainer.reward_clip_range
    return (np.clip(total, *clip) if clip else total)[:, None]


def generation_rules(trainer: Any) -> GenerationRules:
    """What can end a completion of this trainer, read from its live settings."""
    tokenizer = get_tokenizer(trainer)
    kwargs = trainer.args.generation_kwargs or {}
    config = None if trainer.use_vllm else trainer.generation_config
    stops = _stop_token_ids(trainer, tokenizer, kwargs, config)
    limit = get_limit(trainer)
    tools = getattr(trainer, "tools", None)
    early = [kwargs.get(key) or getattr(config, key, None) for key in _EARLY_STOPS]
    return GenerationRules(
        stop_token_ids=stops,
        pad_token_id=tokenizer.pad_token_id,
        limit=limit,
        limit_name=limit_name(trainer),
        row_limit=get_row_limit(trainer),
        context_window=get_context_window(trainer, limit),
        cuts_at_window=stops_at_window(trainer),
        pad_prompts_to=_pads_prompts_to(trainer),
        stops_on_request=any(early) or writes_prompts_itself(trainer),
        end_of_turn={
            token: name for token, name in _end_of_turn_tokens(tokenizer) if token not in stops
        },
        max_tool_iterations=trainer.max_tool_calling_iterations if tools else None,
    )


def get_num_generations(trainer: Any, *, training: bool) -> int:
    """Completions per prompt."""
    number: int = trainer.num_generations if training else trainer.num_generations_eval
    return number


def masked_by_trainer(trainer: Any, completion_ids: Iterable[Sequence[int]]) -> list[bool]:
    """The completions that `mask_truncated_completions` takes out of the loss, by TRL's rule."""
    if not trainer.mask_truncated_completions:
        return [False for _ in completion_ids]
    ends = {*eos_token_ids(trainer), get_tokenizer(trainer).pad_token_id}
    return [ids[-1] not in ends for ids in completion_ids]


def logged_advantages(trainer: Any, rows: int) -> list[float] | None:
    """The advantages of the newest `rows` completions, all processes, from TRL's own table.

    None where the table, which holds one training batch, is too short (in evaluation).
    """
    log = trainer._logs["advantages"]
    return list(islice(log, len(log) - rows, None)) if len(log) >= rows else None


def replace_logged_advantages(trainer: Any, advantages: Sequence[float]) -> None:
    """Show in the completions table the advantages that are really used."""
    log = trainer._logs["advantages"]
    for _ in advantages:
        log.pop()
    log.extend(advantages)


def log_metrics(trainer: Any, metrics: dict[str, float], *, training: bool) -> None:
    """Hand metrics to TRL's own log, which averages them and adds `eval_`.

    Raises:
        TypeError: for what is no number, which would end the training when it is averaged.
    """
    table = trainer._metrics["train" if training else "eval"]
    numbers = {name: float(value) for name, value in metrics.items()}
    for name, number in numbers.items():
        table[name].append(number)


def get_tokenizer(trainer: Any) -> Any:
    """The tokenizer, of a processor too."""
    return getattr(trainer.processing_class, "tokenizer", trainer.processing_class)


def _stop_token_ids(
    trainer: Any, tokenizer: Any, kwargs: dict[str, Any], config: Any
) -> frozenset[int]:
    sources = (
        eos_token_ids(trainer),
        tokenizer.eos_token_id,
        getattr(config, "eos_token_id", None),
        # vLLM stops on the model's own as well, which TRL only knows since 1.14.2.
        trainer.model.generation_config.eos_token_id if trainer.use_vllm else None,
        kwargs.get("eos_token_id"),
        kwargs.get("stop_token_ids"),
    )
    stops: set[int] = set()
    for source in sources:
        if isinstance(source, int):
            stops.add(source)
        elif source is not None:
            stops.update(int(token) for token in source)
    return frozenset(stops)


def _pads_prompts_to(trainer: Any) -> int | None:
    if trainer.use_vllm or uses_continuous_batching(trainer):
        return None
    return trainer.pad_to_multiple_of or 1
