"""What a subclass of TRL's trainers keeps the guard from doing, for a WARN line at the start."""

from typing import Any, NamedTuple

from truncation_guard.options import Mode
from truncation_guard.trainer.hooks import has_unknown_loss, overridden_methods


class SubclassLine(NamedTuple):
    """A WARN line without its figures."""

    code: str
    fact: str
    remedy: str


def own_methods(trainer: Any, mode: Mode) -> list[SubclassLine]:
    """At most one line: about rollout methods, else about a loss, that the subclass has itself.

    Args:
        trainer: a GRPOTrainer or RLOOTrainer.
        mode: as the user asked for it.
    """
    name = type(trainer).__name__
    overridden = overridden_methods(trainer)
    if overridden and mode != "observe":
        fact = (
            f"{name} has its own {' and '.join(overridden)}, which may reorder or replace rows: "
            f"truncation is measured, mode={mode!r} is not applied"
        )
        remedy = "use truncation_guard.guard_advantages in it, or mode='observe' to silence this"
        return [SubclassLine("measured-only", fact, remedy)]
    if mode == "exclude" and has_unknown_loss(trainer):
        fact = (
            f"{name} has a loss of its own: truncated completions are taken out of its mask and "
            "its advantages, but how it divides is not known"
        )
        remedy = "see that it divides by the kept completions or tokens, or use mode='downweight'"
        return [SubclassLine("loss-scale", fact, remedy)]
    return []
