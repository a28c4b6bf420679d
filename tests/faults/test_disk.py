"""A record that cannot be written costs one message and nothing else."""

from __future__ import annotations

import errno
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.faults import courses

from truncation_guard import record
from truncation_guard.record import FILE_NAME, read_record

PLACES: dict[str, Callable[[Path], Any]] = {
    "a full disk": lambda path: path.symlink_to("/dev/full"),
    "a file that even root cannot write": lambda path: path.symlink_to("/proc/version"),
    "a folder": lambda path: path.mkdir(),
    "a link to nowhere": lambda path: path.symlink_to(path.parent / "missing" / "file"),
}


@pytest.fixture(scope="module")
def on_a_good_disk(tmp_path_factory: pytest.TempPathFactory) -> courses.Outcome:
    return courses.run(tmp_path_factory.mktemp("good"))


def check(
    found: courses.Outcome, good: courses.Outcome, caplog: pytest.LogCaptureFixture, why: str
) -> None:
    assert (found.steps, found.failed_in, found.errors) == (courses.BATCHES, [], [])
    assert found.limits_and_weights == good.limits_and_weights
    (said,) = [r.getMessage() for r in caplog.records if "the record is off" in r.getMessage()]
    assert why in said


@pytest.mark.parametrize("place", PLACES)
def test_from_the_beginning(
    tmp_path: Path,
    on_a_good_disk: courses.Outcome,
    caplog: pytest.LogCaptureFixture,
    place: str,
) -> None:
    PLACES[place](tmp_path / FILE_NAME)
    found = courses.run(tmp_path)
    check(found, on_a_good_disk, caplog, "[Errno ")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("after", [1, 3])
def test_on_the_way(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    on_a_good_disk: courses.Outcome,
    caplog: pytest.LogCaptureFixture,
    number: int,
    after: int,
) -> None:
    append, calls = record.append, []

    def fails(path: Path, entry: Any) -> None:
        calls.append(entry)
        if len(calls) > after:
            raise OSError(number, "injected")
        append(path, entry)

    monkeypatch.setattr(record, "append", fails)
    found = courses.run(tmp_path)
    check(found, on_a_good_disk, caplog, f"[Errno {number}] injected")
    assert len(calls) == after + 1  # it is not tried again
    assert len((tmp_path / FILE_NAME).read_text().splitlines()) == after


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file of this process may get larger; Python ignores the signal and raises."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.slow
def test_in_the_middle_of_a_line(
    tmp_path: Path, on_a_good_disk: courses.Outcome, caplog: pytest.LogCaptureFixture
) -> None:
    """What was whole stays, and the next training on a disk with room is recorded."""
    path, size = tmp_path / FILE_NAME, 2**18
    courses.run(tmp_path)
    length = len(path.read_bytes().splitlines()[-2])
    path.write_bytes(b"\n" * (size - path.stat().st_size - 2 * length) + path.read_bytes())
    (first,) = read_record(path)
    with largest_file(size):
        found = courses.run(tmp_path)
    check(found, on_a_good_disk, caplog, "[Errno 27] File too large")
    assert path.stat().st_size == size  # a torn line fills it up
    assert not path.read_bytes().endswith(b"\n")
    courses.run(tmp_path)
    runs = read_record(path)
    assert runs[0] == first
    assert [run.end is not None for run in runs] == [True, False, True]
    assert len(runs[1].batches) == 1
    assert len(runs[2].batches) == courses.BATCHES
