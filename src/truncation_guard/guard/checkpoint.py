"""What a checkpoint holds of the guard, and the way back."""

import json
from typing import Any, cast

from truncation_guard.logger import PREFIX, logger
from truncation_guard.marks_for_tests import outside_barrier
from truncation_guard.reporting.reporter import Reporter


def plain_state(reporter: Reporter) -> dict[str, Any]:
    """Windows and cool-downs as a checkpoint gives them back.

    Raises:
        TypeError: for a value that JSON cannot hold, which must not surface in the save.
    """
    return cast(dict[str, Any], json.loads(json.dumps(reporter.state())))


@outside_barrier
def callback_state(saved: dict[str, Any] | None) -> dict[str, Any]:
    """The `ExportableState` of the callback, from `plain_state`; None: nothing is known.

    It holds no options: those of the script that resumes win, whatever its version.
    """
    return {"args": {}, "attributes": {"restored_state": saved or {"monitor": None}}}


@outside_barrier
def be_savable(trainer: Any, callback: object, state: dict[str, Any]) -> None:
    """Enter the callback into the trainer's state, unless it is there.

    Transformers (4.57 and 5.24) raises a KeyError at a save where it does not find the name: after
    a resume from a checkpoint without a guard, or where the guard came during the training.
    """
    states = cast(dict[str, Any], trainer.state.stateful_callbacks)
    states.setdefault(type(callback).__name__, state)


def restore(reporter: Reporter, saved: Any, entry: Any) -> None:
    """Continue from a checkpoint.

    Args:
        reporter: takes the windows and cool-downs.
        saved: the state that transformers put into a callback it rebuilt; None without one.
        entry: the callback's entry in the checkpoint, for all other resumes; None without one.
    """
    if saved is None and entry is not None:
        try:
            saved = entry["attributes"]["restored_state"]
        except (LookupError, TypeError):
            saved = ()  # nothing in it can be restored
    if saved is None:
        return
    if lost := reporter.load_state(saved):
        logger.warning(
            "%s the guard's state in the checkpoint is damaged: it does not know %s any more",
            PREFIX,
            " nor ".join(lost),
        )
