"""The limit of a trainer: read it, set it, raise it, set it for a while.

TRL copies `max_completion_length` to several places, and each backend reads another one. Reading
asks the place that generation obeys; setting writes all of them, so that loss, tool loop and log
follow. Read in TRL 1.16 and transformers 5.24.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from truncation_guard.argument_checks import check_positive, is_integer
from truncation_guard.marks_for_tests import outside_barrier
from truncation_guard.trainer.context_window import get_context_window, max_length, max_new_tokens
from truncation_guard.trainer.versions import check_supported, is_gmpo

_TOOL_BUDGET = "_truncation_guard_tool_budget"
"""Trainer attribute: the tool loop's limit, where it exceeds `max_completion_length`."""

_TRANSFORMERS_DEFAULT_NEW_TOKENS = 20
"""New tokens of `generate` when neither `max_new_tokens` nor `max_length` is set."""


def get_limit(trainer: Any) -> int | None:
    """The limit in tokens that generation obeys now; None without one.

    `generation_kwargs` override `max_completion_length`; the tool loop also obeys
    `trainer.max_completion_length`.
    """
    return min(_limits(trainer), default=None)


def get_row_limit(trainer: Any) -> int | None:
    """The limit in tokens of all turns of a completion together; None without one.

    It exceeds the limit where `generation_kwargs` allow one turn less than the tool loop allows all
    of them.
    """
    return max(_limits(trainer), default=None)


def _limits(trainer: Any) -> list[int]:
    """The limits of one turn and, with tools, of all turns together, as far as they exist."""
    limit: int | None
    budget: int | None = None
    if getattr(trainer, "tools", None):
        budget = vars(trainer).get(_TOOL_BUDGET, trainer.max_completion_length)
    if trainer.use_vllm:
        vllm = trainer.vllm_generation
        limit = vllm.generation_kwargs.get("max_tokens", vllm.max_completion_length)
    else:
        limit = max_new_tokens(trainer)
        if limit is None and max_length(trainer) is None:
            limit = _TRANSFORMERS_DEFAULT_NEW_TOKENS
    # Plain integers: a config may hold numpy's, which JSON does not take.
    return [int(n) for n in (limit, budget) if n is not None]


def limit_name(trainer: Any) -> str:
    """The setting that the limit comes from."""
    key = _kwarg(trainer)
    is_overridden = key in (trainer.args.generation_kwargs or {})
    return f"generation_kwargs[{key!r}]" if is_overridden else "max_completion_length"


def set_max_completion_length(
    trainer: Any, max_completion_length: int, *, longest_prompt: int = 0
) -> None:
    """Set the limit that the next generation of this trainer obeys, up or down.

    To assign `args.max_completion_length` or `trainer.max_completion_length` does not do it. This
    sets both, for the log, the tool loop and the loss, and besides what generation reads:

    - transformers, with continuous batching too: `trainer.generation_config.max_new_tokens`;
    - vLLM, colocated or as a server: `trainer.vllm_generation.max_completion_length`;
    - a `max_new_tokens` (with vLLM: `max_tokens`) in `generation_kwargs`, where there is one, since
      it overrides the limit.

    Completions that are generated already stay as they are. On several processes all of them make
    this call, for example in a callback's `on_step_end`.

    The limit is bounded by the context window: that of the model, with vLLM that of its engine,
    which is fixed when the engine starts. Beyond it transformers writes nonsense, a colocated
    engine ends the completion at its window, and a server refuses the request, which ends the
    training: with a server, and wherever the limit is near the window, pass `longest_prompt`.

    The loss of `dr_grpo` is divided by the limit: twice the limit halves its steps.

    Args:
        trainer: a GRPOTrainer or RLOOTrainer.
        max_completion_length: in tokens.
        longest_prompt: in tokens; room in the context window that prompts need besides. 0: only
            the limit is checked.

    Raises:
        TypeError: for another trainer.
        ValueError: if the limit is no integer of at least 1, `longest_prompt` no integer of at
            least 0, or both together exceed the context window. Nothing has changed then.
    """
    check_supported("set_max_completion_length", trainer, "Pass such a trainer.")
    if not (is_integer(longest_prompt) and longest_prompt >= 0):
        raise ValueError(
            f"`longest_prompt` must be an integer of at least 0, got {longest_prompt!r}. Pass the "
            "tokens of the longest prompt, or 0 to check the limit alone."
        )
    set_limit(trainer, max_completion_length, longest_prompt=longest_prompt)


def set_limit(trainer: Any, limit: int, *, longest_prompt: int = 0) -> None:
    """Let the next generation obey this limit: see `set_max_completion_length`.

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
    # transformers runs past the window and writes nonsense; a vLLM server answers with an error.
    if window is not None and limit + longest_prompt > window:
        raise ValueError(_does_not_fit(limit, longest_prompt, window))
    for mapping, key in _places(trainer):
        mapping[key] = int(limit)


def raise_limit(trainer: Any, limit: int) -> None:
    """Let the next generation obey this limit where it obeys a lower one now.

    No place that holds the limit is lowered. TRL 1.16's `dr_grpo` loss divides by
    `trainer.max_completion_length`, which therefore stays, and with it the scale of the loss. The
    tool loop reads the same attribute: see `tool_budget`.
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
    """Let TRL's tool loop use a raised limit while the loss's divisor stays.

    Both are `trainer.max_completion_length` in TRL 1.16: the tool loop reads it while a generation
    batch is made, the loss afterwards.
    """
    budget, divisor = vars(trainer).get(_TOOL_BUDGET), trainer.max_completion_length
    if budget is None:
        yield
        return
    trainer.max_completion_length = budget
    try:
        yield
    finally:
        if trainer.max_completion_length == budget:  # else somebody has set another one
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
    """Every (mapping, key) that holds the limit, whoever reads it."""
    places = [(vars(owner), "max_completion_length") for owner in (trainer, trainer.args)]
    if _TOOL_BUDGET in vars(trainer):
        places.append((vars(trainer), _TOOL_BUDGET))
    key = _kwarg(trainer)
    if trainer.use_vllm:
        backend = trainer.vllm_generation
        places.append((vars(backend), "max_completion_length"))  # read at each call
        overrides = [backend.generation_kwargs]
    else:
        # Continuous batching copies the same object at each call.
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
