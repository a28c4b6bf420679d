"""`benchmarks/learning.py`: what its cache is keyed by, and what its report makes of results."""

from __future__ import annotations

import math
import multiprocessing
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")
sys.path.insert(0, BENCHMARKS)
import learning  # noqa: E402
import learning_report  # noqa: E402
import learning_task  # noqa: E402
from learning_cache import Cache  # noqa: E402

sys.path.remove(BENCHMARKS)

CELL = learning.Cell("restated", 0, 0.3, "exclude")


# --- the cache ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        learning.Cell("quickstart", 0, 0.3, "exclude"),
        learning.Cell("restated", 1, 0.3, "exclude"),
        learning.Cell("restated", 0, 0.6, "exclude"),
        learning.Cell("restated", 0, 0.3, "downweight"),
    ],
)
def test_another_cell_has_another_key(other: Any) -> None:
    assert other.key != CELL.key
    assert learning.Cell("restated", 0, 0.3, "exclude").key == CELL.key


def test_a_changed_setting_changes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {CELL.key}
    for where, name, value in (
        (learning.CONFIG, "learning_rate", 1e-3),
        (learning.ARMS, "exclude", learning.Arm(guard={"mode": "exclude", "window": 64})),
    ):
        with monkeypatch.context() as patch:
            patch.setitem(where, name, value)
            keys.add(CELL.key)
    for module, name, value in (
        (learning, "STEPS", 61),
        (learning, "TOKEN_BUDGET", 0.5),
        (learning, "VERSION", 0),
        (learning.sums, "TEACH_STEPS", 1),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            keys.add(CELL.key)
    assert len(keys) == 7


def test_results_outlive_a_line_that_was_cut_short(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "new")
    assert cache.results() == {}
    cache.add("a", {"value": 1})
    with (tmp_path / "new" / "results.jsonl").open("a") as file:
        file.write('{"key": "b", "val')
    cache.add("c", {"value": 3})
    assert {key: result["value"] for key, result in cache.results().items()} == {"a": 1, "c": 3}


def _hold(folder: Path, key: str, ready: Any) -> None:
    with Cache(folder).claim(key) as mine:
        ready.send(mine)
        time.sleep(600)


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Any]:
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=_hold, args=(tmp_path, "a", there))
    process.start()
    assert here.poll(30)
    assert here.recv() is True
    yield process
    process.kill()
    process.join()


def test_a_cell_is_worked_on_by_one_process_and_is_free_again_when_that_is_killed(
    holder: Any, tmp_path: Path
) -> None:
    cache = Cache(tmp_path)
    with cache.claim("a") as mine:
        assert not mine
    with cache.claim("b") as mine:
        assert mine
    holder.kill()
    holder.join()
    with cache.claim("a") as mine:
        assert mine
        cache.add("a", {})
    with cache.claim("a") as mine:
        assert not mine  # done


# --- the start ----------------------------------------------------------------------------------


def test_a_limit_cuts_the_share_that_it_is_to_cut() -> None:
    # Two groups of eight: of the one all need 10 tokens, of the other four 20 and four 30.
    start = learning_task.Start(None, [10] * 8 + [20, 30] * 4, {})
    assert [start.limit(share) for share in (0.0, 0.3, 0.6, 0.9)] == [30, 20, 10, 1]
    assert start.cut(20) == 4 / 16
    assert (start.mixed_groups(20), start.mixed_groups(10), start.mixed_groups(9)) == (0.5, 0, 0)


def test_an_answer_is_restated_half_of_the_time_and_is_right_all_the_same() -> None:
    chance = random.Random(0)
    texts = [learning_task.restated([7, 5, 9], chance) for _ in range(400)]
    short = "7+5=12;12+9=21;#21"
    assert set(texts) == {short, f"7+5+9;{short}"}
    assert 160 < texts.count(short) < 240


# --- the report ---------------------------------------------------------------------------------


