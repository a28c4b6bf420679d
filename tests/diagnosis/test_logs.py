"""Every log of `tests/data/logs` with its verdict and what there is to look into.

The logs were written for the purpose, after what people post, by `trl_logs`, which computes TRL's
metrics apart from the package. `rloo.log` is of a real RLOOTrainer.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest
from support import trl_logs

from truncation_guard.diagnosis.diagnose import Diagnosis, diagnose

LOGS = Path(__file__).parents[1] / "data" / "logs"


class Expected(NamedTuple):
    file: str
    answer: str
    reason: str
    problems: str
    warnings: str


EXPECTED = [
    Expected(
        "all_truncated_nan.log",
        "is",
        "100% of the completions were cut off at 400 tokens at the end, and most of the "
        "time all rewards are equal; stop tokens that do not fire would look the same, and that "
        "this length is the limit is assumed",
        "truncated",
        "pile-up warned no-signal reward guarded stop-tokens",
    ),
    Expected(
        "cut_lines.log",
        "is",
        "96.9% of the completions were cut off at 256 tokens at the end, and most of the "
        "time all rewards are equal",
        "truncated",
        "pile-up default-limit warned no-signal reward guarded",
    ),
    Expected(
        "default_256.log",
        "is",
        "100% of the completions were cut off at 256 tokens at the end, and most of the "
        "time all rewards are equal",
        "truncated",
        "pile-up default-limit warned no-signal reward guarded",
    ),
    Expected(
        "default_512_numbers.log",
        "is",
        "51.2% of the completions were cut off at 512 tokens at the end, and 72.5% of the "
        "groups teach nothing",
        "truncated",
        "pile-up default-limit warned no-signal reward guarded",
    ),
    Expected(
        "entries_without_generation.log",
        "is not",
        "no completion was cut off",
        "",
        "",
    ),
    Expected(
        "eval_only.log",
        "may be",
        "15.6% of the answers were cut off in its last evaluation, but there is nothing "
        "about its training",
        "",
        "default-limit evaluation",
    ),
    Expected(
        "evaluation_truncated.log",
        "is not",
        "no completion was cut off",
        "",
        "evaluation",
    ),
    Expected(
        "flat_without_truncation.log",
        "is not",
        "no completion was cut off, and the reward did not rise all the same",
        "",
        "no-signal reward",
    ),
    Expected(
        "guarded_rising_bars_on_the_line.log",
        "is",
        "69.8% of the completions were cut off at 200 tokens at the end, and 75% of the "
        "groups teach nothing",
        "truncated",
        "pile-up no-signal reward rising",
    ),
    Expected(
        "healthy.jsonl",
        "is not",
        "no completion was cut off",
        "",
        "",
    ),
    Expected(
        "long_limit_four_digits.log",
        "is",
        "93.8% of the completions were cut off at 16384 tokens at the end, and 91.7% of the "
        "groups teach nothing",
        "truncated",
        "pile-up warned no-signal reward guarded",
    ),
    Expected(
        "masked_rising.log",
        "is",
        "25.8% of the completions were cut off at 300 tokens at the end, and the reward "
        "does not rise",
        "truncated",
        "pile-up warned reward guarded rising",
    ),
    Expected(
        "one_entry/trainer_state.json",
        "is",
        "100% of the completions were cut off at 512 tokens at the end, and most of the "
        "time all rewards are equal, as far as a single entry tells; stop tokens that do "
        "not fire would look the same, and that this length is the limit is assumed",
        "truncated",
        "pile-up default-limit warned no-signal reward guarded stop-tokens",
    ),
    Expected(
        "powershell_utf16.log",
        "is",
        "87.5% of the completions were cut off at 256 tokens at the end, and most of the "
        "time all rewards are equal",
        "truncated",
        "pile-up default-limit warned no-signal reward guarded",
    ),
    Expected(
        "recovered_ten_entries/trainer_state.json",
        "is not",
        "57.8% of the completions were cut off for a time, but 0% at the end, and hardly "
        "any after step 20",
        "",
        "",
    ),
    Expected(
        "rises_all_the_same.log",
        "may be",
        "29.7% of the completions were cut off at 512 tokens at the end, but the reward rises",
        "truncated",
        "pile-up default-limit warned guarded",
    ),
    Expected(
        "rloo.log",
        "is",
        "93.8% of the completions were cut off at 8 tokens at the end",
        "truncated",
        "pile-up warned guarded evaluation",
    ),
    Expected(
        "short_with_ratio_one.log",
        "is not",
        "100% of the completions ended without a known stop token, but below the limit: no matter "
        "of length, unless an environment's tokens, which TRL leaves out of the lengths, filled it",
        "",
        "reward short-unfinished",
    ),
    Expected(
        "some_truncated.log",
        "is not",
        "only 3.75% of the completions were cut off, and the reward did not rise all the same",
        "",
        "reward",
    ),
    Expected(
        "stop_token_rarely_fires.log",
        "is",
        "64.1% of the completions were cut off at 1024 tokens at the end, and the reward "
        "does not rise; but what ends does so much earlier, so a longer limit may not help",
        "truncated",
        "pile-up warned reward guarded two-lengths",
    ),
    Expected(
        "trl_0_15_mean_length.log",
        "is",
        "100% of the completions were cut off at 200 tokens at the end, and most of the "
        "time all rewards are equal",
        "truncated",
        "pile-up warned reward guarded",
    ),
    Expected(
        "two_runs_one_resumed.log",
        "is not",
        "no completion was cut off",
        "",
        "",
    ),
]


def codes(diagnosis: Diagnosis, severity: str) -> str:
    return " ".join(found.code for found in diagnosis.findings if found.severity == severity)


@pytest.mark.parametrize("expected", EXPECTED, ids=lambda expected: expected.file)
def test_every_log_has_its_verdict_and_findings(expected: Expected) -> None:
    diagnosis = diagnose(LOGS / expected.file)
    assert diagnosis.verdict.answer == expected.answer
    assert diagnosis.verdict.reason == expected.reason
    assert codes(diagnosis, "problem") == expected.problems
    assert codes(diagnosis, "warning") == expected.warnings
    assert diagnosis.healthy is (expected.problems == expected.warnings == "")


def test_every_log_is_in_the_table() -> None:
    files = {str(path.relative_to(LOGS)) for path in LOGS.rglob("*") if path.is_file()}
    assert files == {expected.file for expected in EXPECTED} | {"no_metrics.log"}


@pytest.mark.parametrize(
    ("file", "entries"),
    [
        ("default_256.log", 20),
        ("default_512_numbers.log", 25),
        ("flat_without_truncation.log", 20),
        ("masked_rising.log", 40),
        ("some_truncated.log", 60),
        ("stop_token_rarely_fires.log", 20),
        ("guarded_rising_bars_on_the_line.log", 30),
        ("rloo.log", 3),
    ],
)
def test_the_shares_are_those_of_the_log(file: str, entries: int) -> None:
    """Read again by Python itself, from whole lines."""
    ratios = []
    for line in (LOGS / file).read_text(encoding="utf-8").splitlines():
        if "{" in line and "'completions/clipped_ratio'" in line:
            metrics = ast.literal_eval(line[line.index("{") : line.rindex("}") + 1])
            ratios.append(float(metrics["completions/clipped_ratio"]))
    fifth = max(len(ratios) // 5, 1)
    cut = diagnose(LOGS / file).measures.cut
    assert cut is not None
    assert len(ratios) == cut.entries == entries
    assert cut.overall == pytest.approx(sum(ratios) / entries)
    assert cut.first == pytest.approx(sum(ratios[:fifth]) / fifth)
    assert cut.last == pytest.approx(sum(ratios[-fifth:]) / fifth)
    assert cut.highest == max(ratios)


@pytest.mark.slow
def test_a_state_of_ten_thousand_entries(tmp_path: Path) -> None:
    """A tenth is cut all along; batches are few and small, so single entries scatter widely."""
    task = trl_logs.Task(0, 512, 300, 50, never=0.1, right=0.5)
    entries = [(step, trl_logs.entry(step, 10_000, [task.batch(8)])) for step in range(1, 10_001)]
    ratio = sum(metrics["completions/clipped_ratio"] for _, metrics in entries) / 10_000
    path = trl_logs.write(tmp_path / "trainer_state.json", trl_logs.state(entries, 10_000))
    diagnosis = diagnose(path)
    cut = diagnosis.measures.cut
    assert cut is not None
    assert cut.entries == 10_000
    assert cut.overall == pytest.approx(ratio)
    assert diagnosis.measures.steps == (1, 10_000)
    assert diagnosis.verdict.answer == "may be"
    assert codes(diagnosis, "problem") == ""
    assert codes(diagnosis, "warning") == ("pile-up default-limit truncated warned reward guarded")
    assert diagnosis.measures.ended_length == pytest.approx(300, rel=0.01)


def test_a_log_without_metric_lines_is_refused() -> None:
    path = LOGS / "no_metrics.log"
    message = (
        f"{path} has no metric line: no Python dict or JSON with a reward or completions/*. Pass a "
        "run's output folder (with truncation_guard.jsonl, checkpoint-*/trainer_state.json, a log "
        "or completions/*.parquet), a trainer_state.json, or a training log."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        diagnose(path)
