"""Where the limit of a trainer of TRL lives: read it, set it, set it for a while.

The one idea: the limit stands in several places, and generation reads another one on each backend.
Reading asks the one that generation obeys; setting writes all of them, so that the loss, the tool
loop and the log follow. Read in TRL 1.16 and transformers 5.24.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from truncation_guard.checks import check_positive
from truncation_guard.trainer_versions import unset_max_length
from truncation_guard.trainer_vllm_server import server_window

_TRANSFORMERS_DEFAULT_NEW_TOKENS = 20
"""What `generate` writes when neither `max_new_tokens` nor `max_length` is set."""


def is_gmpo(trainer: Any) -> bool:
    """Whether the trainer is TRL's experimental GMPO, whose loss is a mean over rows (1.16)."""
    return any(base.__name__ == "GMPOTrainer" for base in type(trainer).__mro__)


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
        if limit is None:  # generation falls back to the model's own settings
            limit = trainer.model.generation_config.max_new_tokens
        if limit is None and _max_length(trainer) is None:
            limit = _TRANSFORMERS_DEFAULT_NEW_TOKENS
    return min((n for n in (limit, budget) if n is not None), default=None)


def limit_name(trainer: Any) -> str:
    """The setting that the limit comes from."""
    key = _kwarg(trainer)
    is_overridden = key in (trainer.args.generation_kwargs or {})
    return f"generation_kwargs[{key!r}]" if is_overridden else "max_completion_length"


def get_context_window(trainer: Any, limit: int | None) -> int | None:
    """Tokens that prompt and completion may have together under this limit; None where unknown."""
    if trainer.use_vllm:
        vllm = trainer.vllm_generation
        if vllm.mode == "colocate":
            return int(vllm.llm.llm_engine.model_config.max_model_len)
        if (served := server_window(vllm)) is not None:
            return served
        if vllm.max_model_length is not None:
            return int(vllm.max_model_length)
    elif limit is None:
        return _max_length(trainer)
    return window_of_config(getattr(trainer.model, "module", trainer.model).config)


def window_of_config(config: Any) -> int | None:
    """Tokens that a model of transformers was made for; None where its config does not say."""
    window: int | None = getattr(config.get_text_config(), "max_position_embeddings", None)
    return window


def set_limit(trainer: Any, limit: int, *, longest_prompt: int = 0) -> None:
    """Let the next generation obey this limit, on the transformers backends and on vLLM.

    An entry of `generation_kwargs` that overrides the limit is set as well, `args` too. The loss
    of `dr_grpo` divides by the limit: a higher one makes its steps smaller.

    Args:
        trainer: a GRPOTrainer or RLOOTrainer.
        limit: in tokens.
        longest_prompt: in tokens; room that the context window has to have besides.

    Raises:
        ValueError: if `limit` is no integer of at least 1, or it and the longest prompt exceed the
            context window.
    """
    check_positive("max_completion_length", limit, "a number of tokens, such as 1024")
    window = get_context_window(trainer, limit)
    # transformers goes on past the window and writes nonsense; a vLLM server answers with an error.
    if window is not None and limit + longest_prompt > window:
        raise ValueError(_does_not_fit(limit, longest_prompt, window))
    for mapping, key in _places(trainer):
        mapping[key] = limit


def raise_limit(trainer: Any, limit: int) -> None:
    """Let the next generation obey this limit where it obeys a lower one now.

    Nothing that holds the limit is lowered. TRL 1.16's `dr_grpo` divides by
    `trainer.max_completion_length` when the loss is taken: that stays, so that the scale of the
    loss does too. With tools it would be their budget as well, which `limit_control` refuses.
    """
    keeps = vars(trainer) if divides_by_limit(trainer) else None
    for mapping, key in _places(trainer):
        if mapping is not keeps and (mapping[key] or 0) < limit:
            mapping[key] = limit


def divides_by_limit(trainer: Any) -> bool:
    """Whether the loss is divided by the limit."""
    return getattr(trainer, "loss_type", None) == "dr_grpo" and not is_gmpo(trainer)


@contextmanager
def temporary_limit(trainer: Any, limit: int, *, longest_prompt: int = 0) -> Iterator[None]:
    """`set_limit`, and everything as it was afterwards."""
    before = [(mapping, key, mapping[key]) for mapping, key in _places(trainer)]
    try:
        set_limit(trainer, limit, longest_prompt=longest_prompt)
        yield
    finally:
        for mapping, key, value in before:
            mapping[key] = value


def _places(trainer: Any) -> list[tuple[dict[str, Any], str]]:
    """Every (mapping, key) that holds the limit, whether generation or something else reads it."""
    places = [(vars(owner), "max_completion_length") for owner in (trainer, trainer.args)]
    key = _kwarg(trainer)
    if trainer.use_vllm:
        backend = trainer.vllm_generation
        places.append((vars(backend), "max_completion_length"))  # read at each call
        overrides = [backend.generation_kwargs]
    else:
        # Continuous batching reads the same object: both copy it at each call.
        places.append((vars(trainer.generation_config), key))
        overrides = [trainer.generation_kwargs]
    overrides.append(trainer.args.generation_kwargs)
    return places + [(kwargs, key) for kwargs in overrides if kwargs and key in kwargs]


def _kwarg(trainer: Any) -> str:
    return "max_tokens" if trainer.use_vllm else "max_new_tokens"


def _does_not_fit(limit: int, longest_prompt: int, window: int) -> str:
    if longest_prompt >= window:
        return (
            f"The longest prompt has {longest_prompt} tokens, which leaves no room for a "
            f"completion in the context window of {window} tokens. Take such prompts out of the "
            "data set, or shorten them."
        )
    what = f"`max_completion_length`={limit} does"
    if longest_prompt:
        what = (
            f"`max_completion_length`={limit} and the longest prompt ({longest_prompt} tokens) do"
        )
    return (
        f"{what} not fit into the context window of {window} tokens. Pass at most "
        f"{window - longest_prompt}."
    )


def _max_length(trainer: Any) -> int | None:
    """`max_length` of prompt and completion, which only counts without `max_new_tokens`."""
    configs = (trainer.generation_config, trainer.model.generation_config)
    unset = (None, unset_max_length())
    return next((c.max_length for c in configs if c.max_length not in unset), None)
