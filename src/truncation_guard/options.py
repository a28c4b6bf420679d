"""The guard's settings, checked where they are given.

The one idea: what would silently do nothing, or something else than it says, is refused before a
training begins.
"""

from dataclasses import dataclass

from truncation_guard.advantages import Mode, check_mode_arguments
from truncation_guard.checks import check_positive, check_share, is_integer, is_number
from truncation_guard.monitor import ENOUGH_COMPLETIONS

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
        # A percentage would never be reached; False would mean 0 and warn about everything.
        if self.warn_above is not None and not (
            is_number(self.warn_above) and 0.0 <= self.warn_above < 1.0
        ):
            raise ValueError(
                f"`warn_above` must be in [0, 1), got {self.warn_above!r}. "
                "Pass 0.05 for 5 %, or None for no WARN lines."
            )
        # Below that many completions a share over the window is never warned about.
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
        # Numpy's numbers and fractions may be given; JSON and torch take Python's own alone.
        for names, kind in ((_INTEGERS, int), (_REALS, float)):
            for name in names:
                if (value := getattr(self, name)) is not None:
                    object.__setattr__(self, name, kind(value))
