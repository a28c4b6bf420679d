"""Everything that knows the inside of TRL and transformers: find the trainer, wrap it, read it.

The one idea: a `TrainerCallback` is never given its trainer, and no event fires between a rollout
and its advantages. So the trainer is found among the callers of the callback, and three of its
methods are wrapped, on the instance. Read in TRL 1.16 and transformers 5.24; the names that begin
with an underscore are the ones to check in a new version.
"""

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Protocol

import torch
from torch import Tensor

from truncation_guard.options import GuardOptions
from truncation_guard.rollouts import GenerationRules

WRAPPED_METHODS = ("_generate", "_calculate_rewards", "_generate_and_score_completions")

_TRANSFORMERS_DEFAULT_NEW_TOKENS = 20
"""What `generate` writes when neither `max_new_tokens` nor `max_length` is set."""
_EARLY_STOPS = ("stop_strings", "stop", "max_time", "stopping_criteria")
"""Keys of `generation_kwargs` that end a completion without a stop token."""
_END_OF_TURN = re.compile(
    r"im_end|eo[stm](_id)?|end|/s|return|turn|"
    r"end_?of_?(text|turn|sentence|message|utterance)(_token)?",
    re.IGNORECASE,
)
"""Names, without their brackets, of the tokens by which models end a turn or a text."""
_BRACKETS = "<>[]|\uff5c"
_SPACES = "\u2581"
"""DeepSeek writes its special tokens with a full-width bar and a block for the space."""
_START_OF_TURN = "<|turn>"
"""Gemma 4 ends a turn with the same name and the bar on the other side."""


class RolloutStages(Protocol):
    """What the wrapped methods call, in this order. None of it may raise."""

    def begin(self, trainer: Any) -> None:
        """A generation batch is about to be made."""

    def generated(self, trainer: Any, prompts: Sequence[Any], generated: tuple[Any, ...]) -> None:
        """TRL's `_generate` has returned `generated` for `prompts`."""

    def rewarded(self, trainer: Any, rewards: Tensor) -> Tensor:
        """Return the rewards, (rows of all processes, reward functions), that TRL goes on with."""

    def scored(self, trainer: Any, output: dict[str, Any]) -> dict[str, Any]:
        """Return the batch that TRL goes on with."""


class RolloutListener(ABC):
    """A callback that wants to see the rollouts."""

    @abstractmethod
    def rollout_stages(self, trainer: Any) -> RolloutStages:
        """What the wrapped methods of `trainer` talk to."""


class _WrappedMethod:
    """A bound method of one trainer with the listener's part around it.

    The listener is looked up at each call: `remove_callback` switches it off, and a resume that
    replaces the callback object needs nothing.
    """

    def __init__(self, trainer: Any, name: str, original: Callable[..., Any]) -> None:
        self.trainer = trainer
        self.name = name
        self.original = original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        trainer = self.trainer
        listener = find_listener(trainer)
        if listener is None:
            return self.original(*args, **kwargs)
        stages = listener.rollout_stages(trainer)
        if self.name == "_generate_and_score_completions":
            stages.begin(trainer)
            return stages.scored(trainer, self.original(*args, **kwargs))
        result = self.original(*args, **kwargs)
        if self.name == "_calculate_rewards":
            return stages.rewarded(trainer, result)
        stages.generated(trainer, args[0] if args else kwargs["prompts"], result)
        return result


def find_trainer(callback: object) -> Any | None:
    """The nearest caller that is a `transformers.Trainer` with this very callback object."""
    from transformers import Trainer

    frame = inspect.currentframe()
    while frame is not None:
        candidate = frame.f_locals.get("self")
        if isinstance(candidate, Trainer) and any(
            known is callback for known in candidate.callback_handler.callbacks
        ):
            return candidate
        frame = frame.f_back
    return None


def find_listener(trainer: Any) -> RolloutListener | None:
    """The listener among the trainer's callbacks, as they are now."""
    callbacks = trainer.callback_handler.callbacks
    return next((known for known in callbacks if isinstance(known, RolloutListener)), None)


def check_trainer(trainer: Any) -> None:
    """Refuse a trainer without rollouts of groups.

    The classes are looked up in `trl` at this moment: Unsloth replaces them there.

    Raises:
        TypeError: naming what is supported.
    """
    import trl

    if not isinstance(trainer, (trl.GRPOTrainer, trl.RLOOTrainer)):
        raise TypeError(
            "TruncationGuardCallback works with trl's GRPOTrainer, RLOOTrainer and their "
            f"subclasses, got {type(trainer).__name__}. Remove the callback from this trainer."
        )


def install(trainer: Any) -> None:
    """Wrap the three rollout methods of this instance, unless they are.

    Where somebody has put a wrapper of their own around ours, another one comes on top of theirs;
    the stages see to it that the inner one does the work. Where they have replaced ours, this puts
    it back.
    """
    for name in WRAPPED_METHODS:
        method = getattr(trainer, name)
        if not isinstance(method, _WrappedMethod):
            setattr(trainer, name, _WrappedMethod(trainer, name, method))


def remember_options(trainer: Any, options: GuardOptions) -> None:
    """Keep the settings of this script where a callback that transformers rebuilds finds them."""
    trainer._truncation_guard_options = options


