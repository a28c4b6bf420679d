"""Marks for the tests that put a fault into every function a training calls.

They do nothing at run time. `tests/faults/test_every_function.py` finds the functions by watching
trainings; where one cannot be treated like the others, that stands beside its code, not in a list
in the test.
"""

from collections.abc import Callable
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])


def outside_barrier(function: _F) -> _F:
    """Mark what runs between the trainer and the fault barrier.

    Nobody catches a fault in here, so nothing in here may be able to fail. The test asks that
    these functions, and no others, run outside of the barrier.
    """
    return _marked(function, "outside")


def contains_faults(function: _F) -> _F:
    """Mark what catches the faults of all that it calls, and lets the guard go on."""
    return _marked(function, "contains")


def unswept(function: _F) -> _F:
    """Mark what gets no fault, nor anything that it calls.

    Either no training of the tests calls it, as it is for users, another backend or a finished run;
    or other tests put faults there. A comment at the mark says which.
    """
    return _marked(function, "unswept")


def _marked(function: _F, mark: str) -> _F:
    function.__dict__.setdefault("fault_marks", set()).add(mark)
    return function
