"""What the callback does about a limit that may be raised, beside deciding.

The one idea: what cannot work is refused before training begins, and a checkpoint's limit is back
before the first rollout.
"""

from typing import Any

from truncation_guard.trainer_limits import (
    divides_by_limit,
    get_context_window,
    get_limit,
    raise_limit,
)


def check_ceiling(trainer: Any, ceiling: int | None) -> None:
    """Refuse a `raise_limit_to` that leaves no room.

    Raises:
        ValueError: if it is below the limit or there is none, if it fills the context window, and
            for `dr_grpo` with tools.
    """
    if ceiling is None:
        return
    limit = get_limit(trainer)
    if limit is None:
        raise ValueError(
            "`raise_limit_to` needs a limit to begin with, and max_completion_length is None. Set "
            "it, or pass None to leave it alone."
        )
    if ceiling < limit:
        raise ValueError(
            f"`raise_limit_to` must be above the limit, {limit}, got {ceiling}. Pass a larger "
            "number of tokens, or None to leave the limit alone."
        )
    if divides_by_limit(trainer) and getattr(trainer, "tools", None):
        raise ValueError(
            "`raise_limit_to` does not work with loss_type='dr_grpo' and tools: the loss is "
            "divided by the number that is the budget of the tool loop, so that a raise would "
            "shrink it. Pass None, or another loss_type."
        )
    window = get_context_window(trainer, limit)
    if window is not None and ceiling >= window:
        raise ValueError(
            f"`raise_limit_to` must leave room for a prompt in the context window of {window} "
            f"tokens, got {ceiling}. Pass at most {window} less the longest prompt."
        )


def raise_again(trainer: Any, raised_to: int, ceiling: int | None) -> None:
    """Set the limit that the checkpoint was written under, as far as this run allows it."""
    limit = get_limit(trainer)
    if ceiling is not None and limit is not None and limit < min(raised_to, ceiling):
        raise_limit(trainer, min(raised_to, ceiling))
