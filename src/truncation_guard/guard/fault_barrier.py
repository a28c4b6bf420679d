"""The barrier between the trainer and the guard: it contains every fault, and holds the collective.

Whatever can fail on one process alone comes before the one collective, and the collective is
outside of everything that may fail. A process whose guard failed still takes part, with its flag
set: the modes leave that batch alone on every process, and all guards switch off at its end.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum, auto
from typing import Any, TypeVar

import torch
from torch import Tensor

from truncation_guard.batch.completion_row import Column
from truncation_guard.batch.counts import BatchCounts
from truncation_guard.batch.outcomes import failed_rows
from truncation_guard.guard.batch_stages import BatchStages
from truncation_guard.guard.limit_agreement import LimitAgreement, restore_limit
from truncation_guard.logger import PREFIX, logger
from truncation_guard.marks_for_tests import outside_barrier, unswept

T = TypeVar("T")


class _Health(Enum):
    """Whether the guard of this process works."""

    WORKS = auto()
    FAILED = auto()
    """The other processes learn it from the flag of the next rows."""


class _Place(Enum):
    """Where the generation batch is."""

    OUTSIDE = auto()
    BEGUN = auto()
    GATHERED = auto()
    OFF = auto()
    """Nowhere any more: all processes have switched off."""


class FaultBarrier:
    """Passes each stage of a generation batch on to `BatchStages`, and never raises.

    Args:
        stages: do the work; each of them may raise.
    """

    def __init__(self, stages: BatchStages) -> None:
        self._stages = stages
        self._health = _Health.WORKS
        self._place = _Place.OUTSIDE
        self._gathered = torch.empty(0)
        self.limit = LimitAgreement()

    @outside_barrier
    def contain(self, work: Callable[[], T], *, otherwise: T) -> T:
        """The result of `work`, an event of the trainer or a stage of a batch.

        Returns:
            `otherwise` where the guard of this process has failed, where `work` raises, and where
            its result is of another kind: another type, or a tensor of another shape or dtype.
        """
        if self._health is _Health.FAILED:
            return otherwise
        try:
            result = work()
            if not _is_like(result, otherwise):
                raise RuntimeError(f"{result!r} cannot take the place of {otherwise!r}")
        except Exception:
            self._health = _Health.FAILED
            _log_error(
                "%s ERROR the guard failed and is switched off. Training goes on as it would "
                "without it. This is a bug of truncation-guard: please report it.",
                PREFIX,
                exc_info=True,
            )
            return otherwise
        return result

    @unswept  # for what cannot be guarded: one process alone has a guard, or nothing is measured
    def switch_off(self, reason: object) -> None:
        """Leave the trainer alone from now on. All processes have to do so together."""
        self._place = _Place.OFF
        _log_error("%s ERROR %s The guard is switched off.", PREFIX, reason)

    def restore_limit(self, trainer: Any, find: Callable[[], int]) -> int | None:
        """Set the limit of a checkpoint before the first rollout, the same on all processes.

        One collective: all processes have to call this. One whose guard failed finds none, and then
        none is set anywhere.

        Args:
            trainer: the trainer that resumes.
            find: the limit in tokens as far as this process knows, 0 for none; may raise.

        Returns:
            The limit that was set.
        """
        none = torch.zeros(1, dtype=torch.int64)
        found = self.contain(lambda: torch.tensor([int(find())]), otherwise=none)
        return restore_limit(trainer, found)

    @outside_barrier
    def begin(self, trainer: Any) -> None:
        """A generation batch is about to be made."""
        if self._place is _Place.OFF:
            return
        self._place = _Place.BEGUN
        # Not in `contain`: a guard that failed since all agreed must not be left behind.
        self.limit.carry_out(trainer)
        self.contain(lambda: self._stages.begin(trainer), otherwise=None)

    @outside_barrier
    def generated(self, trainer: Any, prompts: Sequence[Any], generated: tuple[Any, ...]) -> None:
        """TRL's `_generate` has returned `generated` for `prompts`: the one collective."""
        # Outside of a batch somebody else generates. The second call of one batch comes from a
        # wrapper around the wrapper.
        if self._place is not _Place.BEGUN:
            return
        rows = self.contain(
            lambda: self._stages.generated(trainer, generated), otherwise=failed_rows(len(prompts))
        )
        device = trainer.accelerator.device
        self._gathered = trainer.accelerator.gather(rows.to(device, non_blocking=True))
        self._place = _Place.GATHERED
        self.limit.hear(self._gathered)

    @outside_barrier
    def rewarded(self, trainer: Any, rewards: Tensor) -> Tensor:
        """The rewards of all processes that TRL goes on with."""
        if self._place is not _Place.GATHERED:
            return rewards
        return self.contain(
            lambda: self._stages.rewarded(trainer, self._gathered, rewards), otherwise=rewards
        )

    @outside_barrier
    def scored(
        self, trainer: Any, output: dict[str, Any]
    ) -> tuple[dict[str, Any], BatchCounts | None]:
        """The batch that TRL goes on with, and its counts; None where it was not measured."""
        if self._place is _Place.BEGUN:
            self.switch_off(
                f"{type(trainer).__name__} does not call TRL's `_generate`: its completions cannot "
                "be measured."
            )
        if self._place is not _Place.GATHERED:
            return output, None
        self._place = _Place.OUTSIDE
        gathered, self._gathered = self._gathered, torch.empty(0)
        guarded = self.contain(lambda: self._guarded(trainer, gathered, output), otherwise=output)
        counts = self.contain(lambda: self._stages.counted(trainer, gathered), otherwise=None)
        if counts is None and bool(gathered[:, Column.FAILED].any()):
            if self._health is _Health.WORKS and trainer.accelerator.is_main_process:
                _log_error(
                    "%s ERROR the guard of another process failed (its log has the traceback), so "
                    "it is switched off on all of them. Training goes on as it would without it.",
                    PREFIX,
                )
            self._place = _Place.OFF
        return guarded, counts

    def _guarded(self, trainer: Any, gathered: Tensor, output: dict[str, Any]) -> dict[str, Any]:
        changes = self._stages.scored(trainer, gathered, output)
        for name, value in changes.items():
            if not _is_like(value, output.get(name, output["completion_mask"])):
                raise RuntimeError(f"{name} was changed to {value!r}")
        return {**output, **changes}


def _log_error(text: str, *args: object, exc_info: bool | None = None) -> None:
    with suppress(Exception):  # a handler of the user's may raise
        logger.error(text, *args, exc_info=exc_info)


def _is_like(result: object, otherwise: object) -> bool:
    if isinstance(otherwise, Tensor):
        return (
            isinstance(result, Tensor)
            and result.shape == otherwise.shape
            and result.dtype == otherwise.dtype
        )
    return otherwise is None or isinstance(result, type(otherwise))
