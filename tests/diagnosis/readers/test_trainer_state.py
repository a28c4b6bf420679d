from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support import trl_logs

from truncation_guard.diagnosis.readers.trainer_state import codes_said, read_trainer_state

ENTRIES = [(step, {"reward": 0.5, "completions/clipped_ratio": step / 100}) for step in range(1, 9)]


def write(tmp_path: Path, text: str) -> Path:
    return trl_logs.write(tmp_path / "trainer_state.json", text)


def saved(**said: Any) -> dict[str, Any]:
    """The callback's state as transformers saves it."""
    state = {"monitor": {"limit": 8, "said": said}}
    return {"TruncationGuardCallback": {"args": {}, "attributes": {"restored_state": state}}}


@pytest.mark.parametrize("indent", [None, 2])
def test_entries_are_read_on_one_line_and_on_many(tmp_path: Path, indent: int | None) -> None:
    text = json.dumps(json.loads(trl_logs.state(ENTRIES, 8)), indent=indent)
    trace = read_trainer_state(write(tmp_path, text))
    assert [w.step for w in trace.training] == list(range(1, 9))
    assert [w.ratio for w in trace.training] == [step / 100 for step in range(1, 9)]
    assert trace.notes == []
    assert not trace.broken


def test_evaluations_and_other_entries_are_told_apart(tmp_path: Path) -> None:
    history = [
        *ENTRIES,
        (8, {"eval_reward": 0.25, "eval_completions/clipped_ratio": 0.5}),
        (8, {"train_runtime": 3.0}),
    ]
    trace = read_trainer_state(write(tmp_path, trl_logs.state(history, 8)))
    assert len(trace.training) == 8
    assert [(w.step, w.ratio) for w in trace.evaluation] == [(8.0, 0.5)]


def test_without_a_guard_nothing_can_have_warned(tmp_path: Path) -> None:
    trace = read_trainer_state(write(tmp_path, trl_logs.state(ENTRIES, 8)))
    assert not trace.guarded
    assert trace.warned == {}
    assert (trace.limit, trace.limits, trace.mode) == (None, (), None)


@pytest.mark.parametrize(
    ("callbacks", "warned"),
    [
        (saved(truncated=[3, 10, 0.9], **{"eval/truncated": [3, 10, 0.9]}), {"truncated": 1}),
        ({"A": [], "B": [saved(rising=[1, 1, 1])["TruncationGuardCallback"]]}, {"rising": 1}),
        (saved(), None),
        ({"TruncationGuardCallback": "torn"}, None),
        ({}, None),
        ([], None),
    ],
)
def test_the_guards_state_knows_what_it_warned_of(
    tmp_path: Path, callbacks: Any, warned: dict[str, int] | None
) -> None:
    metrics = {"truncation_guard/truncated_share": 0.9, "truncation_guard/limit": 8.0}
    text = trl_logs.state([(1, metrics)], 8, stateful_callbacks=callbacks)
    trace = read_trainer_state(write(tmp_path, text))
    assert trace.guarded
    assert trace.warned == warned
    assert (trace.limit, trace.limits) == (8, (8,))


def test_a_state_that_says_nothing_of_callbacks_says_no_codes() -> None:
    assert codes_said({}) == {}


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        ("", "its log_history breaks off"),
        ("  nonsense  ", "its log_history breaks off"),
        ("]", "it breaks off after its log_history"),
    ],
)
def test_of_a_broken_file_the_entries_before_the_break_count(
    tmp_path: Path, ending: str, reason: str
) -> None:
    text = trl_logs.state(ENTRIES, 8)
    cut = text[: text.index('"step": 5')] if ending != "]" else text[: text.index("]") + 1]
    path = write(tmp_path, cut + ("" if ending == "]" else ending))
    trace = read_trainer_state(path)
    assert trace.broken
    assert len(trace.training) == (8 if ending == "]" else 4)
    (note,) = trace.notes
    assert re.fullmatch(
        f"{re.escape(str(path))} is broken: {reason} \\(.*\\)\\. What comes before was read\\.",
        note,
    )


def test_a_value_that_never_ends_breaks_off_there(tmp_path: Path) -> None:
    path = write(tmp_path, '{"log_history": [{"reward": 1, "step": 1}, {"a": "' + "x" * 10_000)
    trace = read_trainer_state(path)
    assert len(trace.training) == 1
    assert trace.broken


REMEDY = (
    "Pass the trainer_state.json of a run of GRPOTrainer or RLOOTrainer that logged at least once, "
    "or its output folder."
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "cannot be read as a trainer_state.json: it has no log_history."),
        ("", "cannot be read as a trainer_state.json: it has no log_history."),
        ("[1, 2]", "cannot be read as a trainer_state.json: it has no log_history."),
        (
            '{"log_history": [',
            "cannot be read as a trainer_state.json: its log_history breaks off (Expecting value: "
            "line 1 column 18 (char 17)).",
        ),
        (
            '{"log_history": []}',
            "has 0 log entries, and none of them has a reward or completions/*.",
        ),
        (
            '{"log_history": [{"loss": 1}, 5]}',
            "has 2 log entries, and none of them has a reward or completions/*.",
        ),
    ],
)
def test_a_state_without_a_rollout_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ValueError, match=f"^{re.escape(f'{path} {message} {REMEDY}')}$"):
        read_trainer_state(path)


DEEP = "[" * 100_000 + "]" * 100_000


def test_what_is_nested_too_deeply_breaks_off_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="an entry of its log_history is nested too deeply"):
        read_trainer_state(write(tmp_path, f'{{"log_history": [{DEEP}]}}'))
    entry = '{"reward": 1, "step": 1}'
    trace = read_trainer_state(write(tmp_path, f'{{"log_history": [{entry}, {DEEP}]}}'))
    assert (len(trace.training), trace.broken) == (1, True)
    trace = read_trainer_state(write(tmp_path, f'{{"log_history": [{entry}], "x": {DEEP}}}'))
    assert (len(trace.training), trace.broken) == (1, True)
    assert trace.notes == [
        f"{tmp_path / 'trainer_state.json'} is broken: what follows its log_history is nested too "
        "deeply. What comes before was read."
    ]


def test_numbers_beyond_every_float_are_not_known(tmp_path: Path) -> None:
    text = (
        '{"log_history": [{"reward": 1e400, "reward_std": 0.5, "step": 1}, '
        f'{{"reward": 1{"0" * 400}, "reward_std": NaN, "step": 1{"0" * 400}, '
        '"completions/clipped_ratio": 0.5}]}'
    )
    trace = read_trainer_state(write(tmp_path, text))
    assert [(w.reward, w.step, w.ratio) for w in trace.training] == [
        (None, 1.0, None),
        (None, None, 0.5),
    ]


def test_a_mean_of_two_limits_is_none_of_them(tmp_path: Path) -> None:
    means = [16.0, 16.0, 24.0, 32.0, 32.0]
    entries = [
        (step, {"truncation_guard/truncated_share": 0.9, "truncation_guard/limit": mean})
        for step, mean in enumerate(means, start=1)
    ]
    trace = read_trainer_state(write(tmp_path, trl_logs.state(entries, 5)))
    assert (trace.limit, trace.limits) == (32, (16, 32))
