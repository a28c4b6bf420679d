from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from torch.distributed import HashStore, TCPStore

from truncation_guard.trainer import processes

SOON = timedelta(milliseconds=200)
LATER = timedelta(seconds=20)


@pytest.fixture(params=["hash", "tcp"])
def join(request: pytest.FixtureRequest) -> Callable[[], Any]:
    """The store as one more process sees it, for both kinds that torch.distributed hands out."""
    if request.param == "hash":
        store = HashStore()
        return lambda: store
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    # A client of its own for each: one client sends one request after the other.
    return lambda: TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)


def test_processes_that_all_come_go_on(join: Callable[[], Any]) -> None:
    with ThreadPoolExecutor(3) as pool:
        meetings = [pool.submit(processes.meet, join(), 3, index, LATER) for index in range(3)]
        assert [meeting.result(timeout=30) for meeting in meetings] == [None] * 3


def test_a_single_process_has_nobody_to_wait_for(join: Callable[[], Any]) -> None:
    processes.meet(join(), 1, 0, SOON)


def test_a_process_without_a_guard_is_reported_to_the_one_that_has_one(
    join: Callable[[], Any],
) -> None:
    began = time.monotonic()
    with pytest.raises(RuntimeError) as refused:
        processes.meet(join(), 2, 1, SOON)
    assert time.monotonic() - began < 10
    assert str(refused.value) == (
        "TruncationGuardCallback on process 1 waited 0.2 s for the guards of the other "
        "processes (2 in all): without them it would wait for ever. Add it on every process. "
        "Best give it to the trainer's `callbacks`."
    )


def test_two_of_three_are_not_enough(join: Callable[[], Any]) -> None:
    with ThreadPoolExecutor(2) as pool:
        meetings = [pool.submit(processes.meet, join(), 3, index, SOON) for index in (0, 2)]
        errors = [meeting.exception(timeout=30) for meeting in meetings]
    assert [type(error) for error in errors] == [RuntimeError, RuntimeError]


def test_who_came_to_the_last_meeting_has_not_come_to_this_one(join: Callable[[], Any]) -> None:
    with ThreadPoolExecutor(2) as pool:
        meetings = [pool.submit(processes.meet, join(), 2, index, LATER) for index in range(2)]
        assert [meeting.result(timeout=30) for meeting in meetings] == [None] * 2
    with pytest.raises(
        RuntimeError, match=r"on process 0 waited 0\.2 s for the guards of the other processes"
    ):
        processes.meet(join(), 2, 0, SOON)


def test_a_process_that_comes_late_does_not_believe_that_all_are_here(
    join: Callable[[], Any],
) -> None:
    """The first has given up by then; the late one would wait for it in a collective."""
    with pytest.raises(
        RuntimeError, match=r"on process 0 waited 0\.2 s for the guards of the other processes"
    ):
        processes.meet(join(), 2, 0, SOON)
    with pytest.raises(
        RuntimeError, match=r"on process 1 waited 0\.2 s for the guards of the other processes"
    ):
        processes.meet(join(), 2, 1, SOON)


def test_the_last_to_come_is_refused_where_all_others_have_given_up(
    join: Callable[[], Any],
) -> None:
    with ThreadPoolExecutor(2) as pool:
        meetings = [pool.submit(processes.meet, join(), 3, index, SOON) for index in (0, 2)]
        errors = [meeting.exception(timeout=30) for meeting in meetings]
    assert [type(error) for error in errors] == [RuntimeError, RuntimeError]
    store = join()
    with pytest.raises(RuntimeError) as refused:
        processes.meet(store, 3, 1, SOON)
    assert str(refused.value) == (
        "TruncationGuardCallback on process 1 waited 0.2 s for the guards of the other "
        "processes (3 in all): without them it would wait for ever. Add it on every process. "
        "Best give it to the trainer's `callbacks`."
    )


def test_a_meeting_that_failed_does_not_count(join: Callable[[], Any]) -> None:
    """The process that had no guard then has one now, and knows of no meeting."""
    with pytest.raises(
        RuntimeError, match=r"on process 0 waited 0\.2 s for the guards of the other processes"
    ):
        processes.meet(join(), 2, 0, SOON)
    with ThreadPoolExecutor(2) as pool:
        meetings = [pool.submit(processes.meet, join(), 2, index, LATER) for index in range(2)]
        assert [meeting.result(timeout=30) for meeting in meetings] == [None] * 2


def test_a_process_that_comes_within_the_time_is_waited_for(join: Callable[[], Any]) -> None:
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(processes.meet, join(), 2, 0, LATER)
        time.sleep(0.3)
        assert not first.done()
        processes.meet(join(), 2, 1, LATER)
        assert first.result(timeout=30) is None


def test_meetings_are_counted_on() -> None:
    store, keys = HashStore(), [0]
    for _ in range(3):
        processes.meet(store, 1, 0, SOON)
        keys.append(store.num_keys())
    assert keys == sorted(set(keys))


def test_one_who_announced_himself_is_not_waited_for(join: Callable[[], Any]) -> None:
    """However long it takes that process to come: a tracker may be set up there first."""
    processes.announce(join(), 1)
    processes.meet(join(), 2, 0, SOON)
    processes.meet(join(), 2, 1, SOON)


def test_an_announcement_holds_for_one_meeting(join: Callable[[], Any]) -> None:
    """The trainer after that may have no guard on the other process."""
    processes.announce(join(), 1)
    processes.meet(join(), 2, 0, SOON)
    with pytest.raises(RuntimeError, match=r"on process 0 waited 0\.2 s"):
        processes.meet(join(), 2, 0, SOON)


def test_one_who_comes_at_the_last_moment_is_not_left_alone() -> None:
    """It counts on the key that this process has not taken back yet when its wait is over."""

    class JustMissed(dict):
        def add(self, key: str, value: int) -> int:
            self[key] = self.get(key, 0) + value
            return self[key]

        def set(self, key: str, value: str) -> None:
            self[key] = value

        def wait(self, keys: list[str], timeout: timedelta) -> None:
            self["truncation_guard/0/1"] = "here"
            raise RuntimeError("timeout")

        def delete_key(self, key: str) -> None:
            del self[key]

        def check(self, keys: list[str]) -> bool:
            return all(key in self for key in keys)

    store = JustMissed()
    processes.meet(store, 2, 0, SOON)
    assert store == {
        "truncation_guard/0/0": "here",
        "truncation_guard/0/1": "here",
        "truncation_guard/held/0": 1,
    }


def test_how_long_to_wait_must_be_said() -> None:
    """A test that forgot it would wait for the design's 30 seconds."""
    with pytest.raises(TypeError, match="timeout"):
        processes.meet(HashStore(), 1, 0)  # type: ignore[call-arg]


def test_the_others_are_given_30_seconds_by_the_design() -> None:
    assert timedelta(seconds=30) == processes.TIMEOUT
