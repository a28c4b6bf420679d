"""The text of every finding, by its code."""

from typing import Any

from truncation_guard.diagnosis.finding import Finding, Severity
from truncation_guard.diagnosis.wording.caveats import CAVEATS
from truncation_guard.diagnosis.wording.checklist import CHECKLIST

_WORDING = CHECKLIST | CAVEATS


def word(code: str, severity: Severity, /, **evidence: Any) -> Finding:
    """A finding with its text."""
    fact, remedy = _WORDING[code](severity, evidence)
    return Finding(code, severity, fact, evidence, remedy)
