"""A finding out of its code and figures, worded."""

from typing import Any

from truncation_guard.diagnosis.finding import Finding, Severity
from truncation_guard.diagnosis.wording.caveats import CAVEATS
from truncation_guard.diagnosis.wording.checklist import CHECKLIST

_WORDING = CHECKLIST | CAVEATS


def word(code: str, severity: Severity, /, **evidence: Any) -> Finding:
    """The finding of these figures."""
    fact, remedy = _WORDING[code](severity, evidence)
    return Finding(code, severity, fact, evidence, remedy)
