"""Makes sure that every process has a guard before one of them waits in a collective.

A process without a guard cannot answer, so the question is put to the store of torch.distributed,
where waiting ends.
"""

from datetime import timedelta
from typing import Any

import torch

TIMEOUT = timedelta(seconds=30)
"""For the guards that were not there when their trainer was built: those have announced themselves
long before, and a process that is busy (with its tracker's set-up, say) is not taken for one
without a guard."""


def announce_guard(trainer: Any) -> None:
    """Say to the other processes of this trainer that this one has a guard."""
    store = _distributed_store()
    if store is not None and trainer.accelerator.num_processes > 1:
        announce(store, trainer.accelerator.process_index)


def meet_guards(trainer: Any) -> None:
    """Make sure that every process of this trainer has a guard.

    Raises:
        RuntimeError: if one has none.
    """
    store, accelerator = _distributed_store(), trainer.accelerator
    if store is not None and accelerator.num_processes > 1:
        meet(store, accelerator.num_processes, accelerator.process_index, TIMEOUT)


def announce(store: Any, process_index: int) -> None:
    """Say to the other processes that this one has a guard.

    Args:
        store: torch.distributed's store.
        process_index: this process's number.
    """
    store.set(_key(store, process_index, process_index), "here")


def meet(store: Any, num_processes: int, process_index: int, timeout: timedelta) -> None:
    """Wait for the guards of the other processes.

    Args:
        store: torch.distributed's store.
        num_processes: processes that take part in the training.
        process_index: this one's number.
        timeout: how long to wait for those that have not announced themselves.

    Raises:
        RuntimeError: if one of them did not come.
    """
    announce(store, process_index)
    keys = [_key(store, process_index, index) for index in range(num_processes)]
    others = [key for index, key in enumerate(keys) if index != process_index]
    try:
        store.wait(keys, timeout)
    except Exception as error:
        # Who comes later must not count on this process; who came just now already does.
        store.delete_key(keys[process_index])
        if not store.check(others):
            seconds = timeout.total_seconds()
            raise RuntimeError(
                f"TruncationGuardCallback on process {process_index} waited {seconds:g} s for the "
                f"guards of the other processes ({num_processes} in all): without them it would "
                "wait for ever. Add it on every process. Best give it to the trainer's `callbacks`."
            ) from error
        announce(store, process_index)
    store.add(_held_key(process_index), 1)


def _key(store: Any, process_index: int, other: int) -> str:
    # Processes run the same program, so after the same number of meetings the next is one and the
    # same. One that failed does not count: the processes without a guard know nothing of it.
    return f"truncation_guard/{store.add(_held_key(process_index), 0)}/{other}"


def _held_key(process_index: int) -> str:
    return f"truncation_guard/held/{process_index}"


def _distributed_store() -> Any | None:
    """The key-value store by which torch.distributed's processes found each other."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    # torch has no public way to it (2.13).
    return torch.distributed.distributed_c10d._get_default_store()
