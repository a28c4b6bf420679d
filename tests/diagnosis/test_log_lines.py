from __future__ import annotations

from pathlib import Path

import pytest
import trl_logs

from truncation_guard.diagnosis.log_lines import read_log
from truncation_guard.diagnosis.trace import RunTrace

WHOLE = {"reward": 0.5, "completions/clipped_ratio": 0.25, "completions/max_length": 8.0}


def read(tmp_path: Path, text: str) -> RunTrace:
    path = tmp_path / "train.log"
    path.write_bytes(text.encode())
    return read_log(path, "utf-8")


def ratios(trace: RunTrace) -> list[float | None]:
    return [window.ratio for window in trace.training]


@pytest.mark.parametrize(
    "line",
    [
        "{'reward': 0.5, 'completions/clipped_ratio': 0.25}",
        "{'reward': '0.5', 'completions/clipped_ratio': '0.25'}",
        '{"reward": 0.5, "completions/clipped_ratio": 0.25}',
        '{"reward":0.5,"completions/clipped_ratio":0.25}',
        "2026-01-01 INFO {'reward': 0.5, 'completions/clipped_ratio': 0.25} (rank 0)",
        " 33%|███▎      | 2/6 [00:00<00:02]{'reward': 0.5, 'completions/clipped_ratio': 0.25}",
        "{'loss': nan, 'reward': 0.5, 'kl': inf, 'completions/clipped_ratio': 0.25}",
        "{'loss': None, 'reward': 0.5, 'completions/clipped_ratio': 0.25}",
        "{'reward': np.float64(0.5), 'completions/clipped_ratio': np.float64(0.25)}",
        "{'reward': tensor(0.5, device='cuda:0'), 'completions/clipped_ratio': tensor(0.25)}",
        '{"time": 3, "metrics": {"reward": 0.5, "completions/clipped_ratio": 0.25}}',
        "{'note': \"it's\", 'reward': 0.5, 'completions/clipped_ratio': 0.25}",
        "\x1b[A\x1b[K{'reward': 0.5, 'completions/clipped_ratio': 0.25}\x1b[0m",
        "{'reward': 0.5,\r\n 'completions/clipped_ratio': 0.25}",
        '{\n  "reward": 0.5,\n  "completions/clipped_ratio": 0.25\n}',
        "{'reward': 0.5, 'completions/clip\nped_ratio': 0.25}",
        '[{"reward": 0.5, "completions/clipped_ratio": 0.25}]',
    ],
)
def test_an_entry_is_read_in_whatever_shape(tmp_path: Path, line: str) -> None:
    trace = read(tmp_path, f"Loading: 100%\n{line}\nBye\n")
    assert [(w.reward, w.ratio) for w in trace.training] == [(0.5, 0.25)]
    assert not any("cut" in note for note in trace.notes)


def test_a_line_holds_as_many_entries_as_it_has(tmp_path: Path) -> None:
    line = "{'completions/clipped_ratio': 0.1}{'completions/clipped_ratio': 0.2}"
    assert ratios(read(tmp_path, line)) == [0.1, 0.2]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{'completions/clipped_ratio': 0.25, 'reward': 0.5, 'epo", [(0.25, 0.5)]),
        ("{'completions/clipped_ratio': 0.25, 'reward': 0.5", [(0.25, None)]),
        ("{'completions/clipped_ratio': '0.25', 'reward': '0.", [(0.25, None)]),
        (
            "{'completions/clipped_ratio': 0.25, 'reward': 0.5, 'e\n{'reward': 1, 'loss': 0}",
            [(0.25, 0.5), (None, 1.0)],
        ),
        ("atio': 0.25, 'reward': 0.5, 'epoch': 1}", [(None, 0.5)]),
        (
            "{'completions/clipped_ratio': 0.25, 'reward'\n 33%| 2/6 [00:00<00:02]\n"
            "{'reward': 1, 'loss': 0}",
            [(0.25, None), (None, 1.0)],
        ),
    ],
)
def test_of_an_entry_that_is_cut_the_whole_pairs_count(
    tmp_path: Path, text: str, found: list[tuple[float | None, float | None]]
) -> None:
    trace = read(tmp_path, text)
    assert [(w.ratio, w.reward) for w in trace.training] == found
    assert trace.notes[0] == "Of 1 entries that are cut only a part could be read."


