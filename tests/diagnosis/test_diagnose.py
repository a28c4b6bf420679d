"""The report, its JSON, and the command, on a log of the table."""

from __future__ import annotations

import argparse
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from rich.console import Console
from support import trl_logs

from truncation_guard.cli.diagnose import add_diagnose_command
from truncation_guard.diagnosis.diagnose import diagnose

LOGS = Path(__file__).parents[1] / "data" / "logs"
REPORT = """\
truncation is not what holds this run back: 100% of the completions ended without a known stop \
token, but below the limit: no matter of length, unless an environment's tokens, which TRL leaves \
out of the lengths, filled it
train.log (a log: means over log windows, as printed; entries: 20 of training, 0 of evaluation)

           finding            evidence                            remedy
 ───────────────────────────────────────────────────────────────────────────────────────────────────
 warning   reward             the reward went from 0.609 to       end truncation first, where there
                              0.484 from entry 1 to 20: it is     is some; then look at the reward
                              flat                                functions
 warning   short-unfinished   100% of the completions count as    a longer limit does not help,
                              clipped and yet are short (the      unless an environment's tokens,
                              longest has 90 tokens, the limit    which TRL leaves out of the
                              is 512): TRL counts what does not   lengths, filled it: look for a
                              end on a stop token that it knows   stop token that tokenizer and
                                                                  generation config do not name, for
                                                                  stop strings, tools, or an
                                                                  environment that ends them
 unknown   evaluation         there was no evaluation
 fine      pile-up            lengths do not pile up at one
                              value; the longest are 90 tokens
                              long
 fine      default-limit      the limit of 512 tokens is TRL's
                              default (since TRL 1.12), and
                              holds what was written
 fine      limit-needed       the limit of 512 tokens held 100%
                              of the completions at the end
 fine      truncated          by their lengths no completion
                              was cut off from entry 1 to 20
 fine      no-signal          12.5% of the groups taught
                              nothing at the end: all their
                              advantages are 0
 fine      guarded            there was hardly anything to
                              guard the advantages against

Note: The log does not tell its steps: its entries are numbered instead."""


@pytest.fixture
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short name in the report."""
    (tmp_path / "train.log").write_bytes((LOGS / "short_with_ratio_one.log").read_bytes())
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> int:
    """As `truncation-guard` calls the command."""
    parser = argparse.ArgumentParser()
    add_diagnose_command(parser.add_subparsers())
    options = parser.parse_args(["diagnose", *arguments])
    status: int = options.run(options)
    return status


@pytest.mark.usefixtures("_in_folder")
def test_the_report_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train.log") == 1
    out, err = capsys.readouterr()
    assert out == REPORT + "\n"
    assert err == ""


@pytest.mark.usefixtures("_in_folder")
def test_json_is_all_there_is_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train.log", "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["path", "source", "healthy", "verdict", "findings", "notes"]
    assert found["path"] == "train.log"
    assert (found["source"], found["healthy"]) == ("log", False)
    assert found["verdict"]["answer"] == "is not"
    short = next(each for each in found["findings"] if each["code"] == "short-unfinished")
    assert list(short) == ["code", "severity", "fact", "evidence", "remedy"]
    assert short["evidence"] == {
        "share": 1.0,
        "guarded": False,
        "ratio": 1.0,
        "limit": 512,
        "longest": 90.0,
    }


def test_every_diagnosis_is_json() -> None:
    for path in LOGS.rglob("*"):
        if path.is_file() and path.name != "no_metrics.log":
            json.dumps(diagnose(path).to_dict(), allow_nan=False)


def test_a_healthy_run_exits_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(LOGS / "healthy.jsonl")) == 0
    assert "no completion was cut off" in capsys.readouterr().out.splitlines()[0]


def test_what_cannot_be_read_is_raised(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="has nothing to read in it"):
        run(str(tmp_path))


def test_a_plot_is_drawn_where_it_is_asked_for(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run(str(LOGS / "healthy.jsonl"), "--plot", str(tmp_path / "run.png"))
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


def test_a_notebook_shows_the_table() -> None:
    diagnosis = diagnose(LOGS / "short_with_ratio_one.log")
    bundle = diagnosis._repr_mimebundle_()
    assert bundle["text/plain"] == str(diagnosis)
    assert bundle["text/html"].startswith("<pre ")
    assert "short-unfinished" in bundle["text/html"]
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(diagnosis)
    assert "short-unfinished" in console.export_text()


def test_the_repr_names_what_to_look_into() -> None:
    assert repr(diagnose(LOGS / "short_with_ratio_one.log")) == (
        "Diagnosis(answer='is not', source='log', codes=['reward', 'short-unfinished'])"
    )


@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("setting", ["max_completion_length=256\n", ""])
def test_lengths_that_leave_out_what_was_cut_tell_nothing(
    tmp_path: Path, setting: str, batches: int
) -> None:
    """As TRL 0.17 logs them with mask_truncated_completions."""
    task = trl_logs.Task(1, 256, 300, 60)
    text = setting
    for step in range(1, 41):
        made = [task.batch(16) for _ in range(batches)]
        lengths = [[n if ended else 0 for n, ended, _ in batch] for batch in made]
        masked = {
            "completions/mean_length": fmean(fmean(batch) for batch in lengths),
            "completions/min_length": fmean(min(batch) for batch in lengths),
            "completions/max_length": fmean(max(batch) for batch in lengths),
        }
        text += f"{trl_logs.printed(trl_logs.entry(step, 40, made) | masked)}\n"
    found = diagnose(trl_logs.write(tmp_path / "train.log", text))
    at = " at 256 tokens" if setting else ""
    assert found.verdict.answer == "is"
    assert f"% of the completions were cut off{at} at the end" in found.verdict.reason
    assert "at most" not in found.verdict.reason
    assert "short-unfinished" not in {finding.code for finding in found.findings}
    assert found.trace.notes[-1] == (
        "Completions that were cut have a length of 0, as TRL 0.17 logs them with "
        "mask_truncated_completions: where some were cut, the lengths are left out."
    )


def test_tools_make_lengths_uncertain_and_a_note_says_so(tmp_path: Path) -> None:
    metrics = {"reward": 0.5, "completions/clipped_ratio": 0.5, "tools/call_frequency": 1.0}
    path = trl_logs.write(tmp_path / "train.log", f"{metrics}\n")
    assert diagnose(path).trace.notes[-1] == (
        "Tools were called: TRL leaves their tokens out of the lengths, so a completion may be cut "
        "and yet be shorter than the limit."
    )
    guarded = metrics | {"truncation_guard/truncated_share": 0.5}
    trl_logs.write(path, f"{guarded}\n")
    assert not any("Tools" in note for note in diagnose(path).trace.notes)


LOADED = """
import sys
{statements}
print(sorted({{"torch", "transformers", "trl", "datasets", "pyarrow", "scipy", "numpy", "rich"}} &
             sys.modules.keys()))
