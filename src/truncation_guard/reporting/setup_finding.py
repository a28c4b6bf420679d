"""What the preflight finds wrong with a set-up, as the reporter takes it."""

from dataclasses import dataclass
from typing import Literal

SetupCheck = Literal[
    "context",
    "stop-tokens",
    "soft-punishment",
    "masked-twice",
    "kl-term",
    "entropy-term",
    "unsloth",
    "groups",
    "raise-limit-to",
]


@dataclass(frozen=True, slots=True)
class SetupFinding:
    """One thing about the set-up that is very likely a mistake."""

    kind: SetupCheck
    """Which check it is from."""
    fact: str
    """What is so, and what follows; for a WARN line."""
    remedy: str
    """What to do about it."""
