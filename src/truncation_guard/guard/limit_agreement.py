"""A new limit that all processes set before the same generation, or none of them does."""

from contextlib import suppress
from typing import Any, NamedTuple

from torch import Tensor

from truncation_guard.batch.completion_row import Column
from truncation_guard.logger import PREFIX, logger
from truncation_guard.marks_for_tests import outside_barrier, unswept
from truncation_guard.trainer.limit import get_limit, raise_limit


class _Raise(NamedTuple):
    before: int
    """The limit in tokens that the raise is about: a lower one is left alone."""
    after: int


class LimitAgreement:
    """Carries a raise of the limit from its proposal to the first generation that obeys it."""

    def __init__(self) -> None:
        self._proposed: _Raise | None = None
        self._agreed: _Raise | None = None

    def propose(self, limit: int, *, before: int) -> None:
        """Raise `before` to `limit`, once the next gathered rows show that all propose it.

        A process whose guard failed proposes nothing; its rows tell the others.
        """
        self._proposed = _Raise(before, limit)

    @outside_barrier
    def hear(self, gathered: Tensor) -> None:
        """Agree or not, from the rows of all processes: one more transfer, after a proposal."""
        if self._proposed is not None:
            proposed, self._proposed = self._proposed, None
            # The rows of a process whose guard failed say 0.
            if bool((gathered[:, Column.LIMIT] >= proposed.before).all()):
                self._agreed = proposed

    @outside_barrier
    def carry_out(self, trainer: Any) -> None:
        """Set the agreed limit before a generation of training. Raises nothing."""
        if self._agreed is not None and trainer.model.training:
            agreed, self._agreed = self._agreed, None
            _raise_limit(trainer, agreed.after, at_least=agreed.before)


def restore_limit(trainer: Any, found: Tensor) -> int | None:
    """Set the limit of a checkpoint on all processes, or on none: one collective.

    Args:
        trainer: the trainer that resumes.
        found: the limit in tokens as far as this process knows, 0 for none; shape (1,), int64.

    Returns:
        The limit that was set.
    """
    limits = trainer.accelerator.gather(found.to(trainer.accelerator.device))
    limit = int(limits.min())
    if limit <= 0:
        return None
    _raise_limit(trainer, limit, at_least=0)
    return limit


@unswept  # one process alone would keep another limit
def _raise_limit(trainer: Any, limit: int, *, at_least: int) -> None:
    """Raise the limit, unless it is below `at_least` by now. Raises no error."""
    try:
        if (get_limit(trainer) or 0) >= at_least:
            raise_limit(trainer, limit)
    except Exception:
        with suppress(Exception):  # a handler of the user's may raise
            logger.error("%s ERROR the limit could not be raised.", PREFIX, exc_info=True)
