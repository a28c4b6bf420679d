"""The reporter alone, over counts made by hand: what it writes, when, and on which process."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.batches import batch, groups

from truncation_guard.batch.counts import BatchCounts
from truncation_guard.lengths.histogram import LengthHistogram
from truncation_guard.options import GuardOptions
from truncation_guard.record import FILE_NAME, batch_entry, end_entry, read_record, start_entry
from truncation_guard.reporting.reporter import Reporter


@pytest.fixture(autouse=True)
def _everything_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.DEBUG, logger="truncation_guard"):
        yield


def guard_options(mode: Any, **overrides: Any) -> GuardOptions:
    defaults: dict[str, Any] = {
        "mode": mode,
        "truncated_weight": 0.0,
        "truncated_reward": 0.0,
        "warn_above": 0.05,
        "window": 64,
        "cooldown": 10,
        "coverage": 0.95,
        "histogram_every": None,
        "record": True,
    }
    return GuardOptions(**(defaults | overrides))


def reporter(
    tmp_path: Path, mode: Any = "downweight", *, is_main_process: bool = True, **options: Any
) -> Reporter:
    return Reporter(
        guard_options(mode, **options),
        is_main_process=is_main_process,
        output_dir=str(tmp_path),
    )


def recorded(tmp_path: Path) -> list[dict[str, Any]]:
    path = tmp_path / FILE_NAME
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def as_json(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry as it comes back: JSON knows no tuples."""
    read: dict[str, Any] = json.loads(json.dumps(entry))
    return read


def logged(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    assert {record.name for record in caplog.records} <= {"truncation_guard"}
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def codes(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line.split()[2] for line in logged(caplog, logging.WARNING)]


def evaluation(truncated: int = 0, of: int = 32, **overrides: Any) -> BatchCounts:
    return batch(truncated, of, training=False, **overrides)


# --- the record ---------------------------------------------------------------------------------


def test_a_training_is_recorded_from_its_start_to_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = batch(1, step=0), batch(2, step=1)
    report = reporter(tmp_path, "exclude")
    report.start(256, None)
    report.batch(first)
    report.batch(second)
    report.end_training(2)
    entries = [
        start_entry("exclude", 256, None),
        batch_entry(first, "exclude", 0),
        batch_entry(second, "exclude", 0),
        end_entry(batch(3, of=64, step=1, groups=groups(16)), 2),
    ]
    assert recorded(tmp_path) == [as_json(entry) for entry in entries]
    path = tmp_path / FILE_NAME
    assert logged(caplog, logging.INFO)[0] == (
        f"[truncation-guard] recording every generation batch in {path}"
    )


def test_a_resumed_training_says_where_it_was_resumed(tmp_path: Path) -> None:
    reporter(tmp_path).start(None, 40)
    assert recorded(tmp_path) == [start_entry("downweight", None, 40, 0.0)]


@pytest.mark.parametrize(
    ("mode", "recorded_weight"), [("downweight", 0.25), ("exclude", None), ("observe", None)]
)
def test_the_weight_is_recorded_where_it_is_used(
    tmp_path: Path, mode: str, recorded_weight: float | None
) -> None:
    reporter(tmp_path, mode, truncated_weight=np.float32(0.25)).start(256, None)
    (line,) = recorded(tmp_path)
    assert line["truncated_weight"] == recorded_weight


def test_batches_are_numbered_within_their_step_and_split(tmp_path: Path) -> None:
    report = reporter(tmp_path)
    report.start(256, None)
    history = [("train", 0), ("train", 0), ("train", 0), ("train", 1)]
    history += [("eval", 2), ("eval", 2), ("train", 2), ("train", 2), ("eval", 4), ("train", 4)]
    history += [("train", 5), ("eval", 6)]
    for split, step in history:
        report.batch(batch(step=step, training=split == "train"))
    assert [(e["split"], e["step"], e["batch"]) for e in recorded(tmp_path)[1:]] == [
        ("train", 0, 0),
        ("train", 0, 1),
        ("train", 0, 2),
        ("train", 1, 0),
        ("eval", 2, 0),
        ("eval", 2, 1),
        ("train", 2, 0),
        ("train", 2, 1),
        ("eval", 4, 0),
        ("train", 4, 0),
        ("train", 5, 0),
        ("eval", 6, 0),
    ]


def test_a_second_evaluation_of_one_step_does_not_replace_the_first(tmp_path: Path) -> None:
    """As with two evaluation data sets."""
    report = reporter(tmp_path)
    report.start(256, None)
    for truncated in (1, 2):
        report.batch(evaluation(truncated, step=7))
        report.batch(evaluation(truncated, step=7))
        report.end_evaluation()
    (run,) = read_record(tmp_path / FILE_NAME)
    assert [run.batches["eval", 7, number]["truncated"] for number in range(4)] == [1, 1, 2, 2]


def test_without_record_no_file_is_written_and_none_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    report = reporter(tmp_path, record=False)
    report.start(256, None)
    report.batch(batch(16))
    report.end_training(1)
    assert list(tmp_path.iterdir()) == []
    assert not any("recording" in line for line in logged(caplog, logging.INFO))
    assert codes(caplog) == ["truncated"]


@pytest.mark.parametrize("broken_from", ["the start", "a batch"])
def test_an_unwritable_record_is_said_once_and_all_else_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, broken_from: str
) -> None:
    path = tmp_path / "out" / FILE_NAME
    report = reporter(tmp_path / "out")
    if broken_from == "a batch":
        path.parent.mkdir()
    report.start(256, None)
    if broken_from == "a batch":
        path.unlink()
        path.mkdir()
    report.batch(batch(16))
    report.batch(batch(16, step=1))
    report.end_training(2)
    off, warned = logged(caplog, logging.WARNING)
    assert off.startswith(f"[truncation-guard] the record is off: {path} cannot be written ([Errno")
    assert off.endswith(")")
    assert warned.startswith("[truncation-guard] WARN truncated step=0 ")
    assert logged(caplog, logging.INFO)[-2].startswith("[truncation-guard] training ended at step")
    assert not path.is_file()


