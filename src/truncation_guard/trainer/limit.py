"""Where the limit of a trainer of TRL lives: read it, set it, set it for a while.

The one idea: the limit stands in several places, and generation reads another one on each backend.
Reading asks the one that generation obeys; setting writes all of them, so that the loss, the tool
loop and the log follow. Read in TRL 1.16 and transformers 5.24.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from truncation_guard.checks import check_positive
from truncation_guard.fault_marks import outside_barrier
from truncation_guard.trainer.versions import unset_max_length
from truncation_guard.trainer.vllm_server import server_window

_TOOL_BUDGET = "_truncation_guard_tool_budget"
"""Attribute of a trainer whose tool loop may write more than `max_completion_length`."""

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
    return min(_limits(trainer), default=None)


def get_row_limit(trainer: Any) -> int | None:
    """Tokens that a completion may have over all its turns; None where there is no limit.

    Where `generation_kwargs` allow a turn less than the tool loop allows all of them together, that
    is more than the limit.
    """
    return max(_limits(trainer), default=None)


def _limits(trainer: Any) -> list[int]:
    """Of one turn, and with tools of all turns together: as far as there are limits."""
    limit: int | None
    budget: int | None = None
    if getattr(trainer, "tools", None):
        budget = vars(trainer).get(_TOOL_BUDGET, trainer.max_completion_length)
    if trainer.use_vllm:
        vllm = trainer.vllm_generation
        limit = vllm.generation_kwargs.get("max_tokens", vllm.max_completion_length)
    else:
        limit = _max_new_tokens(trainer)
        if limit is None and _max_length(trainer) is None:
            limit = _TRANSFORMERS_DEFAULT_NEW_TOKENS
    # As integers of Python: numpy's may be in the config, and JSON does not take them.
    return [int(n) for n in (limit, budget) if n is not None]


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


def stops_at_window(trainer: Any) -> bool:
    """Whether generation ends a completion at the context window, and does not go on past it.

    Transformers does so only where nothing says how many tokens may be new.
    """
    return bool(trainer.use_vllm) or _max_new_tokens(trainer) is None


def window_of_config(config: Any) -> int | None:
    """Tokens that a model of transformers can place; None where its config does not say.

    Of scaled rotary positions the largest window that they may mean, by the rules of vLLM 0.31:
    some models' `max_position_embeddings` holds the scaled number, others' the one before.
    """
    text = config.get_text_config()
    window: int | None = getattr(text, "max_position_embeddings", None)
    # transformers 5 has the first name, 4 the second; both may hold one of each type of layer.
    scaling = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    layers = [part for part in scaling.values() if isinstance(part, dict)] or [scaling]
    if window is None or "gemma3" in getattr(text, "model_type", ""):  # scaled already
        return window
    return max(window, *(_scaled_window(layer, window) for layer in layers))


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
        mapping[key] = int(limit)


def raise_limit(trainer: Any, limit: int) -> None:
    """Let the next generation obey this limit where it obeys a lower one now.

    Nothing that holds the limit is lowered. TRL 1.16's `dr_grpo` divides by
    `trainer.max_completion_length` when the loss is taken: that stays, so that the scale of the
    loss does too. The tool loop reads it as well, see `tool_budget`.
    """
    keeps = divides_by_limit(trainer)
    if keeps and getattr(trainer, "tools", None):
        vars(trainer).setdefault(_TOOL_BUDGET, trainer.max_completion_length)
    for mapping, key in _places(trainer):
        is_divisor = mapping is vars(trainer) and key == "max_completion_length"
        if not (keeps and is_divisor) and (mapping[key] or 0) < limit:
            mapping[key] = limit


@contextmanager
@outside_barrier
def tool_budget(trainer: Any) -> Iterator[None]:
    """Let TRL's tool loop go up to a limit that was raised while the loss's divisor stayed.

    Both are `trainer.max_completion_length` in TRL 1.16: the one is read while a generation batch
    is made, the other when its losses are taken.
    """
    budget, divisor = vars(trainer).get(_TOOL_BUDGET), trainer.max_completion_length
    if budget is None:
        yield
        return
    trainer.max_completion_length = budget
    try:
        yield
    finally:
        if trainer.max_completion_length == budget:  # else somebody has set another one meanwhile
            trainer.max_completion_length = divisor


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
    if _TOOL_BUDGET in vars(trainer):
        places.append((vars(trainer), _TOOL_BUDGET))
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


def _max_new_tokens(trainer: Any) -> int | None:
    """What generation takes on the transformers backends: the trainer's, else the model's own."""
    own: int | None = trainer.generation_config.max_new_tokens
    return trainer.model.generation_config.max_new_tokens if own is None else own


def _scaled_window(rope: dict[str, Any], window: int) -> int:
    kind = rope.get("rope_type", rope.get("type", "default"))
    factor = rope.get("factor") or 1.0
    if kind in ("default", "llama3", "longrope"):
        return window
    base = rope.get("original_max_position_embeddings") if kind == "yarn" else window
    return int((base or window) * factor)


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
