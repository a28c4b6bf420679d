"""Which of what a run left behind is gone by."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from support import trl_logs

from truncation_guard.diagnosis.readers.source_choice import read_run

REMEDY = (
    "Pass a run's output folder (with truncation_guard.jsonl, checkpoint-*/trainer_state.json, a "
    "log or completions/*.parquet), a trainer_state.json, or a training log."
)
UNGUARDED = {"reward": 0.5}
RECORDED = {
    "truncation_guard/truncated_share": 0.0,
    "truncation_guard/reward": 1.0,
    "reward": 1.0,
    "rewards/a/mean": 0.25,
    "rewards/b/mean": 0.75,
}
"""What the guard and TRL log of the batches of `record`."""


def state(
    folder: Path,
    name: str,
    steps: int,
    metrics: dict[str, Any] = UNGUARDED,
    written: float | None = None,
    **more: Any,
) -> Path:
    """A state with an entry for each step; `written`: when, in seconds after the record."""
    text = trl_logs.state([(step, metrics) for step in range(1, steps + 1)], 9, **more)
    path = trl_logs.write(folder / name / "trainer_state.json", text)
    if written is not None:
        time = (folder / "truncation_guard.jsonl").stat().st_mtime + written
        os.utime(path, (time, time))
    return path


def record(folder: Path, *steps: int, split: str = "train") -> Path:
    lines: list[dict[str, Any]] = [{"kind": "start", "mode": "observe", "resumed_from_step": None}]
    lines += [
        {
            "kind": "batch",
            "split": split,
            "step": step,
            "batch": 0,
            "mode": "observe",
            "limit": 8,
            "truncated": 0,
            "stopped": 0,
            "causes": {"limit": 0, "context": 0, "tool": 0},
            "groups": 1,
            "groups_without_signal": 0,
            "reward": 1.0,
            "lengths": {"bin_width": 1, "ended": [[2, 4]], "cut": []},
        }
        for step in steps
    ]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    return trl_logs.write(folder / "truncation_guard.jsonl", text)


def table(path: Path, **columns: Any) -> Path:
    defaults = {
        "step": [4, 4, 4, 4],
        "prompt": ["a", "a", "b", "b"],
        "completion": ["x", "y", "z", "z"],
        "right": [1.0, 0.0, 1.0, None],
        "advantage": [0.5, -0.5, 0.0, 0.0],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = {name: column for name, column in (defaults | columns).items() if column is not None}
    parquet.write_table(pa.table(kept), path)
    return path


def refused(kind: type[Exception], path: Path, message: str) -> None:
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        read_run(path)


# --- files: content decides, not the name ---------------------------------------------------------


def test_a_file_is_what_it_holds(tmp_path: Path) -> None:
    state(tmp_path, "a", 3).rename(tmp_path / "a.txt")
    record(tmp_path, 0).rename(tmp_path / "b.txt")
    table(tmp_path / "c.txt")
    log = trl_logs.write(tmp_path / "d.json", "{'reward': 1.0, 'loss': 0}\n")
    kinds = {name: read_run(tmp_path / name).source for name in ("a.txt", "b.txt", "c.txt")}
    assert kinds == {"a.txt": "trainer_state", "b.txt": "record", "c.txt": "tables"}
    assert read_run(log).source == "log"


def test_a_record_whose_beginning_is_gone_is_told_by_its_name(tmp_path: Path) -> None:
    path = trl_logs.write(tmp_path / "truncation_guard.jsonl", "torn\n")
    message = (
        f"{path} has no generation batch. Pass the record of a run that got to its first step."
    )
    refused(ValueError, path, message)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_log_is_read_in_the_encoding_of_its_mark(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "train.log"
    path.write_text("{'reward': 1.0, 'loss': 0}\n", encoding=encoding)
    assert len(read_run(path).training) == 1


def test_bytes_that_are_no_text_do_not_stop_a_log(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(b"\xff\xfe\xfa caf\xe9\n{'reward': 1.0, 'loss': 0}\n"[2:])
    assert len(read_run(path).training) == 1


def test_zeros_that_a_crash_left_in_a_log_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(b"{'reward': 1.0, 'loss': 0}\n" * 400 + b"\0" * 512)
    assert len(read_run(path).training) == 400


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "training_args.bin"
    path.write_bytes(b"PK\x03\x04\0\0 reward")
    refused(ValueError, path, f"{path} is a binary file. {REMEDY}")


@pytest.mark.parametrize("text", ["", "hello\n", '{"architectures": ["Llama"], "vocab": 5}'])
def test_a_file_without_metric_lines_is_refused(tmp_path: Path, text: str) -> None:
    path = trl_logs.write(tmp_path / "config.json", text)
    refused(
        ValueError,
        path,
        f"{path} has no metric line: no Python dict or JSON with a reward or completions/*. "
        f"{REMEDY}",
    )


def test_what_does_not_exist_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "nowhere"
    refused(FileNotFoundError, path, f"{path} does not exist. {REMEDY}")


# --- folders --------------------------------------------------------------------------------------


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    refused(FileNotFoundError, tmp_path, f"{tmp_path} has nothing to read in it. {REMEDY}")


def test_the_record_goes_first(tmp_path: Path) -> None:
    record(tmp_path, 0, 1)
    state(tmp_path, "checkpoint-2", 2, RECORDED)
    table(tmp_path / "completions" / "completions_00001.parquet")
    trace = read_run(tmp_path)
    assert (trace.source, trace.warned) == ("record", None)
    assert trace.notes == []


def test_the_state_adds_what_the_guard_warned_of(tmp_path: Path) -> None:
    record(tmp_path, 0, 1)
    said = {"monitor": {"said": {"truncated": [1, 2, 3]}}}
    callbacks = {"Guard": {"args": {}, "attributes": {"restored_state": said}}}
    state(tmp_path, "checkpoint-1", 1, RECORDED, stateful_callbacks=callbacks)
    trace = read_run(tmp_path)
    assert (trace.source, trace.warned) == ("record", {"truncated": 1})


@pytest.mark.parametrize("written", [-60, 60])
def test_a_state_of_the_run_of_the_record_counts_whenever_it_was_written(
    tmp_path: Path, written: float
) -> None:
    record(tmp_path, *range(4))
    state(tmp_path, "checkpoint-4", 4, RECORDED, written)
    trace = read_run(tmp_path)
    assert (trace.source, trace.notes) == ("record", [])
    assert [w.function_means for w in trace.training] == [(0.25, 0.75)] * 4


def test_a_state_that_an_earlier_run_left_says_nothing_of_the_record(tmp_path: Path) -> None:
    record(tmp_path, *range(4))
    path = state(tmp_path, "checkpoint-9", 9, UNGUARDED | {"rewards/a/mean": 0.5}, -60)
    trace = read_run(tmp_path)
    assert (trace.source, trace.warned) == ("record", None)
    assert [w.function_means for w in trace.training] == [None] * 4
    assert trace.notes == [f"Passed over: {path} is of another run."]
    state(tmp_path, "checkpoint-8", 8, written=-90)
    state(tmp_path, "checkpoint-4", 4, RECORDED, -120)
    trace = read_run(tmp_path)
    assert [w.function_means for w in trace.training] == [(0.25, 0.75)] * 4
    assert trace.notes == [f"Passed over: {path} and 1 more are of another run."]


@pytest.mark.parametrize("steps", [3, 4, 9])
def test_a_run_without_a_guard_after_the_record_is_the_run(tmp_path: Path, steps: int) -> None:
    path = record(tmp_path, *range(4))
    state(tmp_path, "checkpoint-4", 4, RECORDED, -60)
    state(tmp_path, "checkpoint-9", steps, written=60)
    trace = read_run(tmp_path)
    assert (trace.source, len(trace.training)) == ("trainer_state", steps)
    assert trace.notes == [f"Passed over: {path} is of an earlier run."]


def test_a_run_that_went_on_without_a_record_is_read_from_its_state(tmp_path: Path) -> None:
    path = record(tmp_path, *range(4))
    text = trl_logs.state([(n, RECORDED if n < 5 else UNGUARDED) for n in range(1, 10)], 9)
    trl_logs.write(tmp_path / "checkpoint-9" / "trainer_state.json", text)
    trace = read_run(tmp_path)
    assert (trace.source, len(trace.training)) == ("trainer_state", 9)
    assert trace.notes == [f"Passed over: {path} ends before this run does."]


def test_a_state_of_evaluations_alone_does_not_tell_its_run(tmp_path: Path) -> None:
    record(tmp_path, 0)
    state(tmp_path, "checkpoint-1", 1, {"eval_reward": 0.5}, 60)
    trace = read_run(tmp_path)
    assert (trace.source, trace.notes) == ("record", [])


def test_a_state_that_began_before_the_record_is_mentioned(tmp_path: Path) -> None:
    record(tmp_path, 5, 6)
    path = state(tmp_path, "checkpoint-7", 7, RECORDED)
    assert read_run(tmp_path).notes == [
        f"The record begins at step 5: 5 earlier entries of {path} are left out."
    ]


def test_a_broken_state_beside_a_record_is_passed_over(tmp_path: Path) -> None:
    record(tmp_path, 0)
    path = trl_logs.write(tmp_path / "checkpoint-1" / "trainer_state.json", "{}")
    (note,) = read_run(tmp_path).notes
    assert note.startswith(f"Passed over: {path} cannot be read as a trainer_state.json")


def test_a_record_of_evaluations_alone_gives_way_to_a_state(tmp_path: Path) -> None:
    record(tmp_path, 0, split="eval")
    assert read_run(tmp_path).source == "record"
    path = state(tmp_path, "checkpoint-2", 2)
    trace = read_run(tmp_path)
    assert trace.source == "trainer_state"
    name = tmp_path / "truncation_guard.jsonl"
    assert trace.notes == [f"Passed over: {name} holds evaluations alone."]
    path.write_text("{}")
    assert read_run(tmp_path).source == "record"


def test_a_broken_record_gives_way_to_a_state(tmp_path: Path) -> None:
    path = trl_logs.write(tmp_path / "truncation_guard.jsonl", "torn\n")
    message = (
        f"{path} has no generation batch. Pass the record of a run that got to its first step."
    )
    refused(ValueError, tmp_path, message)
    state(tmp_path, "checkpoint-2", 2)
    trace = read_run(tmp_path)
    assert trace.source == "trainer_state"
    assert trace.notes == [f"Passed over: {message}"]


def test_the_checkpoint_that_got_furthest_is_read(tmp_path: Path) -> None:
    for steps in (2, 10, 9):
        state(tmp_path, f"checkpoint-{steps}", steps)
    assert len(read_run(tmp_path).training) == 10
    assert read_run(tmp_path).path == str(tmp_path / "checkpoint-10" / "trainer_state.json")
    state(tmp_path, ".", 12)
    assert read_run(tmp_path).path == str(tmp_path / "trainer_state.json")
    assert read_run(tmp_path / "checkpoint-9").training[-1].step == 9


def test_a_broken_checkpoint_gives_way_to_a_whole_one(tmp_path: Path) -> None:
    state(tmp_path, "checkpoint-5", 5)
    torn = state(tmp_path, "checkpoint-9", 9)
    torn.write_text(torn.read_text()[:-200])
    empty = trl_logs.write(tmp_path / "checkpoint-10" / "trainer_state.json", '{"global_step": 10}')
    trace = read_run(tmp_path)
    assert len(trace.training) == 5
    assert not trace.broken
    assert trace.notes[0].startswith(f"Passed over: {empty} cannot be read as")
    assert trace.notes[1:] == [f"Passed over: {torn} breaks off."]


def test_of_broken_checkpoints_alone_the_furthest_counts(tmp_path: Path) -> None:
    torn = state(tmp_path, "checkpoint-9", 9)
    torn.write_text(torn.read_text()[: torn.read_text().index('"step": 7')])
    trace = read_run(tmp_path)
    assert len(trace.training) == 6
    assert trace.broken
    torn.write_text("{}")
    with pytest.raises(ValueError, match="it has no log_history"):
        read_run(tmp_path)


# --- completions tables ---------------------------------------------------------------------------


def test_tables_tell_rewards_and_advantages(tmp_path: Path) -> None:
    folder = tmp_path / "completions"
    table(folder / "completions_00004.parquet")
    table(folder / "completions_100000.parquet", step=[100000] * 4, advantage=[0.0] * 4)
    for path in (tmp_path, folder):
        trace = read_run(path)
        assert [(w.step, w.reward, w.silent_groups) for w in trace.training] == [
            (4, pytest.approx(2 / 3), 0.5),
            (100000, pytest.approx(2 / 3), 1.0),
        ]
        assert trace.notes == [
            "Completions tables hold text, not tokens: neither lengths nor endings are known from "
            "them."
        ]


def test_of_several_rewards_no_sum_is_made_up(tmp_path: Path) -> None:
    table(tmp_path / "a.parquet", short=[0.0, 0.0, 0.5, 1.0])
    trace = read_run(tmp_path)
    assert trace.training[0].reward is None
    assert trace.notes[1] == (
        "How the columns of rewards add up to the reward is not in the tables, so it is left out."
    )


def test_a_table_without_a_row_tells_nothing(tmp_path: Path) -> None:
    empty: Any = {name: pa.array([], pa.float64()) for name in ("step", "right", "advantage")}
    texts: Any = {name: pa.array([], pa.string()) for name in ("prompt", "completion")}
    table(tmp_path / "a.parquet", **empty, **texts)
    (entry,) = read_run(tmp_path).training
    assert (entry.step, entry.reward, entry.silent_groups) == (None, None, None)


def test_a_table_without_a_needed_column_is_refused(tmp_path: Path) -> None:
    path = table(tmp_path / "a.parquet", advantage=None, completion=None)
    refused(
        ValueError,
        path,
        f"{path} has no column completion, advantage, only step, prompt, right. Pass tables that "
        "TRL wrote with log_completions=True.",
    )


def test_a_broken_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 and nothing more")
    with pytest.raises(ValueError, match="cannot be read as a parquet table") as error:
        read_run(path)
    assert str(error.value).startswith(f"{path} cannot be read as a parquet table (")
    assert str(error.value).endswith("). Take it out of the folder, or write it again.")


@pytest.mark.parametrize("texts", [("4", "4", "4", "4"), ("4", None, "4.0", "4")])
def test_steps_that_are_written_as_text_are_numbers(tmp_path: Path, texts: tuple[Any, ...]) -> None:
    table(tmp_path / "a.parquet", step=list(texts), advantage=["0.5", "-0.5", "0", "0.0"])
    (entry,) = read_run(tmp_path).training
    assert (entry.step, entry.silent_groups) == (4.0, 0.5)


@pytest.mark.parametrize("column", ["step", "advantage"])
def test_text_that_is_no_number_is_refused(tmp_path: Path, column: str) -> None:
    path = table(tmp_path / "a.parquet", **{column: ["1", "two", "1", "1"]})
    refused(
        ValueError,
        path,
        f"{path} has 'two' in its column {column}, which is no number. Pass tables that TRL wrote "
        "with log_completions=True.",
    )


def test_a_reward_that_is_no_number_is_left_out_of_a_table(tmp_path: Path) -> None:
    table(tmp_path / "a.parquet", right=[1.0, float("nan"), 0.0, None])
    assert read_run(tmp_path).training[0].reward == 0.5


# --- a folder with a log --------------------------------------------------------------------------

LINE = "{'reward': 0.5, 'reward_std': 0.1, 'completions/clipped_ratio': %s}\n"


@pytest.mark.parametrize("name", ["train.log", "stdout.txt", "slurm-1.out", "slurm-1.err"])
def test_a_folder_with_a_log_alone_is_read(tmp_path: Path, name: str) -> None:
    trl_logs.write(tmp_path / name, LINE % 0.25)
    trl_logs.write(tmp_path / "requirements.txt", "trl\n")
    (tmp_path / "bytes.out").write_bytes(b"\0\1\2")
    trace = read_run(tmp_path)
    assert (trace.source, trace.path) == ("log", str(tmp_path / name))
    assert [w.ratio for w in trace.training] == [0.25]


def test_of_several_logs_the_newest_counts(tmp_path: Path) -> None:
    for time, name in ((1, "b.log"), (3, "a.log"), (2, "c.log")):
        os.utime(trl_logs.write(tmp_path / name, LINE % (time / 10)), (time, time))
    trace = read_run(tmp_path)
    assert [w.ratio for w in trace.training] == [0.3]
    assert trace.notes[-1] == "Of the 3 logs in the folder this is the newest."


def test_a_log_tells_more_than_tables_and_less_than_a_state(tmp_path: Path) -> None:
    trl_logs.write(tmp_path / "train.log", LINE % 0.25)
    table(tmp_path / "completions" / "completions_00004.parquet")
    assert read_run(tmp_path).source == "log"
    state(tmp_path, "checkpoint-2", 2)
    assert read_run(tmp_path).source == "trainer_state"


def test_the_state_tells_what_each_reward_function_gave(tmp_path: Path) -> None:
    record(tmp_path, 0, 1, 2, 9)
    entries = [
        (step, RECORDED | {"rewards/a/mean": 0.5, "rewards/b/mean": step / 10}) for step in (1, 4)
    ]
    trl_logs.write(tmp_path / "trainer_state.json", trl_logs.state(entries, 9))
    found = [entry.function_means for entry in read_run(tmp_path).training]
    # The entry of step 1 is of the batch before it; what follows the last entry is in none.
    assert found == [(0.1, 0.5), (0.4, 0.5), (0.4, 0.5), (0.4, 0.5)]


def test_what_is_broken_gives_way_to_a_log(tmp_path: Path) -> None:
    torn = trl_logs.write(tmp_path / "truncation_guard.jsonl", "torn\n")
    empty = trl_logs.write(tmp_path / "checkpoint-1" / "trainer_state.json", "{}")
    trl_logs.write(tmp_path / "train.log", LINE % 0.25)
    trace = read_run(tmp_path)
    assert trace.source == "log"
    first, second = trace.notes[-2:]
    assert first.startswith(f"Passed over: {torn} has no generation batch.")
    assert second.startswith(f"Passed over: {empty} cannot be read as a trainer_state.json")
