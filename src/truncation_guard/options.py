"""The guard's options, checked at construction.

A value that would silently do nothing, or something else than it says, is refused.
"""

import sys
from dataclasses import dataclass
from typing import Literal, get_args

from truncation_guard.argument_checks import check_positive, check_share, is_integer, is_number

Mode = Literal["observe", "downweight", "exclude", "penalize"]
MODES: tuple[Mode, ...] = get_args(Mode)

ENOUGH_COMPLETIONS = 64
"""A share of fewer completions is not worth a line."""

_INTEGERS = ("window", "cooldown", "histogram_every", "raise_limit_to")
_REALS = ("truncated_weight", "truncated_reward", "warn_above", "coverage")


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardOptions:
    """Arguments of `TruncationGuardCallback`, which documents them.

    Raises:
        ValueError: naming the argument, its value and the remedy.
    """

    mode: Mode
    truncated_weight: float
    truncated_reward: float
    warn_above: float | None
    window: int
    cooldown: int
    coverage: float
    histogram_every: int | None
    record: bool
    raise_limit_to: int | None = None

    def __post_init__(self) -> None:
        """Check every argument."""
        check_mode_arguments(self.mode, self.truncated_weight, self.truncated_reward)
        # No share reaches a percentage; False would mean 0 and warn about everything.
        if self.warn_above is not None and not (
            is_number(self.warn_above) and 0.0 <= self.warn_above < 1.0
        ):
            raise ValueError(
                f"`warn_above` must be in [0, 1), got {self.warn_above!r}. "
                "Pass 0.05 for 5 %, or None for no WARN lines."
            )
        # The monitor ignores the share of a smaller window.
        if not is_integer(self.window) or self.window < ENOUGH_COMPLETIONS:
            raise ValueError(
                f"`window` must be an integer of at least {ENOUGH_COMPLETIONS} completions, "
                f"got {self.window!r}. Pass for example 512."
            )
        if not is_integer(self.cooldown) or self.cooldown < 0:
            raise ValueError(
                f"`cooldown` must be an integer of at least 0 optimizer steps, "
                f"got {self.cooldown!r}. Pass 0 for a line on every generation batch."
            )
        check_share("coverage", self.coverage)
        every = self.histogram_every
        if every is not None and (not is_integer(every) or every < 1):
            raise ValueError(
                "`histogram_every` must be an integer of at least 1 optimizer step, "
                f"got {every!r}. Pass None for the histogram at the end of training alone."
            )
        if self.raise_limit_to is not None:
            check_positive("raise_limit_to", self.raise_limit_to, "None to leave the limit alone")
            if self.warn_above is None:
                raise ValueError(
                    "`raise_limit_to` needs `warn_above`, the truncated share above which the "
                    "limit is raised, got None. Pass 0.05 for 5 %."
                )
        if not isinstance(self.record, bool):
            raise ValueError(f"`record` must be True or False, got {self.record!r}.")
        # JSON and torch take no fractions, nor numpy's numbers.
        for names, kind in ((_INTEGERS, int), (_REALS, float)):
            for name in names:
                if (value := getattr(self, name)) is not None:
                    object.__setattr__(self, name, kind(value))


def check_mode_arguments(mode: str, truncated_weight: float, truncated_reward: float) -> None:
    """Refuse values that would silently train something else.

    Raises:
        ValueError: naming the argument, its value and the remedy.
    """
    if mode not in MODES:
        names = ", ".join(repr(name) for name in MODES)
        raise ValueError(f"`mode` must be one of {names}, got {mode!r}.")
    # A negative weight would train truncated completions in the opposite direction, one above 1
    # would amplify them.
    if not (is_number(truncated_weight) and 0.0 <= truncated_weight <= 1.0):
        raise ValueError(
            f"`truncated_weight` must be in [0, 1], got {truncated_weight!r}. "
            "Pass 0.0 to ignore truncated completions, 1.0 to leave their advantages as they are."
        )
    # NaN is TRL's mark of an unscorable completion: it would turn `penalize` into `exclude`.
    if not (is_number(truncated_reward) and abs(truncated_reward) <= sys.float_info.max):
        raise ValueError(
            f"`truncated_reward` must be a finite number, got {truncated_reward!r}. "
            "Pass the highest reward that a truncated completion may keep, for example 0.0."
        )
