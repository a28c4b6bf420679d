"""Two and four processes count, decide and train like one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import tiny
from support.distributed import Launch, launch
from support.faults import courses

from truncation_guard.record import FILE_NAME, read_record

COURSES: dict[str, dict[str, Any]] = {
    "everything": {},
    "one-sided": {"batches": courses.ONE_SIDED},
}


@pytest.fixture(scope="module")
def four_processes(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    return launch("together.py", 4, tmp_path_factory.mktemp("four"), "layouts")


@pytest.fixture(
    scope="module",
    params=["two_processes", pytest.param("four_processes", marks=pytest.mark.slow)],
    ids=["two", "four"],
)
def started(request: pytest.FixtureRequest) -> Launch:
    return request.getfixturevalue(request.param).part("layouts")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """One process: its outcome and its record."""
    found = {}
    for name, arguments in COURSES.items():
        folder = tmp_path_factory.mktemp("alone")
        found[name] = courses.run(folder, **arguments), batches(folder)
    return found.__getitem__


def batches(folder: Path) -> list[dict[str, Any]]:
    (run,) = read_record(folder / FILE_NAME)
    return list(run.batches.values())


@pytest.mark.parametrize("course", COURSES)
def test_all_count_and_train_like_one(
    started: Launch, alone: Callable[[str], Any], course: str
) -> None:
    """The raise of the limit included."""
    expected, recorded = alone(course)
    ranks = started.of(course)
    assert {rank["weights"] for rank in ranks} == {ranks[0]["weights"]}
    for rank in ranks:
        assert rank["limits"] == expected.limits
        assert rank["steps"] == expected.steps
        assert rank["tracebacks"] == 0
    for found, one in zip(batches(started.folder / course), recorded, strict=True):
        assert found == one | {"reward": pytest.approx(one["reward"])}
    weights = torch.load(started.folder / f"{course}.pt")
    for found, one in zip(weights, expected.before[-1][0], strict=True):
        torch.testing.assert_close(found, one, rtol=1e-4, atol=1e-6)


def test_the_limit_is_raised_and_one_process_is_cut_off_altogether(
    alone: Callable[[str], Any],
) -> None:
    """What the test above is about."""
    assert len(set(alone("everything")[0].limits)) == 2
    share = courses.ROWS // 4
    ends = [row[-1] == tiny.EOS for row in courses.ONE_SIDED[0][1]]
    assert [any(ends[i : i + share]) for i in range(0, courses.ROWS, share)] == [True] * 3 + [False]


@pytest.mark.parametrize("stage", ["generated", "rewarded"])
def test_a_fault_on_the_last_process_switches_all_of_them_off(started: Launch, stage: str) -> None:
    ranks = started.of(f"{stage} fails")
    assert {rank["weights"] for rank in ranks} == {ranks[0]["weights"]}
    assert ranks[0]["weights"] != started.of("everything")[0]["weights"]
    assert [rank["tracebacks"] for rank in ranks] == [0] * (len(ranks) - 1) + [1]
    assert {tuple(rank["limits"]) for rank in ranks} == {(8, 8, 8, 8)}
    assert {rank["steps"] for rank in ranks} == {courses.BATCHES}


def test_uneven_last_batches_are_counted_as_they_are(started: Launch) -> None:
    """Seven prompts in batches of three, and five in evaluation, against a slow loop."""
    ranks = started.of("uneven")
    record = ranks[0]["record"]
    assert {entry["split"] for entry in record} == {"train", "eval"}
    assert len(record) == len(ranks[0]["rows"]) > 4
    for index, entry in enumerate(record):
        rows = [row for rank in ranks for row in rank["rows"][index]]
        cut = [len(row) >= tiny.LIMIT and row[-1] != tiny.EOS for row in rows]
        groups = [cut[first : first + 4] for first in range(0, len(cut), 4)]
        expected = {
            "completions": len(rows),
            "truncated": sum(cut),
            "groups": len(groups),
            "groups_truncated": sum(map(any, groups)),
            "groups_all_truncated": sum(map(all, groups)),
            "groups_one_survivor": sum(sum(group) == 3 for group in groups),
        }
        assert entry | expected == entry