# --- WARN lines ---------------------------------------------------------------------------------


def test_a_batch_gets_its_line_with_what_the_mode_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    report = reporter(tmp_path, "penalize", truncated_reward=-0.5)
    report.batch(batch(16, step=3))
    assert logged(caplog, logging.WARNING) == [
        "[truncation-guard] WARN truncated step=3 mode=penalize share=0.5 completions=16/32 "
        "groups=0/8 worst=0/4 limit=256 | "
        "50% of completions were cut off at max_completion_length=256 before they finished (each "
        "of their rewards is at most -0.5); the 95th percentile of the length is above 256 and not "
        "identified -> "
        "raise max_completion_length (next try: 512), or size it with "
        "truncation_guard.profile_rollouts"
    ]


def test_the_mode_that_is_really_applied_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A trainer that overrides a rollout method is only measured, whatever was asked for."""
    report = Reporter(guard_options("observe"), is_main_process=True, output_dir=str(tmp_path))
    report.start(256, None)
    report.batch(batch(16))
    assert " mode=observe " in logged(caplog, logging.WARNING)[0]
    assert [entry["mode"] for entry in recorded(tmp_path)] == ["observe", "observe"]


@pytest.mark.parametrize(
    ("mode", "weight", "warned"),
    [
        ("downweight", 0.0, ["truncated", "rising"]),
        ("downweight", 0.5, ["truncated"]),
        ("exclude", 0.0, ["truncated", "rising"]),
        ("exclude", 0.5, ["truncated", "rising"]),
        ("penalize", 0.0, ["truncated"]),
        ("observe", 0.0, ["truncated"]),
    ],
)
def test_rising_is_watched_where_nothing_pushes_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: str, weight: float, warned: list[str]
) -> None:
    report = reporter(tmp_path, mode, truncated_weight=weight)
    for truncated in (0, 4, 4):
        report.batch(batch(truncated, 64))
    assert codes(caplog) == warned


def test_a_line_about_the_set_up_has_the_mode_and_no_figures(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reporter(tmp_path, "observe").warn("measured-only", 3, "the fact", "the remedy")
    assert logged(caplog, logging.WARNING) == [
        "[truncation-guard] WARN measured-only step=3 mode=observe | the fact -> the remedy"
    ]


def test_warn_above_none_switches_every_line_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    report = reporter(tmp_path, warn_above=None)
    report.warn("measured-only", 3, "the fact", "the remedy")
    report.batch(batch(32))
    report.batch(evaluation(32))
    report.end_evaluation()
    assert logged(caplog, logging.WARNING) == []
    assert report.recommended_limit is None
    assert len(recorded(tmp_path)) == 2


def test_a_percent_sign_in_a_line_is_no_format(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reporter(tmp_path).batch(batch(16, stopped=8, end_of_turn={"2 (<%s%d>)": 24}))
    assert "token 2 (<%s%d>), which" in logged(caplog, logging.WARNING)[0]


# --- the advised limit --------------------------------------------------------------------------


def test_the_advised_limit_is_that_of_the_newest_line_that_named_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    report = reporter(tmp_path, cooldown=0, warn_above=0.01)
    assert report.recommended_limit is None
    for counts, code, advised in [
        (batch(0), None, None),
        (batch(16), "truncated", 512),
        (batch(32, cut={512: 32}, limit=512), "truncated", 1024),
        # Lines that name no limit: a longer one does not help, ...
        (batch(32, causes={"limit": 0, "context": 32}), "context", 1024),
        # ... there is none, ...
        (batch(32, limit=None), "truncated", 1024),
        # ... or it holds 95 % already.
        (batch(4, of=128), "truncated", 1024),
        (batch(8, of=128, ended={260: 120}, cut={270: 8}, limit=270), "truncated", 540),
        (batch(0, of=128), None, 540),
    ]:
        caplog.clear()
        report.batch(counts)
        assert codes(caplog) == ([] if code is None else [code])
        assert report.recommended_limit == advised


def test_a_line_on_an_evaluation_advises_too(tmp_path: Path) -> None:
    report = reporter(tmp_path)
    report.batch(evaluation(16))
    assert report.recommended_limit is None
    report.end_evaluation()
    assert report.recommended_limit == 512


def test_under_a_new_limit_the_advice_starts_afresh(tmp_path: Path) -> None:
    report = reporter(tmp_path)
    report.batch(batch(16))
    assert report.recommended_limit == 512
    report.batch(batch(16, limit=300, cut={300: 16}))
    assert report.recommended_limit == 600


def test_an_ignored_limit_advises_no_limit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    report = reporter(tmp_path)
    report.batch(batch(ended={300: 32}))
    assert codes(caplog) == ["limit-ignored"]
    assert report.recommended_limit is None


# --- evaluation ---------------------------------------------------------------------------------


def test_an_evaluation_is_judged_as_a_whole_at_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    report = reporter(tmp_path, "exclude")
    for truncated in (2, 3, 1):
        report.batch(evaluation(truncated, step=5))
        assert codes(caplog) == []
    report.end_evaluation()
    assert logged(caplog, logging.WARNING) == [
        "[truncation-guard] WARN truncated step=5 mode=exclude split=eval share=0.0625 "
        "completions=6/96 groups=0/24 worst=0/4 limit=256 | "
        "6.25% of completions were cut off at max_completion_length=256 before they finished "
        "(evaluation is only measured); the 95th percentile of the length is above 256 and not "
        "identified -> "
        "raise max_completion_length (next try: 512), or size it with "
        "truncation_guard.profile_rollouts"
    ]


def test_the_next_evaluation_begins_at_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    report = reporter(tmp_path)
    report.batch(evaluation(0, of=63))
    report.end_evaluation()
    report.batch(evaluation(5, of=63, step=1))  # 63 completions are not enough
    report.end_evaluation()
    assert codes(caplog) == []
    report.batch(evaluation(5, of=64, step=2))
    report.end_evaluation()
    assert " completions=5/64 " in logged(caplog, logging.WARNING)[0]


def test_an_end_without_batches_is_no_evaluation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    report = reporter(tmp_path, cooldown=0)
    report.end_evaluation()
    report.batch(evaluation(16))
    report.end_evaluation()
    report.end_evaluation()
    assert codes(caplog) == ["truncated"]


def test_an_evaluation_that_did_not_get_to_its_end_is_forgotten_by_the_next_training_batch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    report = reporter(tmp_path)
    report.batch(evaluation(32))
    report.batch(batch(0, step=1))
    report.batch(evaluation(0, step=1))
    report.end_evaluation()
    assert codes(caplog) == []


def test_an_evaluation_is_no_part_of_window_total_or_histogram(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    report = reporter(tmp_path, histogram_every=1)
    report.batch(batch(0, step=0))
    before = report.monitor.state()["window"]
    report.batch(evaluation(32, step=9))
    report.end_evaluation()
    assert report.monitor.state()["window"] == before
    report.batch(batch(0, step=9))
    report.end_training(10)
    assert [entry["completions"] for entry in recorded(tmp_path)] == [32, 32, 32, 64]
    histogram, summary, whole = logged(caplog, logging.INFO)
    assert histogram.startswith("[truncation-guard] lengths of 64 completions")
    assert ": 0 of 64 completions were truncated (0%)" in summary
    assert whole == histogram


# --- histograms ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every", "steps", "histograms"),
    [
        (None, [0, 1, 2, 3], {}),
        # After which batch a histogram comes, and how many batches are in it.
        (1, [0, 1, 2, 3], {1: 2, 2: 1, 3: 1}),
        (2, [0, 1, 2, 3, 4, 5], {2: 3, 4: 2}),
        (3, [0, 1, 2], {}),
        (3, [10, 11, 12, 13, 14, 15, 16], {3: 4, 6: 3}),
        (2, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4], {4: 5, 8: 4}),
        (2, [0, 5, 6, 7], {1: 2, 3: 2}),
    ],
)
def test_a_histogram_of_the_batches_since_the_last_one_comes_after_so_many_steps(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    every: int | None,
    steps: list[int],
    histograms: dict[int, int],
) -> None:
    report = reporter(tmp_path, histogram_every=every)
    found: dict[int, int] = {}
    for index, step in enumerate(steps):
        caplog.clear()
        report.batch(batch(0, of=10, step=step, ended={7: 10}))
        for line in logged(caplog, logging.INFO):
            assert line.startswith("[truncation-guard] lengths of ")
            found[index] = int(line.split()[3]) // 10
    assert found == histograms


def test_the_histogram_holds_the_lengths(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    report = reporter(tmp_path, histogram_every=1)
    report.batch(batch(of=10, step=0, ended={7: 10}))
    report.batch(batch(step=1, ended={12: 5}, cut={24: 20}, limit=24))
    assert logged(caplog, logging.INFO) == [
        "[truncation-guard] lengths of 35 completions in tokens\n"
        "      7-8           #################### 10\n"
        "     11-12          ########## 5\n"
        "     23-24      cut ######################################## 20"
    ]


# --- the end of a training ----------------------------------------------------------------------


def test_the_end_of_a_training_sums_it_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    report = reporter(tmp_path, coverage=0.5)
    report.batch(batch(1, of=16, ended={7: 15}, stopped=1, groups=groups(4, without_signal=2)))
    report.batch(batch(0, of=16, ended={12: 16}, groups=groups(4, all_truncated=1)))
    report.end_training(2)
    assert logged(caplog, logging.INFO) == [
        "[truncation-guard] training ended at step 2: 1 of 32 completions were truncated (3.125%), "
        "1 stopped without a stop token, 1 of 8 groups were truncated as a whole, groups without "
        "signal: 2, the 50th percentile of the length is 12",
        "[truncation-guard] lengths of 32 completions in tokens\n"
        "      1-22          ######################################## 31\n"
        "    243-264     cut ## 1",
    ]


def test_the_end_of_a_training_without_a_limit_names_no_percentile(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    report = reporter(tmp_path)
    report.batch(batch(limit=None))
    report.end_training(1)
    assert logged(caplog, logging.INFO)[0] == (
        "[truncation-guard] training ended at step 1: 0 of 32 completions were truncated (0%), "
        "0 stopped without a stop token, 0 of 8 groups were truncated as a whole, groups without "
        "signal: 0"
    )


@pytest.mark.parametrize("with_evaluation", [False, True])
def test_a_training_without_batches_has_no_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, with_evaluation: bool
) -> None:
    report = reporter(tmp_path)
    report.start(256, None)
    if with_evaluation:
        report.batch(evaluation())
        report.end_evaluation()
    caplog.clear()
    report.end_training(0)
    assert caplog.records == []
    assert [entry["kind"] for entry in recorded(tmp_path)] == ["start", "batch"][
        : 1 + with_evaluation
    ]


# --- other processes ----------------------------------------------------------------------------


def test_another_process_writes_nothing_and_keeps_the_same_books(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    main = reporter(tmp_path / "main", histogram_every=1)
    other = reporter(tmp_path / "other", histogram_every=1, is_main_process=False)
    (tmp_path / "main").mkdir()
    (tmp_path / "other").mkdir()
    history = [batch(truncated, step=step) for step, truncated in enumerate([0, 16, 4, 32, 0, 9])]
    history.insert(3, evaluation(20, step=3))
    states, advised = [], []
    for report in (main, other):
        caplog.clear()
        report.start(256, None)
        report.warn("measured-only", 0, "the fact", "the remedy")
        for counts in history:
            report.batch(counts)
            if not counts.training:
                report.end_evaluation()
        report.end_training(len(history))
        states.append(report.monitor.state())
        advised.append(report.recommended_limit)
        assert bool(caplog.records) == (report is main)
    assert states[1] == states[0]
    assert states[0]["said"].keys() >= {"truncated", "eval/truncated"}
    assert advised == [512, 512]
    assert len(recorded(tmp_path / "main")) == 2 + len(history)
    assert list((tmp_path / "other").iterdir()) == []


def test_the_counts_of_a_batch_are_left_as_they_were(tmp_path: Path) -> None:
    counts = batch(3, ended={7: 29})
    before = replace(counts, lengths=counts.lengths + LengthHistogram())
    report = reporter(tmp_path, histogram_every=1)
    for _ in range(2):
        report.batch(counts)
    report.end_training(1)
    assert counts == before
