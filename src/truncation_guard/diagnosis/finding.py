"""A finding: the answer to one question about a run, with the figures it rests on."""

from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["problem", "warning", "fine", "unknown"]
"""`problem` and `warning` are to be looked into; `unknown`: the run does not tell."""

Evidence = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer to one question about a run."""

    code: str
    severity: Severity
    fact: str
    """The answer, in words."""
    evidence: Evidence
    """The figures behind it, as JSON values; shares in [0, 1], lengths in tokens."""
    remedy: str
    """What to do; empty for nothing."""

    @property
    def is_bad(self) -> bool:
        """Whether it is to be looked into."""
        return self.severity in ("problem", "warning")
