"""A finding: the answer to one question about a run.

The one idea: figures and text go together, so that a reader can check the one by the other.
"""

from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["problem", "warning", "fine", "unknown"]
"""`problem` and `warning` are to be looked into; `unknown`: what is there cannot tell."""

Evidence = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer to one question about a run."""

    code: str
    severity: Severity
    fact: str
    """What was found, in words."""
    evidence: Evidence
    """The figures behind it, as JSON values; shares in [0, 1], lengths in tokens."""
    remedy: str
    """What to do; empty where there is nothing to do."""


def share_text(share: float) -> str:
    """A share for a reader, never rounded to none or all."""
    rounded = f"{100 * share:.3g}"
    if rounded == "100" and share < 1:
        return "nearly 100%"
    return f"{rounded}%"


def span_text(evidence: Evidence) -> str:
    """The steps that a finding is about."""
    first, last = evidence["first_step"], evidence["last_step"]
    unit = unit_text(evidence["steps_known"])
    if first is None or first == last:
        return "" if last is None else f" at {unit} {last:g}"
    return f" from {unit} {first:g} to {last:g}"


def unit_text(steps_known: bool) -> str:
    """What the entries are counted in."""
    return "step" if steps_known else "entry"
