"""Makes sure that every process has a guard before one of them waits in a collective.

The one idea: a process without a guard cannot answer, so the question is put to the store of
torch.distributed, where waiting ends.
"""

from datetime import timedelta
from typing import Any

TIMEOUT = timedelta(seconds=30)
"""Processes begin a training together: preparing the model is a collective."""


def meet(store: Any, num_processes: int, process_index: int, timeout: timedelta) -> None:
    """Wait for the guards of the other processes.

    Args:
        store: torch.distributed's store.
        num_processes: processes that take part in the training.
        process_index: this one's number.
        timeout: how long to wait, twice at most.

    Raises:
        RuntimeError: if one of them did not come.
    """
    # Processes run the same program, so after the same number of meetings the next is one and the
    # same. One that failed does not count: the processes without a guard know nothing of it.
    held = f"truncation_guard/held/{process_index}"
    meeting = store.add(held, 0)
    said: list[str] = []
    # Who did not meet the others in time says nothing in the second round, so that one who came
    # late does not believe that all are here.
    for word in ("here", "ready"):
        keys = [f"truncation_guard/{meeting}/{word}/{index}" for index in range(num_processes)]
        said.append(keys[process_index])
        store.set(keys[process_index], "1")
        try:
            store.wait(keys, timeout)
        except Exception as error:
            for key in said:
                store.delete_key(key)
            raise RuntimeError(
                f"TruncationGuardCallback was added on process {process_index}, but not on all "
                f"{num_processes} processes: it would wait for the others for ever. Add it on "
                "every process."
            ) from error
    store.add(held, 1)
