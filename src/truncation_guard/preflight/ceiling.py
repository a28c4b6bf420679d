"""What the callback does about a limit that may be raised, beside deciding.

The one idea: what cannot work is refused, and what a run begins with is worked out, before the
first rollout.
"""

from typing import Any

from truncation_guard.fault_marks import contains_faults
from truncation_guard.log import logger
from truncation_guard.reporting.limit_raiser import least_raise
from truncation_guard.reporting.warn_lines import SetupFinding
from truncation_guard.trainer.limit import get_context_window, get_limit
from truncation_guard.trainer.prompts import longest_prompt


def check_ceiling(trainer: Any, ceiling: int) -> None:
    """Refuse a `raise_limit_to` that leaves no room.

    Raises:
        ValueError: if there is no limit, if it is below the limit, and if it fills the context
            window.
    """
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
    window = get_context_window(trainer, limit)
    if window is not None and ceiling >= window:
        raise ValueError(
            f"`raise_limit_to` must leave room for a prompt in the context window of {window} "
            f"tokens, got {ceiling}. Pass at most {window} less the longest prompt."
        )


def ceiling_findings(
    trainer: Any, ceiling: int | None, checkpoint: int | None
) -> list[SetupFinding]:
    """What is said of a `raise_limit_to` that is too low, or that is not there.

    Args:
        trainer: whose training begins.
        ceiling: `raise_limit_to`.
        checkpoint: the limit in tokens that a checkpoint had been raised to.
    """
    limit = get_limit(trainer)
    if limit is None:
        return []
    findings = []
    if checkpoint is not None and limit < checkpoint:
        fact = (
            f"the checkpoint was written under a limit that had been raised to {checkpoint}, and "
            f"this run goes on at {limit}"
        )
        remedy = (
            f"unless that is meant: pass raise_limit_to={checkpoint} or more, or set "
            f"max_completion_length={checkpoint}"
        )
        findings.append(SetupFinding("raise-limit-to", fact, remedy))
    # At the very limit: a training before this one may have raised it.
    if ceiling is not None and limit < ceiling < least_raise(limit):
        fact = (
            f"raise_limit_to={ceiling} is less than a quarter above the limit, {limit}, and a "
            "smaller raise is never made"
        )
        findings.append(SetupFinding("raise-limit-to", fact, f"pass at least {least_raise(limit)}"))
    return findings


@contains_faults
def find_longest_prompt(trainer: Any, ceiling: int) -> int:
    """Tokens of the longest prompt of the data, where that may bound the limit; else 0.

    A prompt longer than all before would meet a limit that was raised into its room: a vLLM server
    refuses it, and a model with learned positions fails on it. Raises nothing.
    """
    longest = 0
    evaluation = trainer.eval_dataset
    named = evaluation if isinstance(evaluation, dict) else {"evaluation": evaluation}
    for dataset in (trainer.train_dataset, *named.values()):
        try:
            window = get_context_window(trainer, ceiling)
            if window is not None:
                least = max(longest, window - ceiling)
                longest = max(longest, longest_prompt(trainer, dataset, above=least))
        except Exception:  # of whatever the data hold
            logger.debug("The prompts of a data set could not be measured.", exc_info=True)
    return longest


def limit_to_restore(trainer: Any, raised_to: int, ceiling: int, longest: int) -> int:
    """The limit that the checkpoint was written under, as far as this run allows it.

    It left room for the prompts of the run before; `longest` is that of this one's data.
    """
    window = get_context_window(trainer, raised_to)
    room = raised_to if window is None else window - longest
    return min(raised_to, ceiling, room)