def remembered_options(trainer: Any) -> GuardOptions | None:
    """The settings that this script gave, whatever the checkpoint holds."""
    options: GuardOptions | None = getattr(trainer, "_truncation_guard_options", None)
    return options


def overridden_methods(trainer: Any) -> list[str]:
    """The rollout methods that a subclass has of its own: they may reorder or replace rows."""
    import trl

    base = trl.GRPOTrainer if is_grpo(trainer) else trl.RLOOTrainer
    return [
        name for name in WRAPPED_METHODS if getattr(type(trainer), name) is not getattr(base, name)
    ]


def is_grpo(trainer: Any) -> bool:
    """Whether the loss is one of GRPO's rather than RLOO's."""
    import trl

    return isinstance(trainer, trl.GRPOTrainer)


def loss_divides_by_rows(trainer: Any) -> bool:
    """Whether an excluded row would dilute the others, by TRL 1.16's `_compute_loss`."""
    if not is_grpo(trainer):
        return True
    return trainer.loss_type in ("grpo", "sapo", "dr_grpo", "luspo")


def generation_rules(trainer: Any) -> GenerationRules:
    """What can end a completion of this trainer, read from its live settings."""
    tokenizer = _tokenizer(trainer)
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
        context_window=_context_window(trainer, limit),
        pad_prompts_to=_pads_prompts_to(trainer),
        stops_on_request=any(early)
        or getattr(trainer, "rollout_func", None) is not None
        or getattr(trainer, "environment_factories", None) is not None,
        end_of_turn={
            token: name for token, name in _end_of_turn_tokens(tokenizer) if token not in stops
        },
        max_tool_iterations=trainer.max_tool_calling_iterations if tools else None,
    )


def get_num_generations(trainer: Any, *, training: bool) -> int:
    """Completions per prompt."""
    number: int = trainer.num_generations if training else trainer.num_generations_eval
    return number


def get_limit(trainer: Any) -> int | None:
    """The limit in tokens that generation obeys now; None where there is none.

    `generation_kwargs` override `max_completion_length`, and the tool loop keeps to
    `trainer.max_completion_length` besides.
    """
    limit: int | None
    budget: int | None = trainer.max_completion_length if getattr(trainer, "tools", None) else None
    if trainer.use_vllm:
        vllm = trainer.vllm_generation
        limit = vllm.generation_kwargs.get("max_tokens", vllm.max_completion_length)
    else:
        limit = trainer.generation_config.max_new_tokens
        if limit is None and _max_length(trainer) is None:
            limit = _TRANSFORMERS_DEFAULT_NEW_TOKENS
    return min((n for n in (limit, budget) if n is not None), default=None)


def masked_by_trainer(trainer: Any, completion_ids: Iterable[Sequence[int]]) -> list[bool]:
    """The completions that `mask_truncated_completions` takes out of the loss, by TRL's rule."""
    if not trainer.mask_truncated_completions:
        return [False for _ in completion_ids]
    ends = {*trainer.eos_token_ids, _tokenizer(trainer).pad_token_id}
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
    """Hand metrics to TRL's own log, which averages them and adds `eval_`."""
    table = trainer._metrics["train" if training else "eval"]
    for name, value in metrics.items():
        table[name].append(value)


def _tokenizer(trainer: Any) -> Any:
    return getattr(trainer.processing_class, "tokenizer", trainer.processing_class)


def _stop_token_ids(
    trainer: Any, tokenizer: Any, kwargs: dict[str, Any], config: Any
) -> frozenset[int]:
    sources = (
        trainer.eos_token_ids,
        tokenizer.eos_token_id,
        getattr(config, "eos_token_id", None),
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


def _end_of_turn_tokens(tokenizer: Any) -> list[tuple[int, str]]:
    special = set(tokenizer.all_special_tokens)
    return [
        (token, added.content)
        for token, added in sorted(tokenizer.added_tokens_decoder.items())
        if (added.special or added.content in special)
        and added.content != _START_OF_TURN
        and _END_OF_TURN.fullmatch(added.content.strip(_BRACKETS).replace(_SPACES, "_"))
    ]


def _max_length(trainer: Any) -> int | None:
    """`max_length` of prompt and completion, which only counts without `max_new_tokens`."""
    own = trainer.generation_config.max_length
    length: int | None = own if own is not None else trainer.model.generation_config.max_length
    return length


def _context_window(trainer: Any, limit: int | None) -> int | None:
    if trainer.use_vllm:
        vllm = trainer.vllm_generation
        if vllm.mode == "colocate":
            return int(vllm.llm.llm_engine.model_config.max_model_len)
        if vllm.max_model_length is not None:
            return int(vllm.max_model_length)
    elif limit is None:
        return _max_length(trainer)
    model = getattr(trainer.model, "module", trainer.model)
    window: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return window


def _pads_prompts_to(trainer: Any) -> int | None:
    if trainer.use_vllm or trainer.use_transformers_continuous_batching:
        return None
    return trainer.pad_to_multiple_of or 1


def distributed_store() -> Any | None:
    """The key-value store by which torch.distributed's processes found each other."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    # torch has no public way to it (2.13).
    return torch.distributed.distributed_c10d._get_default_store()