@pytest.mark.parametrize(
    "text",
    [
        "def f(completions):\n    rewards = {\n",
        "reward function {\n" + "code without an end\n" * 2000,
        "{'train_runtime': 1.0, 'train_loss': 0.1}",
        '{"reward": }',
        "{'reward': 0.5, 'answer': '42'}",  # of a reward function
        "} reward {",
        "",
    ],
)
def test_what_is_no_entry_is_passed_over(tmp_path: Path, text: str) -> None:
    trace = read(tmp_path, text)
    assert trace.training == trace.evaluation == []


def test_an_open_brace_does_not_swallow_the_log(tmp_path: Path) -> None:
    noise = "{" + "".join(f"\nline {n} without braces" for n in range(2000))
    assert ratios(read(tmp_path, f"{noise}\n{WHOLE}\n")) == [0.25]


def test_the_bar_after_an_entry_tells_its_step(tmp_path: Path) -> None:
    text = ""
    for step in (2, 4, 6):
        text += f"\r{trl_logs.bar(step - 1, 6)}\r{WHOLE}\n\r{trl_logs.bar(step, 6)}"
    trace = read(tmp_path, text + "\r100%|██████████| 2/2 [00:00<00:00]\n")
    assert [window.step for window in trace.training] == [2.0, 4.0, 6.0]
    assert trace.steps_known
    assert trace.notes == []


@pytest.mark.parametrize(
    "text",
    [
        f"{WHOLE}\n{WHOLE}\n",
        f"{WHOLE}\n 2/6 [00:00<\n{WHOLE}\n 1/6 [00:00<\n",  # they go back
        f"{WHOLE}\n 2/6 [00:00<\n{WHOLE}\n 3/7 [00:00<\n",  # of another bar
    ],
)
def test_entries_are_numbered_where_not_all_tell_their_steps(tmp_path: Path, text: str) -> None:
    trace = read(tmp_path, text)
    assert [window.step for window in trace.training] == [1.0, 2.0]
    assert not trace.steps_known
    assert trace.notes == ["The log does not tell its steps: its entries are numbered instead."]


@pytest.mark.parametrize(
    "line",
    [
        "{'step': 7, 'reward': 0.5, 'reward_std': 0.1}",
        '{"step": 7, "metrics": {"reward": 0.5, "reward_std": 0.1}}',
        "[metrics] step 7: {'reward': 0.5, 'reward_std': 0.1}",
        "Global_Step=7 {'reward': 0.5, 'reward_std': 0.1}",
    ],
)
def test_a_step_in_or_before_an_entry_is_its_own(tmp_path: Path, line: str) -> None:
    trace = read(tmp_path, line)
    assert [window.step for window in trace.training] == [7.0]
    assert trace.steps_known


def test_evaluations_stand_at_the_entry_before_them(tmp_path: Path) -> None:
    evaluation = {"eval_reward": 0.1, "eval_loss": 0.0}
    trace = read(tmp_path, f"{evaluation}\n{WHOLE}\n{WHOLE}\n{evaluation}\n")
    assert [window.step for window in trace.evaluation] == [1.0, 2.0]
    alone = read(tmp_path, f"{evaluation}\n{evaluation}\n")
    assert [window.step for window in alone.evaluation] == [1.0, 2.0]


def test_an_evaluation_whose_bar_is_its_own_stands_at_the_step_before(tmp_path: Path) -> None:
    evaluation = "{'eval_reward': 0.1, 'eval_loss': 0.0}\n 2/2 [00:00<\n"
    text = "".join(f"{WHOLE}\n {step}/6 [00:00<\n" for step in (1, 2))
    trace = read(tmp_path, evaluation + text + evaluation)
    assert [window.step for window in trace.training] == [1.0, 2.0]
    assert [window.step for window in trace.evaluation] == [0.0, 2.0]
    assert trace.steps_known


