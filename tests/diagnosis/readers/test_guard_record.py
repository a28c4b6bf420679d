from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support import trl_logs

from truncation_guard.diagnosis.diagnose import diagnose
from truncation_guard.diagnosis.readers.guard_record import read_guard_record
from truncation_guard.diagnosis.run import LogEntry

START = {"kind": "start", "mode": "downweight", "limit": 8, "resumed_from_step": None}


def batch(
    step: int,
    ended: list[tuple[int, int]],
    cut: list[tuple[int, int]],
    split: str = "train",
    limit: int | None = 8,
    width: int = 1,
    **more: Any,
) -> dict[str, Any]:
    """A line as the guard writes it."""
    truncated, terminated = (sum(n for _, n in part) for part in (cut, ended))
    return {
        "kind": "batch",
        "split": split,
        "step": step,
        "batch": 0,
        "mode": "exclude",
        "limit": limit,
        "completions": truncated + terminated,
        "terminated": terminated,
        "truncated": truncated,
        "stopped": 0,
        "causes": {"limit": truncated, "context": 0, "tool": 0},
        "groups": 4,
        "groups_without_signal": 1,
        "reward": 0.25,
        "lengths": {"bin_width": width, "ended": ended, "cut": cut},
        **more,
    }


def record(folder: Path, *entries: Any) -> Path:
    text = "".join(f"{json.dumps(entry)}\n" for entry in entries)
    return trl_logs.write(folder / "truncation_guard.jsonl", text)


def test_a_batch_becomes_a_window_of_exact_figures(tmp_path: Path) -> None:
    causes = {"limit": 1, "context": 1, "tool": 2}
    line = batch(3, [(2, 3), (4, 1)], [(8, 4)], causes=causes, stopped=2)
    trace = read_guard_record(record(tmp_path, START, line))
    assert trace.training == [
        LogEntry(
            step=3,
            completions=8,
            truncated=0.5,
            elsewhere=0.375,
            stopped=0.25,
            mean_length=(2 * 3 + 4 + 8 * 4) / 8,
            max_length=8,
            ended_length=2.5,
            reward=0.25,
            silent_groups=0.25,
            limit=8,
        )
    ]
    assert trace.guarded
    assert (trace.mode, trace.limit, trace.limits) == ("exclude", 8, (8,))
    assert trace.warned is None
    assert trace.notes == []


def test_training_and_evaluation_are_told_apart_and_in_order(tmp_path: Path) -> None:
    path = record(
        tmp_path,
        START,
        batch(0, [(2, 4)], []),
        batch(1, [], [(8, 4)], "eval"),
        batch(1, [(3, 4)], [], groups_without_signal=None, reward=None),
    )
    trace = read_guard_record(path)
    assert [(w.step, w.truncated, w.ended_length) for w in trace.training] == [
        (0, 0.0, 2.0),
        (1, 0.0, 3.0),
    ]
    assert [(w.step, w.truncated, w.ended_length) for w in trace.evaluation] == [(1, 1.0, None)]
    assert trace.training[1].silent_groups is trace.training[1].reward is None


def test_of_several_runs_the_last_one_that_got_somewhere_counts(tmp_path: Path) -> None:
    path = record(
        tmp_path, START, batch(0, [(2, 4)], []), START, batch(0, [], [(8, 4)]), START, {"kind": "x"}
    )
    trace = read_guard_record(path)
    assert [w.truncated for w in trace.training] == [1.0]
    assert trace.notes == ["The record holds 2 runs; this is the last one."]


def test_an_evaluation_on_its_own_does_not_hide_the_training_before_it(tmp_path: Path) -> None:
    lines = [START, batch(0, [(2, 1)], [(8, 3)]), START, batch(0, [(2, 4)], [], "eval")]
    trace = read_guard_record(record(tmp_path, *lines))
    assert [w.truncated for w in trace.training] == [0.75]
    assert trace.evaluation == []
    assert trace.notes == ["The record holds 2 runs; this is the last one that trained."]
    newer = batch(0, [(2, 2)], [(8, 2)])
    trace = read_guard_record(record(tmp_path, *lines, START, newer))
    assert [w.truncated for w in trace.training] == [0.5]
    assert trace.notes == ["The record holds 3 runs; this is the last one."]


def test_a_resumed_run_counts_what_was_done_again_once(tmp_path: Path) -> None:
    again = START | {"resumed_from_step": 1}
    path = record(
        tmp_path,
        START,
        *(batch(n, [(2, 4)], []) for n in range(3)),
        again,
        *(batch(n, [], [(8, 4)]) for n in (1, 2, 3)),
    )
    assert [w.truncated for w in read_guard_record(path).training] == [0.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("more", "weight"),
    [({}, None), ({"truncated_weight": 0.5}, 0.5), ({"truncated_weight": "?"}, None)],
)
def test_the_weight_is_known_where_it_was_recorded(
    tmp_path: Path, more: dict[str, Any], weight: float | None
) -> None:
    path = record(tmp_path, START | more, batch(0, [(2, 4)], []))
    assert read_guard_record(path).truncated_weight == weight


def test_evaluations_alone_are_a_run_too(tmp_path: Path) -> None:
    trace = read_guard_record(record(tmp_path, START, batch(0, [(2, 4)], [], "eval")))
    assert trace.training == []
    assert (trace.mode, trace.limit, trace.sample) == ("downweight", 8, None)


def test_a_run_without_a_limit_has_none(tmp_path: Path) -> None:
    trace = read_guard_record(record(tmp_path, START, batch(0, [(2, 4)], [], limit=None, mode=3)))
    assert (trace.mode, trace.limit, trace.limits) == (None, None, ())