"""


@pytest.mark.parametrize(
    ("statements", "loaded"),
    [
        ("import truncation_guard.cli.diagnose", []),
        (
            "from truncation_guard.diagnosis.diagnose import diagnose\n"
            f"diagnose({str(LOGS / 'default_256.log')!r})",
            ["numpy"],
        ),
        ("import numpy, rich", ["numpy", "rich"]),  # the test of the test
    ],
)
def test_nothing_heavy_is_loaded(statements: str, loaded: list[str]) -> None:
    script = LOADED.format(statements=statements)
    output = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    assert output.stdout.decode().strip() == str(loaded)


def table_of(text: str) -> list[str]:
    return re.findall(r"^ (?:problem|warning|unknown|fine) +(\S+)", text, flags=re.MULTILINE)


def test_the_worst_comes_first() -> None:
    diagnosis: Any = diagnose(LOGS / "default_256.log")
    order = ["problem", "warning", "unknown", "fine"]
    expected = sorted(diagnosis.findings, key=lambda found: order.index(found.severity))
    assert table_of(str(diagnosis)) == [found.code for found in expected]


def test_a_run_of_which_nothing_can_be_said_is_not_healthy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rises = "".join(f"{{'reward': {n / 10}, 'reward_std': 0.1}}\n" for n in range(10))
    path = trl_logs.write(tmp_path / "train.log", rises)
    assert run(str(path), "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["healthy"] is False
    assert found["verdict"]["reason"].startswith("what there is does not tell")
    assert {each["severity"] for each in found["findings"]} <= {"unknown", "fine"}


def test_a_solved_run_is_healthy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = trl_logs.Task(0, 512, 100, 20, right=1.0)
    entries = [trl_logs.printed(trl_logs.entry(n, 20, [task.batch()])) for n in range(20)]
    assert run(str(trl_logs.write(tmp_path / "train.log", "\n".join(entries)))) == 0
    assert "no completion was cut off" in capsys.readouterr().out.splitlines()[0]


@pytest.mark.parametrize("name", ["run.jpg", "run", "nowhere/run.png", "folder.png"])
def test_a_plot_that_cannot_be_drawn_is_refused_before_the_work(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ValueError, match=r"must be a \.png file in a folder that exists"):
        run(str(tmp_path / "nothing.log"), "--plot", str(tmp_path / name))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.png"]
