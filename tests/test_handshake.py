from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from torch.distributed import HashStore, TCPStore

from truncation_guard import handshake

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
        meetings = [pool.submit(handshake.meet, join(), 3, index, LATER) for index in range(3)]
        assert [meeting.result(timeout=30) for meeting in meetings] == [None] * 3


def test_a_single_process_has_nobody_to_wait_for(join: Callable[[], Any]) -> None:
    handshake.meet(join(), 1, 0, SOON)


def test_a_process_without_a_guard_is_reported_to_the_one_that_has_one(
    join: Callable[[], Any],
) -> None:
    began = time.monotonic()
    with pytest.raises(RuntimeError) as refused:
        handshake.meet(join(), 2, 1, SOON)
    assert time.monotonic() - began < 10
    assert str(refused.value) == (
        "TruncationGuardCallback was added on process 1, but not on all 2 processes: it would wait "
        "for the others for ever. Add it on every process."
    )


def test_two_of_three_are_not_enough(join: Callable[[], Any]) -> None:
    with ThreadPoolExecutor(2) as pool:
        meetings = [pool.submit(handshake.meet, join(), 3, index, SOON) for index in (0, 2)]
        errors = [meeting.exception(timeout=30) for meeting in meetings]
    assert [type(error) for error in errors] == [RuntimeError, RuntimeError]


def test_who_came_to_the_last_meeting_has_not_come_to_this_one(join: Callable[[], Any]) -> None:
    with ThreadPoolExecutor(2) as pool:
        meetings = [pool.submit(handshake.meet, join(), 2, index, LATER) for index in range(2)]
        assert [meeting.result(timeout=30) for meeting in meetings] == [None] * 2
    with pytest.raises(RuntimeError, match="on process 0, but not on all 2 processes"):
        handshake.meet(join(), 2, 0, SOON)


def test_a_process_that_comes_late_does_not_believe_that_all_are_here(
    join: Callable[[], Any],
) -> None:
    """The first has given up by then; the late one would wait for it in a collective."""
    with pytest.raises(RuntimeError, match="on process 0, but not on all 2 processes"):
        handshake.meet(join(), 2, 0, SOON)
    with pytest.raises(RuntimeError, match="on process 1, but not on all 2 processes"):
        handshake.meet(join(), 2, 1, SOON)


def test_the_last_to_come_is_refused_where_all_others_have_given_up(
    join: Callable[[], Any],
) -> None:
    with ThreadPoolExecutor(2) as pool:
        meetings = [pool.submit(handshake.meet, join(), 3, index, SOON) for index in (0, 2)]
        errors = [meeting.exception(timeout=30) for meeting in meetings]
    assert [type(error) for error in errors] == [RuntimeError, RuntimeError]
    store = join()
    with pytest.raises(RuntimeError) as refused:
        handshake.meet(store, 3, 1, SOON)
    assert str(refused.value) == (
        "TruncationGuardCallback was added on process 1, but not on all 3 processes: it would wait "
        "for the others for ever. Add it on every process."
    )


def test_a_meeting_that_failed_does_not_count(join: Callable[[], Any]) -> None:
    """The process that had no guard then has one now, and knows of no meeting."""
    with pytest.raises(RuntimeError, match="on process 0, but not on all 2 processes"):
        handshake.meet(join(), 2, 0, SOON)
    with ThreadPoolExecutor(2) as pool:
        meetings = [pool.submit(handshake.meet, join(), 2, index, LATER) for index in range(2)]
        assert [meeting.result(timeout=30) for meeting in meetings] == [None] * 2


def test_a_process_that_comes_within_the_time_is_waited_for(join: Callable[[], Any]) -> None:
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(handshake.meet, join(), 2, 0, LATER)
        time.sleep(0.3)
        assert not first.done()
        handshake.meet(join(), 2, 1, LATER)
        assert first.result(timeout=30) is None


def test_meetings_are_counted_on() -> None:
    store, keys = HashStore(), [0]
    for _ in range(3):
        handshake.meet(store, 1, 0, SOON)
        keys.append(store.num_keys())
    assert keys == sorted(set(keys))


def test_each_round_waits_for_every_process_as_long_as_told() -> None:
    asked: list[Any] = []

    class Recorded:
        def add(self, key: str, value: int) -> int:
            return 7 + value

        def set(self, key: str, value: str) -> None:
            assert value
            asked.append(key)

        def wait(self, keys: list[str], timeout: timedelta) -> None:
            asked.append((keys, timeout))

    handshake.meet(Recorded(), 3, 1, SOON)
    here = [f"truncation_guard/7/here/{index}" for index in range(3)]
    ready = [f"truncation_guard/7/ready/{index}" for index in range(3)]
    assert asked == [here[1], (here, SOON), ready[1], (ready, SOON)]


def test_how_long_to_wait_must_be_said() -> None:
    """A test that forgot it would wait for the design's 30 seconds."""
    with pytest.raises(TypeError, match="timeout"):
        handshake.meet(HashStore(), 1, 0)  # type: ignore[call-arg]


def test_the_others_are_given_30_seconds_by_the_design() -> None:
    assert timedelta(seconds=30) == handshake.TIMEOUT