def entry(epoch: float, ratio: float) -> str:
    return f"{ {'completions/clipped_ratio': ratio, 'epoch': epoch} }\n"


def test_what_was_done_again_after_a_resume_counts_once(tmp_path: Path) -> None:
    first = "".join(entry(n / 10, 0.1) for n in range(1, 6))
    again = "".join(entry(n / 10, 0.2) for n in range(4, 8))
    trace = read(tmp_path, first + again)
    assert ratios(trace) == [0.1, 0.1, 0.1, 0.2, 0.2, 0.2, 0.2]
    assert trace.notes[0] == "Training was resumed once; what was done again counts once."
    twice = read(tmp_path, first + again + entry(0.6, 0.3))
    assert ratios(twice) == [0.1, 0.1, 0.1, 0.2, 0.2, 0.3]
    assert twice.notes[0] == "Training was resumed 2 times; what was done again counts once."


def test_of_several_runs_in_a_log_the_last_one_counts(tmp_path: Path) -> None:
    warn = "[truncation-guard] WARN truncated step=1 mode=observe share=1 limit=8 | x -> y\n"
    first = warn + "".join(entry(n / 10, 0.1) for n in range(1, 6))
    trace = read(tmp_path, first + "".join(entry(n / 10, 0.2) for n in range(1, 4)))
    assert ratios(trace) == [0.2, 0.2, 0.2]
    assert trace.notes[0] == "The log holds 2 runs; this is the last one."
    assert trace.warned == {}
    later = read(tmp_path, first + entry(0.1, 0.2) + warn + entry(0.2, 0.2))
    assert later.warned == {"truncated": 1}


def test_the_guards_lines_tell_its_mode_the_limit_and_what_it_warned_of(tmp_path: Path) -> None:
    lines = [
        "[truncation-guard] recording every generation batch in run/truncation_guard.jsonl",
        " 2/6 [00:01][truncation-guard] WARN truncated step=1 mode=exclude share=0.5 limit=64 | a",
        str(WHOLE),
        "[truncation-guard] WARN rising step=2 mode=exclude share=0.5 limit=64 window_share=1 | a",
        "[truncation-guard] WARN loss-scale step=2 mode=exclude | a -> b",
    ]
    trace = read(tmp_path, "\n".join(lines))
    assert trace.guarded
    assert trace.mode == "exclude"
    assert trace.limit == 64
    assert trace.warned == {"truncated": 1, "rising": 1, "loss-scale": 1}


@pytest.mark.parametrize(
    ("text", "limit", "masked"),
    [
        ("GRPOConfig(max_completion_length=64, mask_truncated_completions=True)", 64, True),
        ("max_completion_length: 64\nmask_truncated_completions: false", 64, False),
        ('{"max_completion_length": 64,', 64, None),
        ("trl grpo --max_completion_length 64", 64, None),
        ("max_completion_length=None", None, None),
        ("max_completion_length=4", None, None),  # completions are longer: it is another one
        ("", None, None),
    ],
)
def test_settings_that_are_printed_are_taken(
    tmp_path: Path, text: str, limit: int | None, masked: bool | None
) -> None:
    trace = read(tmp_path, f"{text}\n{WHOLE}\n")
    assert (trace.limit, trace.masked) == (limit, masked)
    assert trace.limits == (() if limit is None else (limit,))
    assert not trace.guarded


def test_the_guards_metrics_show_that_it_was_on(tmp_path: Path) -> None:
    lines = [
        *["{'reward': 1, 'truncation_guard/truncated_share': 0.5, 'truncation_guard/limit': 16}"]
        * 2,
        *["{'reward': 1, 'truncation_guard/truncated_share': 0.5, 'truncation_guard/limit': 32}"]
        * 2,
        "{'reward': 1, 'reward_std': 0, 'tools/call_frequency': 0.5}",
    ]
    trace = read(tmp_path, "\n".join(lines))
    assert trace.guarded
    assert trace.mode is None
    assert (trace.limit, trace.limits) == (32, (16, 32))
    assert trace.with_tools
