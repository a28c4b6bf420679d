"""`raise_limit_to` before the first rollout: what cannot work is refused, or reported."""

from typing import Any

from truncation_guard.logger import logger
from truncation_guard.marks_for_tests import contains_faults
from truncation_guard.reporting.limit_raiser import least_raise
from truncation_guard.reporting.setup_finding import SetupFinding
from truncation_guard.trainer.context_window import get_context_window
from truncation_guard.trainer.limit import get_limit
from truncation_guard.trainer.prompts import longest_prompt


def check_ceiling(trainer: Any, ceiling: int | None) -> None:
    """Refuse a `raise_limit_to` that leaves no room.

    Raises:
        ValueError: without a limit, for a ceiling below the limit, and for one that fills the
            context window.
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
    window = get_context_window(trainer, limit)
    if window is not None and ceiling >= window:
        raise ValueError(
            f"`raise_limit_to` must leave room for a prompt in the context window of {window} "
            f"tokens, got {ceiling}. Pass at most {window} less the longest prompt."
        )


def ceiling_findings(
    trainer: Any, ceiling: int | None, checkpoint: int | None
) -> list[SetupFinding]:
    """The findings about a `raise_limit_to` that is too low, or missing.

    Args:
        trainer: the trainer whose training begins.
        ceiling: `raise_limit_to`.
        checkpoint: the raised limit of a checkpoint, in tokens.
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
    # Equal to the limit is no mistake: an earlier training may have raised it.
    if ceiling is not None and limit < ceiling < least_raise(limit):
        fact = (
            f"raise_limit_to={ceiling} is less than a quarter above the limit, {limit}, and a "
            "smaller raise is never made"
        )
        findings.append(SetupFinding("raise-limit-to", fact, f"pass at least {least_raise(limit)}"))
    return findings


@contains_faults
def find_longest_prompt(trainer: Any, ceiling: int | None) -> int:
    """Tokens of the longest prompt of the data, where it may bound the limit; else 0.

    A later, longer prompt would meet a limit that was raised into its room: a vLLM server refuses
    it, and a model with learned positions fails on it. Raises nothing.
    """
    longest = 0
    if ceiling is None:
        return longest
    evaluation = trainer.eval_dataset
    named = evaluation if isinstance(evaluation, dict) else {"evaluation": evaluation}
    for dataset in (trainer.train_dataset, *named.values()):
        try:
            window = get_context_window(trainer, ceiling)
            if window is not None:
                least = max(longest, window - ceiling)
                longest = max(longest, longest_prompt(trainer, dataset, above=least))
        except Exception:  # whatever the data hold
            logger.debug("The prompts of a data set could not be measured.", exc_info=True)
    return longest


def limit_to_restore(trainer: Any, raised_to: int | None, ceiling: int | None, longest: int) -> int:
    """The raised limit of the checkpoint, as far as this run allows it; 0 without one.

    It left room for the earlier run's prompts; `longest` is the longest prompt of this run's data.
    """
    if raised_to is None or ceiling is None:
        return 0
    window = get_context_window(trainer, raised_to)
    room = raised_to if window is None else window - longest
    return min(raised_to, ceiling, room)
