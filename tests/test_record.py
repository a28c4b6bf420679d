from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.batches import batch, groups

from truncation_guard.batch.counts import BatchCounts
from truncation_guard.record import (
    FILE_NAME,
    append,
    batch_entry,
    end_entry,
    read_record,
    start_entry,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / FILE_NAME


def write(
    path: Path, step: int, number: int = 0, split: str = "train", truncated: int = 0
) -> dict[str, Any]:
    entry = batch_entry(batch(truncated, step=step, training=split == "train"), "exclude", number)
    append(path, entry)
    return entry


def keys(run: Any) -> list[tuple[str, int, int]]:
    return sorted(run.batches)


def strict(text: str) -> Any:
    """Parse JSON as other languages do: NaN and Infinity are none of it."""

    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


# --- what a line holds --------------------------------------------------------------------------


def test_the_file_has_the_name_that_the_documentation_gives() -> None:
    assert FILE_NAME == "truncation_guard.jsonl"


def test_the_line_that_opens_a_training() -> None:
    assert start_entry("downweight", 256, None, 0.5) == {
        "kind": "start",
        "mode": "downweight",
        "truncated_weight": 0.5,
        "limit": 256,
        "resumed_from_step": None,
    }
    assert start_entry("observe", None, 40)["resumed_from_step"] == 40


def test_the_line_of_a_generation_batch() -> None:
    counts = batch(
        8,
        of=32,
        step=3,
        ended={100: 20, 200: 4},
        cut={256: 7, 30: 1},
        causes={"limit": 6, "context": 1, "tool": 1},
        stopped=2,
        stopped_unasked=1,
        groups=groups(8, truncated=4, all_truncated=1, one_survivor=2, worst=4, without_signal=3),
        reward=0.25,
    )
    assert batch_entry(counts, "exclude", 1) == {
        "kind": "batch",
        "split": "train",
        "step": 3,
        "batch": 1,
        "mode": "exclude",
        "limit": 256,
        "completions": 32,
        "terminated": 22,
        "truncated": 8,
        "stopped": 2,
        "causes": {"limit": 6, "context": 1, "tool": 1},
        "groups": 8,
        "groups_truncated": 4,
        "groups_all_truncated": 1,
        "groups_one_survivor": 2,
        "groups_without_signal": 3,
        "reward": 0.25,
        # 24 of 32 ended, and the one that was cut at 30 may belong behind them.
        "quantiles": {"p50": 100, "p75": 200, "p90": None, "p95": None, "p99": None},
        "lengths": {
            "bin_width": 1,
            "ended": [(100, 20), (200, 4)],
            "cut": [(30, 1), (256, 7)],
        },
    }


def test_the_line_of_an_evaluation_batch_says_so() -> None:
    assert batch_entry(batch(training=False), "observe", 0)["split"] == "eval"


def test_the_line_that_closes_a_training() -> None:
    total = batch(8, of=96, stopped=3)
    assert end_entry(total, 12) == {
        "kind": "end",
        "step": 12,
        "completions": 96,
        "truncated": 8,
        "stopped": 3,
        "quantiles": {"p50": 100, "p75": 100, "p90": 100, "p95": None, "p99": None},
        "lengths": {"bin_width": 1, "ended": [(100, 88)], "cut": [(256, 8)]},
    }


def test_what_is_not_known_is_null_and_nothing_is_ever_nan(path: Path) -> None:
    nothing_known = batch(32, limit=None, groups=groups(without_signal=None))
    append(path, start_entry("observe", None, None))
    append(path, batch_entry(nothing_known, "observe", 0))
    append(path, end_entry(nothing_known, 1))
    start, entry, end = map(strict, path.read_text().splitlines())
    assert start["limit"] is None
    assert (entry["limit"], entry["reward"], entry["groups_without_signal"]) == (None, None, None)
    assert set(entry["quantiles"].values()) == set(end["quantiles"].values()) == {None}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_json_does_not_know_is_refused_before_the_file_is_touched(
    path: Path, value: float
) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        append(path, batch_entry(batch(reward=value), "observe", 0))
    assert not path.exists()


# --- the histogram ------------------------------------------------------------------------------


def check_histogram(counts: BatchCounts) -> int:
    """Every completion is in the bin of its length, and there are no more bins than needed."""
    lengths = batch_entry(counts, "observe", 0)["lengths"]
    width: int = lengths["bin_width"]
    finished, truncated = counts.lengths.finished_at, counts.lengths.truncated_at
    for name, exact in (("ended", finished), ("cut", truncated)):
        expected: Counter[int] = Counter()
        for length, number in exact.items():
            upper_edge = next(edge for edge in range(length, length + width) if edge % width == 0)
            expected[upper_edge] += number
        assert lengths[name] == sorted(expected.items())
        assert sum(number for _, number in lengths[name]) == sum(exact.values())
    assert len({edge for name in ("ended", "cut") for edge, _ in lengths[name]}) <= 256
    if width > 1:
        half = width // 2
        assert len({(n + half - 1) // half for n in [*finished, *truncated]}) > 256
        assert width.bit_count() == 1
    return width


@pytest.mark.parametrize(
    ("ended", "cut", "width"),
    [
        (range(1, 257), [], 1),
        (range(1, 258), [], 2),
        (range(1, 256), [5000], 1),
        (range(1, 257), [5000], 2),
        (range(1, 257), [256], 1),  # 256 lengths, one of them of both kinds
        (range(1, 513), [], 2),
        (range(1, 514), [], 4),
        (range(0, 2048), [2048], 16),
        (range(100, 25_800, 100), [], 128),
        ([0], [0], 1),
    ],
)
def test_up_to_256_lengths_are_exact_and_more_are_binned_and_it_says_so(
    ended: Any, cut: Any, width: int
) -> None:
    counts = batch(ended=dict.fromkeys(ended, 3), cut=dict.fromkeys(cut, 2))
    assert check_histogram(counts) == width


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10**6), number=st.integers(1, 900), longest=st.integers(900, 40_000))
def test_no_completion_is_lost_by_binning(seed: int, number: int, longest: int) -> None:
    chance = random.Random(seed)
    lengths = chance.sample(range(longest), number)
    ended = {length: chance.randint(1, 5) for length in lengths if chance.random() < 0.8}
    cut = {length: chance.randint(1, 5) for length in lengths if chance.random() < 0.3}
    check_histogram(batch(ended=ended or {1: 1}, cut=cut))


@pytest.mark.parametrize(
    ("ended", "cut", "quantiles"),
    [
        ({100: 75, 200: 25}, {}, [100, 100, 200, 200, 200]),
        ({100: 75}, {256: 25}, [100, 100, None, None, None]),
        ({100: 74}, {256: 26}, [100, None, None, None, None]),
        # A context window cut 5 at 30 tokens: they are taken to be like the others past 30.
        ({20: 50, 100: 45}, {30: 5}, [20, 100, 100, 100, 100]),
        ({20: 49, 100: 46}, {30: 5}, [100, 100, 100, 100, 100]),
        ({20: 50, 100: 42, 200: 3}, {30: 5}, [20, 100, 100, 100, 200]),
        ({20: 49, 100: 51}, {}, [100, 100, 100, 100, 100]),
        ({}, {256: 100}, [None] * 5),
    ],
)
def test_quantiles_are_null_where_they_depend_on_the_lengths_behind_the_cuts(
    ended: dict[int, int], cut: dict[int, int], quantiles: list[int | None]
) -> None:
    counts = batch(ended=ended, cut=cut)
    expected = dict(zip(["p50", "p75", "p90", "p95", "p99"], quantiles, strict=True))
    assert batch_entry(counts, "observe", 0)["quantiles"] == expected
    assert end_entry(counts, 1)["quantiles"] == expected


def test_quantiles_stay_exact_where_the_histogram_is_binned() -> None:
    entry = batch_entry(batch(ended=dict.fromkeys(range(1, 1001), 1)), "observe", 0)
    assert entry["lengths"]["bin_width"] == 4
    assert entry["quantiles"] == {"p50": 500, "p75": 750, "p90": 900, "p95": 950, "p99": 990}


# --- writing ------------------------------------------------------------------------------------


def test_each_entry_is_a_line_that_another_process_can_read_at_once(path: Path) -> None:
    append(path, start_entry("observe", 8, None))
    for step in range(3):
        write(path, step)
        code = f"print(len(open({str(path)!r}).read().splitlines()))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        assert int(done.stdout) == step + 2
    assert path.read_bytes().endswith(b"}\n")
    assert b"\n\n" not in path.read_bytes()
    assert [strict(line)["kind"] for line in path.read_text().splitlines()] == [
        "start",
        "batch",
        "batch",
        "batch",
    ]


def test_an_entry_is_kept_as_it_was_written(path: Path) -> None:
    append(path, start_entry("exclude", 256, None))
    entry = write(path, 4, truncated=3)
    (run,) = read_record(path)
    assert run.start == start_entry("exclude", 256, None)
    assert run.batches == {("train", 4, 0): strict(json.dumps(entry))}
    assert run.end is None


@pytest.mark.parametrize("where", ["a folder", "no folder", "a file for a folder"])
def test_an_unwritable_path_raises_os_error(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("")
    path = {
        "a folder": tmp_path,
        "no folder": tmp_path / "missing" / FILE_NAME,
        "a file for a folder": tmp_path / "file" / FILE_NAME,
    }[where]
    with pytest.raises(OSError, match=os.path.basename(path)):
        append(path, start_entry("observe", 8, None))
    with pytest.raises(OSError, match=os.path.basename(path)):
        read_record(path)


# --- reading what went wrong --------------------------------------------------------------------


def test_an_empty_file_holds_no_run(path: Path) -> None:
    path.touch()
    assert read_record(path) == []


def test_a_file_cut_at_any_byte_loses_the_last_line_at_most(path: Path) -> None:
    append(path, start_entry("observe", 8, None))
    for step in range(3):
        write(path, step)
    whole = path.read_bytes()
    line_ends = [i for i, byte in enumerate(whole) if byte == ord("\n")]
    around = {end + offset for end in line_ends for offset in range(-3, 4)}
    for size in sorted({*range(0, len(whole), 17), *around} & set(range(len(whole) + 1))):
        path.write_bytes(whole[:size])
        # A line that lacks nothing but its end is whole.
        complete = [line for line in whole[:size].split(b"\n") if line.endswith(b"]}}")]
        runs = read_record(path)
        assert len(runs) == (size >= whole.index(b"\n"))
        assert [keys(run) for run in runs] in (
            [],
            [[("train", s, 0) for s in range(len(complete))]],
        )


def test_what_is_written_after_a_torn_line_is_not_lost_with_it(path: Path) -> None:
    append(path, start_entry("observe", 8, None))
    write(path, 0)
    start = path.stat().st_size
    write(path, 1)
    whole = path.read_bytes()
    for size in [start, start + 1, (start + len(whole)) // 2, len(whole) - 2]:
        path.write_bytes(whole[:size])
        write(path, 2)
        write(path, 3)
        (run,) = read_record(path)
        assert keys(run) == [("train", 0, 0), ("train", 2, 0), ("train", 3, 0)]
    path.write_bytes(whole[:-1])  # whole but for its end
    write(path, 2)
    assert keys(read_record(path)[0]) == [("train", 0, 0), ("train", 1, 0), ("train", 2, 0)]


@pytest.mark.parametrize(
    "garbage",
    [
        b'{"kind":"batch","split":"train","st\n',
        b"\n",
        b"garbage\n",
        b"12\n",
        b"null\n",
        b'"kind"\n',
        b'["kind"]\n',
        b"{}\n",
        b'{"kind":"batch"}\n',
        b'{"kind":"batch","split":"train","step":1}\n',
        b'{"kind":"unknown","step":1}\n',
        b'{"kind":null}\n',
        b'{"kind":["batch"]}\n',
        b'{"kind":{},"split":"train","step":1,"batch":0}\n',
        b'{"kind":"batch","step":1,"batch":0}\n',
        b'{"kind":"batch","split":"train","batch":0}\n',
        b'{"kind":"batch","split":"test","step":9,"batch":0}\n',
        b'{"kind":"batch","split":["train"],"step":9,"batch":0}\n',
        b'{"kind":"batch","split":"train","step":"9","batch":0}\n',
        b'{"kind":"batch","split":"train","step":9.5,"batch":0}\n',
        b'{"kind":"batch","split":"train","step":NaN,"batch":0}\n',
        b'{"kind":"batch","split":"train","step":null,"batch":0}\n',
        b'{"kind":"batch","split":"train","step":[9],"batch":0}\n',
        b'{"kind":"batch","split":"train","step":9,"batch":{}}\n',
        b'{"kind":"batch","split":"train","step":9,"batch":"0"}\n',
        b"9" * 5000 + b"\n",
        b"[" * 200_000 + b"\n",
        b'{"kind":' * 200_000 + b"\n",
        b"\x00" * 4096 + b"\n",
        bytes(range(256)) + b"\n",
        "{\u2028\n".encode(),
        b"\xff\xfe{\x00\n",
    ],
    ids=lambda garbage: repr(garbage[:60]),
)
def test_a_damaged_line_in_the_middle_costs_nothing_but_itself(path: Path, garbage: bytes) -> None:
    path.write_bytes(garbage)
    append(path, start_entry("observe", 8, None))
    write(path, 0)
    with path.open("ab") as file:
        file.write(garbage)
    write(path, 1)
    append(path, end_entry(batch(), 2))
    with path.open("ab") as file:
        file.write(garbage)
    (run,) = read_record(path)
    assert keys(run) == [("train", 0, 0), ("train", 1, 0)]
    assert run.start == start_entry("observe", 8, None)
    assert run.end == strict(json.dumps(end_entry(batch(), 2)))


@pytest.mark.parametrize("resumed", ['"4"', "[4]", '{"step":4}'])
def test_a_damaged_start_line_does_not_stop_the_reader(path: Path, resumed: str) -> None:
    append(path, start_entry("observe", 8, None))
    write(path, 0)
    with path.open("a") as file:
        file.write(f'{{"kind":"start","resumed_from_step":{resumed}}}\n')
    write(path, 1)
    assert ("train", 1, 0) in read_record(path)[-1].batches


@settings(deadline=None, max_examples=50)
@given(noise=st.binary(max_size=200))
def test_no_noise_stops_the_reader(noise: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("noise") / FILE_NAME
    append(path, start_entry("observe", 8, None))
    with path.open("ab") as file:
        file.write(noise)
    write(path, 7)
    (run,) = read_record(path)
    assert keys(run) == [("train", 7, 0)]


def test_batches_before_the_first_start_belong_to_no_run(path: Path) -> None:
    write(path, 0)
    append(path, end_entry(batch(), 1))
    assert read_record(path) == []


# --- runs, restarts, several batches ------------------------------------------------------------


def test_several_batches_of_one_step_and_both_splits_are_kept_apart(path: Path) -> None:
    append(path, start_entry("observe", 8, None))
    for number in range(3):
        write(path, 5, number)
        write(path, 5, number, split="eval")
    (run,) = read_record(path)
    assert keys(run) == [
        *[("eval", 5, number) for number in range(3)],
        *[("train", 5, number) for number in range(3)],
    ]


def test_the_last_line_of_a_batch_counts(path: Path) -> None:
    append(path, start_entry("observe", 8, None))
    write(path, 1, truncated=3)
    write(path, 1, truncated=7)
    (run,) = read_record(path)
    assert run.batches["train", 1, 0]["truncated"] == 7


def test_a_start_without_resume_is_a_run_of_its_own(path: Path) -> None:
    for steps in (3, 2):
        append(path, start_entry("observe", 8, None))
        for step in range(steps):
            write(path, step)
        append(path, end_entry(batch(), steps))
    first, second = read_record(path)
    assert keys(first) == [("train", step, 0) for step in range(3)]
    assert keys(second) == [("train", step, 0) for step in range(2)]
    assert first.end is not None
    assert second.end is not None
    assert (first.end["step"], second.end["step"]) == (3, 2)


def test_a_resume_supersedes_what_was_written_past_its_checkpoint(path: Path) -> None:
    append(path, start_entry("observe", 8, None))
    for step in range(7):
        write(path, step, truncated=1)
        if step in (2, 4, 6):
            write(path, step, split="eval")
    append(path, end_entry(batch(), 7))
    # From the checkpoint after step 4: its evaluation was before it, the rollouts of step 4 after.
    append(path, start_entry("exclude", 16, 4))
    write(path, 4, truncated=2)
    (run,) = read_record(path)
    assert keys(run) == [
        ("eval", 2, 0),
        ("eval", 4, 0),
        *[("train", step, 0) for step in range(5)],
    ]
    assert [run.batches["train", step, 0]["truncated"] for step in range(5)] == [1, 1, 1, 1, 2]
    assert run.start == start_entry("exclude", 16, 4)
    assert run.end is None
    append(path, end_entry(batch(), 9))
    assert read_record(path)[0].end == strict(json.dumps(end_entry(batch(), 9)))


def test_a_resume_supersedes_every_batch_of_a_step(path: Path) -> None:
    append(path, start_entry("observe", 8, None))
    for number in range(3):
        write(path, 4, number)
    append(path, start_entry("observe", 8, 4))
    write(path, 4, 0)
    assert keys(read_record(path)[0]) == [("train", 4, 0)]


def test_a_second_resume_rewinds_further(path: Path) -> None:
    append(path, start_entry("observe", 8, None))
    for resumed in (6, 2):
        for step in range(8):
            write(path, step)
        append(path, start_entry("observe", 8, resumed))
    assert keys(read_record(path)[0]) == [("train", 0, 0), ("train", 1, 0)]


def test_a_resume_touches_the_newest_run_alone(path: Path) -> None:
    for _ in range(2):
        append(path, start_entry("observe", 8, None))
        for step in range(4):
            write(path, step)
    append(path, start_entry("observe", 8, 1))
    first, second = read_record(path)
    assert len(first.batches) == 4
    assert keys(second) == [("train", 0, 0)]


def test_a_resume_goes_on_with_the_training_before_an_evaluation_on_its_own(path: Path) -> None:
    append(path, start_entry("observe", 8, None))
    for step in range(4):
        write(path, step)
    append(path, start_entry("observe", 8, None))
    write(path, 0, split="eval")
    append(path, start_entry("exclude", 8, 2))
    write(path, 2)
    evaluation, training = read_record(path)
    assert keys(evaluation) == [("eval", 0, 0)]
    assert keys(training) == [("train", 0, 0), ("train", 1, 0), ("train", 2, 0)]
    assert training.start["mode"] == "exclude"
    assert (evaluation.trained, training.trained) == (False, True)


def test_a_resume_in_a_new_folder_opens_a_run(path: Path) -> None:
    append(path, start_entry("observe", 8, 40))
    write(path, 40)
    (run,) = read_record(path)
    assert run.start["resumed_from_step"] == 40
    assert keys(run) == [("train", 40, 0)]