def test_the_sample_is_of_the_last_part_under_the_last_limit(tmp_path: Path) -> None:
    early = [batch(n, [], [(8, 600)]) for n in range(20)]
    late = [batch(20 + n, [(n + 1, 600)], [(16, 100)], limit=16) for n in range(10)]
    trace = read_guard_record(record(tmp_path, START, *early, *late))
    assert trace.sample is not None
    assert trace.sample.histograms == ({9: 600, 10: 600}, {16: 200})
    assert trace.limits == (8, 16)


def test_a_small_sample_reaches_further_back(tmp_path: Path) -> None:
    lines = [batch(n, [(n + 1, 100)], []) for n in range(10)]
    sample = read_guard_record(record(tmp_path, START, *lines)).sample
    assert sample is not None
    assert sample.histograms == (dict.fromkeys(range(5, 11), 100), {})


def test_the_bin_of_the_limit_is_taken_for_the_limit(tmp_path: Path) -> None:
    line = batch(0, [(4, 2)], [(12, 2)], limit=10, width=4)
    trace = read_guard_record(record(tmp_path, START, line))
    assert trace.training[0].max_length == 10
    assert trace.sample is not None
    assert trace.sample.histograms == ({4: 2}, {10: 2})


BROKEN = [
    {"kind": "batch", "split": "train", "step": 0, "batch": 0},
    batch(1, [], []),
    batch(2, [(2, 4)], [], causes=None),
    batch(3, [(2, 4)], [], groups=0),
    batch(4, [(2, 4)], [], lengths=5),
    batch(5, [(2, -4)], []),
    batch(6, [(2, 4)], [(8, 0.5)]),  # type: ignore[list-item]
]


def test_batches_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    trace = read_guard_record(record(tmp_path, START, *BROKEN, batch(7, [(2, 4)], [])))
    assert [w.step for w in trace.training] == [7]
    assert trace.notes == ["7 generation batches could not be read."]


def test_a_record_without_a_batch_that_can_be_read_is_refused(tmp_path: Path) -> None:
    path = record(tmp_path, START, *BROKEN)
    message = (
        f"{path} has 7 generation batches without their counts or lengths. Pass a record as a "
        "TruncationGuardCallback wrote it."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        read_guard_record(path)


@pytest.mark.parametrize("lines", [[], [START], ["torn", 5]])
def test_a_record_without_a_batch_is_refused(tmp_path: Path, lines: list[Any]) -> None:
    path = record(tmp_path, *lines)
    message = (
        f"{path} has no generation batch. Pass the record of a run that got to its first step."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        read_guard_record(path)


@pytest.mark.parametrize(
    "figures",
    [
        {"limit": 16.5},
        {"limit": "16"},
        {"limit": True},
        {"limit": 0},
        {"limit": 10**400},
        {"limit": float("nan")},
        {"limit": float("inf")},
        {"step": 10**20},
        {"truncated": 10**400},
        {"truncated": float("nan")},
        {"truncated": 9},
        {"truncated": -1},
        {"stopped": float("inf")},
        {"causes": {"context": float("nan"), "tool": 0}},
        {"groups": float("nan")},
        {"groups_without_signal": 5},
        {"groups_without_signal": -1},
        {"lengths": {"bin_width": 1, "ended": [[10**400, 1]], "cut": []}},
        {"lengths": {"bin_width": 1, "ended": [[2, 10**400]], "cut": []}},
        {"lengths": {"bin_width": "x", "ended": [[2, 1]], "cut": []}},
    ],
)
def test_numbers_that_no_run_has_cost_their_batch_alone(
    tmp_path: Path, figures: dict[str, Any]
) -> None:
    good, bad = batch(0, [(2, 4)], [(8, 4)]), batch(1, [(2, 4)], [(8, 4)]) | figures
    path = record(tmp_path, START, good, bad)
    trace = read_guard_record(path)
    assert [w.step for w in trace.training] == [0]
    assert trace.notes == ["1 generation batches could not be read."]
    json.dumps(diagnose(path).to_dict(), allow_nan=False)
    with pytest.raises(ValueError, match="without their counts or lengths"):
        read_guard_record(record(tmp_path, START, bad))


def test_a_whole_limit_is_one_however_it_is_written(tmp_path: Path) -> None:
    trace = read_guard_record(
        record(tmp_path, START, batch(0, [(2, 4)], [(16, 4)]) | {"limit": 16.0})
    )
    assert (trace.limit, trace.training[0].limit) == (16, 16)
    assert isinstance(trace.limit, int)


def test_a_reward_that_is_no_number_is_not_known(tmp_path: Path) -> None:
    trace = read_guard_record(record(tmp_path, START, batch(0, [(2, 4)], [], reward=float("nan"))))
    assert trace.training[0].reward is None


def test_lines_that_are_no_json_are_counted(tmp_path: Path) -> None:
    path = record(tmp_path, START, batch(0, [(2, 4)], []))
    with path.open("a") as file:
        file.write(
            '{"kind": "batch", "st\n\n' + "[" * 100_000 + "\n" + '{"kind": ' + "1" * 5000 + "}\n"
        )
    assert read_guard_record(path).notes == [
        "3 lines of the record are no JSON and were passed over."
    ]


@pytest.mark.parametrize("cut", [0, 4])
def test_a_record_without_a_limit_is_diagnosed(tmp_path: Path, cut: int) -> None:
    lines = [batch(n, [(2, 4)], [(8, cut)][: cut > 0], limit=None) for n in range(6)]
    diagnosis = diagnose(record(tmp_path, START, *lines))
    assert diagnosis.measures.limit.tokens == (8 if cut else None)
    assert diagnosis.measures.limit.assumed is bool(cut)
    assert diagnosis.measures.cut is not None
    assert diagnosis.measures.cut.overall == cut / (4 + cut)
