"""What a subclass of TRL's trainers keeps the guard from doing, for a WARN line at the start."""

from typing import Any

from truncation_guard.options import Mode
from truncation_guard.trainer.hooks import overridden_methods


def measured_only(trainer: Any, mode: Mode) -> tuple[str, str]:
    """Fact and remedy where rollout methods are overridden, so that `mode` is not applied."""
    return (
        f"{type(trainer).__name__} has its own {' and '.join(overridden_methods(trainer))}, which "
        f"may reorder or replace rows: truncation is measured, mode={mode!r} is not applied",
        "use truncation_guard.guard_advantages in it, or mode='observe' to silence this",
    )


def unknown_loss(trainer: Any) -> tuple[str, str]:
    """Fact and remedy where `exclude` meets a loss that is none of TRL's."""
    return (
        f"{type(trainer).__name__} has a loss of its own: truncated completions are taken out of "
        "its mask and its advantages, but how it divides is not known",
        "see that it divides by the kept completions or tokens, or use mode='downweight'",
    )
