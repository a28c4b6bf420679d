"""Phrases that texts share."""

from collections.abc import Callable

from truncation_guard.diagnosis.finding import Evidence, Severity

Wording = Callable[[Severity, Evidence], tuple[str, str]]
"""A fact and a remedy; the remedy is empty where there is nothing to do."""

ADD_A_GUARD = "add a TruncationGuardCallback"
TOKENS_OF_AN_ENVIRONMENT = "an environment's tokens, which TRL leaves out of the lengths, filled it"
"""Tokens with an `env_mask` of 0 from a `rollout_func`; TRL 1.16 logs nothing else of them."""
TRL_DEFAULTS = {256: "before TRL 1.12", 512: "since TRL 1.12"}
"""TRL's default limits, and when each was the default."""


def span_text(evidence: Evidence) -> str:
    """The steps that a finding covers."""
    first, last = evidence["first_step"], evidence["last_step"]
    unit = unit_text(evidence["steps_known"])
    if first is None or first == last:
        return "" if last is None else f" at {unit} {last:g}"
    return f" from {unit} {first:g} to {last:g}"


def unit_text(steps_known: bool) -> str:
    """The unit that entries are counted in."""
    return "step" if steps_known else "entry"
