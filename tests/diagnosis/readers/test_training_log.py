from __future__ import annotations

import time
from pathlib import Path

import pytest
from support import trl_logs

from truncation_guard.diagnosis.readers.training_log import read_log
from truncation_guard.diagnosis.run import RunTrace

WHOLE = {"reward": 0.5, "completions/clipped_ratio": 0.25, "completions/max_length": 8.0}


def read(tmp_path: Path, text: str) -> RunTrace:
    path = tmp_path / "train.log"
    path.write_bytes(text.encode())
    return read_log(path, "utf-8")


def ratios(trace: RunTrace) -> list[float | None]:
    return [entry.ratio for entry in trace.training]


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
    assert [entry.step for entry in trace.training] == [2.0, 4.0, 6.0]
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
    assert [entry.step for entry in trace.training] == [1.0, 2.0]
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
    assert [entry.step for entry in trace.training] == [7.0]
    assert trace.steps_known


def test_evaluations_stand_at_the_entry_before_them(tmp_path: Path) -> None:
    evaluation = {"eval_reward": 0.1, "eval_loss": 0.0}
    trace = read(tmp_path, f"{evaluation}\n{WHOLE}\n{WHOLE}\n{evaluation}\n")
    assert [entry.step for entry in trace.evaluation] == [1.0, 2.0]
    alone = read(tmp_path, f"{evaluation}\n{evaluation}\n")
    assert [entry.step for entry in alone.evaluation] == [1.0, 2.0]


def test_an_evaluation_whose_bar_is_its_own_stands_at_the_step_before(tmp_path: Path) -> None:
    evaluation = "{'eval_reward': 0.1, 'eval_loss': 0.0}\n 2/2 [00:00<\n"
    text = "".join(f"{WHOLE}\n {step}/6 [00:00<\n" for step in (1, 2))
    trace = read(tmp_path, evaluation + text + evaluation)
    assert [entry.step for entry in trace.training] == [1.0, 2.0]
    assert [entry.step for entry in trace.evaluation] == [0.0, 2.0]
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


def test_a_second_stage_in_a_log_is_another_run(tmp_path: Path) -> None:
    """Its first entry is further on, for it has fewer steps, but it has seen fewer tokens."""

    def line(step: int, steps: int, ratio: float) -> str:
        more = {"num_tokens": f"{1000.0 * step:.4g}", "epoch": f"{step / steps:.4g}"}
        return f"{WHOLE | more | {'completions/clipped_ratio': ratio}}\n"

    first = "".join(line(step, 400, 0.9) for step in range(1, 21))
    trace = read(tmp_path, first + "".join(line(step, 40, 0.1) for step in (10, 20, 30)))
    assert ratios(trace) == [0.1, 0.1, 0.1]
    assert trace.notes[0] == "The log holds 2 runs; this is the last one."


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
    ("line", "guarded"),
    [
        ("recording every generation batch in run/truncation_guard.jsonl", True),
        ("training ended at step 8: 3 of 64 completions were truncated (4.69%)", True),
        ("lengths of 64 completions in tokens", True),
        ("ERROR the limit could not be raised.", True),
        ("reference answers are taken from column `answer`", False),
        ("Half of the answers in column `answer` have at most 5 tokens", False),
    ],
)
def test_what_profile_dataset_logs_is_of_no_guard(tmp_path: Path, line: str, guarded: bool) -> None:
    trace = read(tmp_path, f"[truncation-guard] {line}\n{WHOLE}\n")
    assert trace.guarded is guarded
    assert trace.switched_off is None


OFF = "[truncation-guard] ERROR the guard failed and is switched off. Training goes on."
MEASURED = WHOLE | {"truncation_guard/truncated_share": 0.25}


@pytest.mark.parametrize(
    ("entries", "last_step"),
    [
        ([OFF, WHOLE, WHOLE], 0),
        ([MEASURED, OFF, WHOLE], 1),
        ([MEASURED, OFF, MEASURED, WHOLE], 1),  # the log entry began before the line
        ([MEASURED, OFF, WHOLE, OFF, WHOLE], 1),  # of another process
        ([MEASURED, OFF, MEASURED], None),
        ([MEASURED, OFF, WHOLE, MEASURED], None),  # resumed with another guard
        ([MEASURED, OFF], None),
        ([OFF], None),
    ],
)
def test_the_guard_may_switch_itself_off(
    tmp_path: Path, entries: list[object], last_step: float | None
) -> None:
    trace = read(tmp_path, "\n".join(map(str, entries)))
    assert trace.guarded
    assert trace.switched_off == last_step


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


# --- what other people print ----------------------------------------------------------------------

TRLS = "{'loss': 0.1, 'reward': 0.25, 'reward_std': 0.5, 'completions/clipped_ratio': 0.75}"
USERS = [
    "{'step': 3, 'reward': 0.9}",
    "{'epoch': 0.5, 'step': 3, 'reward': 0.9}",
    '{"step": 3, "reward": 0.9, "completion": "x"}',
    "[{'step': 1, 'reward': 0.9}, {'step': 2, 'reward': 0.9}]",
    "reward_func {'reward': 0.9, 'answer': '42', 'step': 7}",
]


@pytest.mark.parametrize("line", USERS)
def test_a_reward_that_a_script_prints_is_no_entry(tmp_path: Path, line: str) -> None:
    assert read(tmp_path, f"{line}\n").training == []
    trace = read(tmp_path, f"{line}\n{TRLS}\n{line}\n{line}\n")
    assert [(entry.reward, entry.step) for entry in trace.training] == [(0.25, 1.0)]


