"""For the slow part of `processes/test_faults.py`."""

from support.distributed import scenario
from support.workers import faults


def scenarios() -> None:
    """All of them."""
    for name, work in faults.everything():
        scenario(name, work)
