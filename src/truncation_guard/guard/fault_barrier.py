"""The one way from the trainer's rollouts into the guard, with every fault contained.

The one idea: what can fail on one process alone comes before the one collective, and the
collective is here, outside of everything that may fail. A process whose guard failed still takes
part, with its flag set. The flag keeps the modes off that batch on every process, and the guard is
switched off everywhere at its end.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from truncation_guard.batch.outcomes import Column, failed_rows
from truncation_guard.fault_marks import outside_barrier, unswept
from truncation_guard.guard.stages import BatchGuard
from truncation_guard.log import PREFIX, logger
from truncation_guard.trainer.limit import get_limit, raise_limit


class ContainedRollouts:
    """Passes each stage of a generation batch on to a `BatchGuard`, and never raises.

    Args:
        guard: does the work; each of its methods may raise.
    """

    def __init__(self, guard: BatchGuard) -> None:
        self._guard = guard
        self._off = False
        self._failed = False
        self._begun = False
        self._gathered: Tensor | None = None
        self._proposed: tuple[int, int] | None = None
        self._agreed: tuple[int, int] | None = None
        """Limits before and after."""

    def propose_limit(self, limit: int, *, before: int) -> None:
        """Set this limit before a generation of training, once all are known to propose it.

        A process whose guard failed proposes nothing; the flag of the next batch tells the others.
        Nothing is set where the limit has been lowered since below `before`, the one that the
        proposal is about.
        """
        self._proposed = before, limit

    def restore_limit(self, trainer: Any, find: Callable[[], int]) -> int | None:
        """Set the limit of a checkpoint before the first rollout, the same on all processes.

        One collective: all of them have to call this. A process whose guard failed finds none, and
        none is set then.

        Args:
            trainer: whose limit it is.
            find: the limit in tokens as far as this process knows, 0 for none; may raise.

        Returns:
            What was set.
        """
        none = torch.zeros(1, dtype=torch.int64)
        found = self.contain(lambda: torch.tensor([int(find())]), like=none)
        mine = none if found is None else found
        limits = trainer.accelerator.gather(mine.to(trainer.accelerator.device))
        limit = int(limits.min())
        if limit <= 0:
            return None
        _raise_limit(trainer, limit, at_least=0)
        return limit

    @unswept  # for what cannot be guarded: one process alone has a guard, or nothing is measured
    def switch_off(self, reason: object) -> None:
        """Leave the trainer alone from now on. All processes have to do so together."""
        self._off = True
        _log_error("%s ERROR %s The guard is switched off.", PREFIX, reason)

    @outside_barrier
    def begin(self, trainer: Any) -> None:
        """A generation batch is about to be made."""
        self._gathered = None
        self._begun = not self._off
        if not self._begun:
            return
        # Not in `contain`: a guard that failed since all agreed must not be left behind.
        if self._agreed is not None and trainer.model.training:
            (before, limit), self._agreed = self._agreed, None
            _raise_limit(trainer, limit, at_least=before)
        self.contain(self._guard.begin, trainer)

    @outside_barrier
    def generated(self, trainer: Any, prompts: Sequence[Any], generated: tuple[Any, ...]) -> None:
        """TRL's `_generate` has returned `generated` for `prompts`: the one collective."""
        # Outside of a batch somebody else generates. The second call of one batch comes from a
        # wrapper around the wrapper.
        if not self._begun:
            return
        self._begun = False
        rows = self.contain(
            self._guard.describe, trainer, generated, like=failed_rows(len(prompts))
        )
        if rows is None:
            rows = failed_rows(len(prompts))
        device = trainer.accelerator.device
        self._gathered = trainer.accelerator.gather(rows.to(device, non_blocking=True))
        if self._proposed is not None:
            proposed, self._proposed = self._proposed, None
            # A process whose guard failed says 0. One more transfer, after a decision alone.
            if bool((self._gathered[:, Column.LIMIT] >= proposed[0]).all()):
                self._agreed = proposed
        self.contain(self._guard.take, self._gathered)

    @outside_barrier
    def rewarded(self, trainer: Any, rewards: Tensor) -> Tensor:
        """The rewards of all processes that TRL goes on with."""
        if self._gathered is None:
            return rewards
        guarded = self.contain(self._guard.guard_rewards, trainer, rewards, like=rewards)
        return rewards if guarded is None else guarded

    @outside_barrier
    def scored(self, trainer: Any, output: dict[str, Any]) -> dict[str, Any]:
        """The batch that TRL goes on with."""
        if self._begun:
            self._begun = False
            self.switch_off(
                f"{type(trainer).__name__} does not call TRL's `_generate`: its completions cannot "
                "be measured."
            )
        gathered, self._gathered = self._gathered, None
        if gathered is None:
            return output
        guarded = self.contain(self._guarded, trainer, output)
        if self.contain(self._guard.report, trainer) is not False:
            self._off |= bool(gathered[:, Column.FAILED].any())
        if self._off and not self._failed and trainer.accelerator.is_main_process:
            _log_error(
                "%s ERROR the guard of another process failed (its log has the traceback), so it "
                "is switched off on all of them. Training goes on as it would without it.",
                PREFIX,
            )
        return output if guarded is None else guarded

    def _guarded(self, trainer: Any, output: dict[str, Any]) -> dict[str, Any]:
        changes = self._guard.changes(trainer, output)
        for name, value in changes.items():
            if not _is_like(value, output.get(name, output["completion_mask"])):
                raise RuntimeError(f"{name} was changed to {value!r}")
        return {**output, **changes}

    @outside_barrier
    def contain(self, work: Callable[..., Any], *args: Any, like: Tensor | None = None) -> Any:
        """The result of `work`, an event of the trainer or a stage of a batch.

        None once the guard of this process has failed.
        """
        if self._failed:
            return None
        try:
            result = work(*args)
            if like is not None and not _is_like(result, like):
                raise RuntimeError(f"{work.__qualname__} returned {result!r}")
        except Exception:
            self._failed = True
            _log_error(
                "%s ERROR the guard failed and is switched off. Training goes on as it would "
                "without it. This is a bug of truncation-guard: please report it.",
                PREFIX,
                exc_info=True,
            )
            return None
        return result


@unswept  # one process alone would keep another limit
def _raise_limit(trainer: Any, limit: int, *, at_least: int) -> None:
    """Raise the limit, unless it is below `at_least` by now; never raises an error."""
    try:
        if (get_limit(trainer) or 0) >= at_least:
            raise_limit(trainer, limit)
    except Exception:
        _log_error("%s ERROR the limit could not be raised.", PREFIX, exc_info=True)


def _log_error(text: str, *args: object, exc_info: bool | None = None) -> None:
    with suppress(Exception):  # a handler of the user's may raise
        logger.error(text, *args, exc_info=exc_info)


def _is_like(result: Any, like: Tensor) -> bool:
    return (
        isinstance(result, torch.Tensor)
        and result.shape == like.shape
        and result.dtype == like.dtype
    )