def test_lines_of_another_trainer_count_only_where_there_are_none_of_trl(tmp_path: Path) -> None:
    other = "{'step': 3, 'loss': 0.1, 'reward': 0.9}"
    assert [w.reward for w in read(tmp_path, f"{other}\n").training] == [0.9]
    assert [w.reward for w in read(tmp_path, f"{other}\n{TRLS}\n{other}\n").training] == [0.25]


def test_an_entry_that_two_processes_print_counts_once(tmp_path: Path) -> None:
    lines = [f"{{'num_tokens': {n}, 'reward': 0.5, 'reward_std': 0.1}}" for n in (10, 20, 30)]
    assert len(read(tmp_path, "\n".join(lines + lines[-1:] * 2)).training) == 3
    assert len(read(tmp_path, f"{TRLS}\n{TRLS}\n").training) == 2  # nothing tells them apart


def test_colours_within_an_entry_are_taken_out(tmp_path: Path) -> None:
    text = "{\x1b[32m'reward'\x1b[0m: 0.5, \x1b[32m'completions/clipped_ratio'\x1b[0m: 0.25}\n"
    assert [(w.reward, w.ratio) for w in read(tmp_path, text).training] == [(0.5, 0.25)]


@pytest.mark.parametrize("other", ["[rank1] {x}", "{'a': 1}", "\\frac{1}{2}"])
def test_of_an_entry_that_another_process_wrote_into_the_rest_counts(
    tmp_path: Path, other: str
) -> None:
    text = f"{{'loss': 0.1, {other} 'reward': 0.5, 'completions/clipped_ratio': 0.25}}\n"
    trace = read(tmp_path, text)
    assert [(w.reward, w.ratio) for w in trace.training] == [(0.5, 0.25)]
    assert trace.notes[0] == "Of 1 entries that are cut only a part could be read."


# --- braces of other text -------------------------------------------------------------------------

LATEX = (
    "so \\frac{1}{2} of \\sqrt{x_{1}^{2}} is \\text{ the reward of } \\boxed{42} \\left\\{ "
    "\\{1\\} {\n"
)


def test_printed_latex_neither_hides_nor_makes_entries(tmp_path: Path) -> None:
    text = "".join(LATEX * 20 + entry(n / 10, n / 10) for n in range(1, 6))
    trace = read(tmp_path, text)
    assert ratios(trace) == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert not any("cut" in note for note in trace.notes)


def test_an_entry_after_other_text_in_one_endless_line_is_found(tmp_path: Path) -> None:
    """Lines are read in pieces, and an entry may lie over the border of two."""
    for length in range(65_500, 65_540, 3):
        text = LATEX.rstrip("\n") * 2 + "x" * length + " " + entry(0.1, 0.3).rstrip("\n") + LATEX
        assert ratios(read(tmp_path, text[-length - 400 :])) == [0.3], length


def test_a_bar_after_an_open_brace_still_tells_the_step(tmp_path: Path) -> None:
    steps = "".join(f"{TRLS}\n{LATEX} {n}/6 [00:00<\n" for n in (1, 2))
    assert [entry.step for entry in read(tmp_path, steps).training] == [1.0, 2.0]


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["{", "{'a", '{ "', "{\n", "{'\n", "}", "{'reward\n", "{}" * 50])
def test_the_time_for_a_log_grows_with_its_length_alone(tmp_path: Path, noise: str) -> None:
    """Ten times the text in much less than a hundred times the time."""
    (tmp_path / "a.log").write_text(noise * 20_000)
    (tmp_path / "b.log").write_text(noise * 200_000)

    def seconds(name: str) -> float:
        start = time.process_time()
        read_log(tmp_path / name, "utf-8")
        return time.process_time() - start

    assert seconds("b.log") < 30 * max(min(seconds("a.log") for _ in range(3)), 0.01)


# --- the limit of each part -----------------------------------------------------------------------


def at(limit: int, epoch: float) -> str:
    figures = {"completions/clipped_ratio": 1.0, "completions/max_length": float(limit)}
    return f"{figures | {'completions/mean_length': float(limit), 'epoch': epoch}}\n"


def test_a_setting_that_is_printed_again_counts_from_there_on(tmp_path: Path) -> None:
    before = "".join(at(256, n / 10) for n in (1, 2, 3))
    after = "".join(at(512, n / 10) for n in (4, 5))
    trace = read(tmp_path, f"max_completion_length=256\n{before}max_completion_length=512\n{after}")
    assert [entry.limit for entry in trace.training] == [256, 256, 256, 512, 512]
    assert (trace.limit, trace.limits) == (512, (256, 512))
    late = read(tmp_path, f"{before}max_completion_length=256\n")
    assert [entry.limit for entry in late.training] == [256] * 3


def test_short_completions_of_one_length_do_not_speak_against_a_setting(tmp_path: Path) -> None:
    text = "".join(at(20, n / 10) for n in range(5))
    assert read(tmp_path, f"max_completion_length=512\n{text}").limit == 512
    text = "".join(at(128, n / 10) for n in range(5))
    assert read(tmp_path, f"max_completion_length=512\n{text}").limit is None


def test_warn_lines_name_limits_exactly(tmp_path: Path) -> None:
    warn = (
        "[truncation-guard] WARN limit-raised step=7 mode=downweight limit=16 raised_to=32 "
        "window_share=0.8 | a -> b\n"
    )
    metrics = {"reward": 1, "truncation_guard/truncated_share": 0.5}
    one, mean, two = (f"{metrics | {'truncation_guard/limit': n}}\n" for n in (16, 24, 32))
    trace = read(tmp_path, one + warn + mean + two)
    assert [entry.limit for entry in trace.training] == [16, None, 32]