def _result(arm: str, seed: int, accuracy: float, at_tokens: float | None) -> dict[str, Any]:
    result = {
        "task": "restated",
        "seed": seed,
        "share": 0.3,
        "arm": arm,
        "limit": 40 + seed,
        "cut": 0.31,
        "mixed_groups": 0.25,
        "before": {"accuracy": 0.4, "length": 30.0},
        "truncated": [0.3, 0.1],
        "steps": {"step": 60, "accuracy": accuracy, "length": 33.0},
        "cpu_seconds": 30.0,
        "versions": {"trl": "1.16.0"},
    }
    if at_tokens is not None:
        result["tokens"] = {"step": 50, "accuracy": at_tokens, "length": 33.0}
    return result


RESULTS = [
    _result("no guard", 0, 0.50, 0.45),
    _result("no guard", 1, 0.60, 0.55),
    _result("exclude", 0, 0.54, 0.45),
    _result("exclude", 1, 0.66, None),
]


def test_an_interval_is_students() -> None:
    # t(0.975, 1 degree of freedom) = 12.706; the standard error of 4 and 6 is 1.
    centre, half = learning_report.interval([4.0, 6.0])
    assert (centre, half) == (5.0, pytest.approx(12.706, abs=1e-3))
    assert learning_report.interval([4.0])[0] == 4.0
    assert all(math.isnan(value) for value in learning_report.interval([]))


def test_the_table_pairs_the_seeds_and_tells_who_did_not_reach_the_tokens() -> None:
    text = learning_report.write_report(RESULTS, steps=60)
    assert "Before the training: 40.0 ± 0.0 % right, 30.0 ± 0.0 tokens; 2 seeds." in text
    assert "Limit 40-41 tokens: cuts 31 % of the first rollouts, some but not all of 25 %" in text
    assert "| accuracy at equal steps (vs none) | cuts 31 % |" in text
    assert "| no guard | 55.0 |\n| exclude | 60.0 (+5.0 ± 12.7) |" in text
    # Differences of +4 and +6 points: 5.0 ± 12.7; at equal tokens one seed is left, with 0.
    assert (
        "| exclude | 60.0 ± 76.2 | +5.0 ± 12.7 | 45.0 (1 not reached) | +0.0 | 50 | 30 -> 10 "
        "| 33.0 ± 0.0 |" in text
    )
    assert "| no guard | 55.0 ± 63.5 |  | 50.0 ± 63.5 |  | 50 | 30 -> 10 | 33.0 ± 0.0 |" in text
    assert "4 runs, 2 minutes of CPU time" in text


def test_the_picture_is_drawn_where_some_cells_are_missing(tmp_path: Path) -> None:
    learning_report.draw(RESULTS[:3], tmp_path / "learning.png", steps=60)
    assert (tmp_path / "learning.png").read_bytes().startswith(b"\x89PNG")


# --- what is told of the stored results ---------------------------------------------------------

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def report() -> str:
    done = Cache(ROOT / "benchmarks" / "data" / "learning").results()
    cells = [
        learning.Cell(task, seed, share, arm)
        for task in learning_task.TEACHERS
        for seed in range(5)
        for share in learning.SHARES
        for arm in learning.ARMS
    ]
    return learning_report.write_report([done[cell.key] for cell in cells], steps=learning.STEPS)


def test_every_run_of_the_documented_tables_is_stored(report: str) -> None:
    assert (ROOT / "docs" / "learning.md").read_text(encoding="utf-8") == report


@pytest.mark.parametrize("readme", ["README.md", "README.zh-CN.md"])
def test_the_readmes_have_the_figures_of_the_report(report: str, readme: str) -> None:
    before_picture = (ROOT / readme).read_text(encoding="utf-8").split("](docs/learning.png)")[0]
    section = before_picture[before_picture.rindex("\n### ") :]
    rows = [line.split("|", 2)[2] for line in section.splitlines() if line.startswith("| `")]
    known = [line.split("|", 2)[2] for line in report.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 * 5  # of two tables, those whose arm is a name of the code
    assert set(rows) <= set(known)
