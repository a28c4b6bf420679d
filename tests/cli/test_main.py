from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest
import yaml
from support import tiny

from truncation_guard import __version__
from truncation_guard.cli.main import main

ROWS = [{"question": "w3 w4", "answer": " ".join(["w5"] * n)} for n in range(1, 101)]


@pytest.fixture(autouse=True)
def _no_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing stays in the user's cache, and logging is what it was."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    package, root = logging.getLogger("truncation_guard"), logging.getLogger()
    level, handlers = package.level, list(root.handlers)
    yield
    package.setLevel(level)
    root.handlers[:] = handlers


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with a tokenizer alone."""
    folder = tmp_path / "model"
    tiny.tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def arguments(data: Path | str, model: Path, *more: str) -> list[str]:
    return ["profile", "--dataset_name", str(data), "--model_name_or_path", str(model), *more]


def error_of(capsys: pytest.CaptureFixture[str], *given: str) -> str:
    """The one line that the command fails with."""
    with pytest.raises(SystemExit) as stopped:
        main(list(given))
    assert stopped.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()[-1]


# --- the result ---------------------------------------------------------------------------------


def test_the_result_goes_to_stdout_and_ends_in_a_line_for_yaml(
    data: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(arguments(data, model, "--column", "answer"))
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0] == "100 reference answers (answer), lengths in tokens"
    # The answers have 1 to 100 words, and a stop token each: 96 tokens hold 95 of them.
    assert yaml.safe_load(lines[-1]) == {"max_completion_length": 128}
    assert "max_completion_length=128 for a coverage of 95%" in out
    assert "profile_rollouts" in out
    assert "max_completion_length" not in err


def test_the_options_reach_the_recommendation(
    data: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(arguments(data, model, "--coverage", "0.5", "--multiple_of", "1"))
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == "max_completion_length: 51"
    assert "max_completion_length=51 for a coverage of 50%" in out


def test_hyphens_are_as_good_as_underscores(
    data: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(
        f"profile --dataset-name {data} --model-name-or-path {model} --dataset-train-split train "
        "--multiple-of 1 --max-samples 100".split()
    )
    assert capsys.readouterr().out.splitlines()[-1] == "max_completion_length: 96"


def test_json_is_all_there_is_on_stdout(
    data: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(arguments(data, model, "--json", "--coverage", "0.9", "--multiple_of", "1"))
    found = json.loads(capsys.readouterr().out)
    assert found["percentiles"]["p50"] == 51
    assert found["recommendation"]["coverage"] == 0.9
    assert found["recommendation"]["max_completion_length"] == 91


def test_a_sample_is_drawn_by_its_seed(
    data: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = []
    for seed in ("1", "1", "2"):
        main(arguments(data, model, "--json", "--max_samples", "10", "--seed", seed))
        drawn.append(json.loads(capsys.readouterr().out))
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0]["completions"] == 10


def test_a_plot_is_drawn_where_it_is_asked_for(data: Path, model: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    main(arguments(data, model, "--plot", str(tmp_path / "lengths.png")))
    assert (tmp_path / "lengths.png").read_bytes().startswith(b"\x89PNG")


# --- where data come from -----------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["jsonl", "json", "parquet", "csv"])
def test_local_files_are_read_by_their_ending(
    ending: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"answers.{ending}"
    rows = datasets.Dataset.from_list(ROWS)
    {
        "jsonl": rows.to_json,
        "json": lambda name: Path(name).write_text(json.dumps(ROWS)),
        "parquet": rows.to_parquet,
        "csv": rows.to_csv,
    }[ending](str(path))
    main(arguments(path, model, "--multiple_of", "1"))
    assert capsys.readouterr().out.splitlines()[-1] == "max_completion_length: 96"


def test_a_folder_of_files_is_read(
    data: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    data.rename(folder / "train.jsonl")
    main(arguments(folder, model, "--multiple_of", "1"))
    assert capsys.readouterr().out.splitlines()[-1] == "max_completion_length: 96"


@pytest.mark.parametrize("splits", [True, False])
def test_a_data_set_saved_to_disk_is_read(
    splits: bool, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: Any = datasets.Dataset.from_list(ROWS)
    if splits:
        rows = datasets.DatasetDict({"train": rows, "test": rows.select(range(10))})
    rows.save_to_disk(str(tmp_path / "saved"))
    capsys.readouterr()
    main(arguments(tmp_path / "saved", model, "--multiple_of", "1"))
    assert capsys.readouterr().out.splitlines()[-1] == "max_completion_length: 96"


def test_the_window_of_the_model_bounds_the_limit(
    data: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.model().config.save_pretrained(model)  # a window of 64 tokens
    rows = [{"prompt": "w3 w4 w5 w6", "completion": row["answer"]} for row in ROWS]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    main(arguments(data, model))
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == "max_completion_length: 60"
    assert "capped at 60 tokens, which holds 59%" in " ".join(out.split())


# --- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--coverage", "95"], "`coverage` must be in (0, 1], got 95.0. Pass 0.95 for 95 %."),
        (
            ["--multiple_of", "0"],
            "`multiple_of` must be an integer of at least 1, got 0. Pass 1 for no rounding.",
        ),
    ],
)
def test_bad_options_are_one_line(
    options: list[str],
    text: str,
    data: Path,
    model: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = error_of(capsys, *arguments(data, model, *options))
    assert error == f"truncation-guard: error: {text}"


def test_a_column_that_is_not_there_is_one_line_with_those_that_are(
    data: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = error_of(capsys, *arguments(data, model, "--column", "solution"))
    assert error.startswith("truncation-guard: error: ")
    assert "solution" in error
    assert "question" in error
    assert "answer" in error


def test_a_file_that_is_not_what_its_ending_says_is_one_line(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("data.parquet", "data.jsonl", "data.json"):
        (tmp_path / name).write_bytes(b"\x00\x01 no such thing {")
        error = error_of(capsys, *arguments(tmp_path / name, model))
        assert error.startswith(f"truncation-guard: error: {tmp_path / name} cannot be read: ")


def test_a_file_of_another_kind_is_one_line(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data.txt").write_text("w3")
    assert error_of(capsys, *arguments(tmp_path / "data.txt", model)) == (
        f"truncation-guard: error: {tmp_path / 'data.txt'} is not a file that can be read. Pass "
        "one of .jsonl, .json, .parquet, .csv, a folder, or a name on the hub."
    )


def test_a_torn_last_line_of_the_data_is_one_line(
    data: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data.write_text(data.read_text()[:-20])
    error = error_of(capsys, *arguments(data, model))
    assert error.startswith(f"truncation-guard: error: {data} cannot be read: ")


def test_a_split_that_is_not_there_is_one_line_with_those_that_are(
    data: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    data.rename(folder / "train.jsonl")
    error = error_of(capsys, *arguments(folder, model, "--dataset_train_split", "dev"))
    assert "dev" in error
    assert "train" in error
    datasets.DatasetDict({"test": datasets.Dataset.from_list(ROWS)}).save_to_disk(
        str(tmp_path / "saved")
    )
    error = error_of(capsys, *arguments(tmp_path / "saved", model))
    assert error == (
        f"truncation-guard: error: {tmp_path / 'saved'} has no split 'train'; it has test."
    )


def test_names_that_are_nowhere_are_one_line(
    data: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no-such/data" in error_of(capsys, *arguments("no-such/data", model))
    assert "nowhere" in error_of(capsys, *arguments(data, tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ([], "the following arguments are required: {profile,diagnose}"),
        (
            ["profile", "--coverage", "x"],
            "argument --coverage: invalid float value: 'x'",
        ),
        (
            ["judge"],
            "argument {profile,diagnose}: invalid choice: 'judge' (choose from 'profile', "
            "'diagnose')",
        ),
    ],
)
def test_arguments_that_make_no_sense_are_one_line(
    given: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(given)
    assert stopped.value.code == 2
    assert capsys.readouterr().err.splitlines() == [f"truncation-guard: error: {problem}"]


def test_files_of_nothing_are_one_line(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, content in (("a.jsonl", ""), ("b.jsonl", "\n\n"), ("c.csv", "x"), ("d.json", "[]")):
        (tmp_path / name).write_text(content)
        error = error_of(capsys, *arguments(tmp_path / name, model))
        assert error.startswith(f"truncation-guard: error: {tmp_path / name} cannot be read: "), (
            name
        )


def test_a_local_file_that_is_not_there_is_not_looked_for_on_the_hub(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = error_of(capsys, *arguments("nowhere.jsonl", model))
    assert error == "truncation-guard: error: nowhere.jsonl does not exist."


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--dataset_train_split", "dev"], "split 'dev'"),
        (["--dataset_config", "main"], "configuration 'main'"),
    ],
)
def test_a_single_file_has_no_splits(
    options: list[str], what: str, data: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert error_of(capsys, *arguments(data, model, *options)) == (
        f"truncation-guard: error: {data} is a single file, which has no {what}. Leave the option "
        "out."
    )


@pytest.mark.parametrize("name", ["lengths.pdf", "nowhere/lengths.png", ""])
def test_a_picture_that_cannot_be_drawn_is_refused_before_the_work(
    name: str, data: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / name) if name else ""
    shown = str(Path(path))
    assert error_of(capsys, *arguments(data, model, "--plot", path)) == (
        "truncation-guard: error: `--plot` must be a .png file in a folder that exists, got "
        f"{shown!r}. Pass for example lengths.png."
    )


def test_the_window_can_be_given(
    data: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"prompt": "w3 w4 w5 w6", "completion": row["answer"]} for row in ROWS]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    main(arguments(data, model, "--context_window", "50"))
    out = " ".join(capsys.readouterr().out.split())
    assert out.endswith("max_completion_length: 46")
    assert "max_completion_length=46 is the most that is allowed, and short of a coverage" in out


def test_a_window_of_nothing_is_refused(
    data: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "`context_window` must be an integer of at least 1, got 0." in error_of(
        capsys, *arguments(data, model, "--context_window", "0")
    )


@pytest.mark.parametrize("text", ["{}", "{"])
def test_a_broken_tokenizer_ends_in_one_line(
    text: str, data: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / "tokenizer.json").write_text(text)
    error = error_of(capsys, *arguments(data, model))
    assert error.startswith(f"truncation-guard: error: The tokenizer of {model} cannot be read: ")


@pytest.mark.slow
def test_a_console_of_another_encoding_gets_the_result_too(data: Path, model: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "truncation_guard", *arguments(data, model)],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "cp1252", "HF_HOME": str(data.parent / "hf")},
        check=True,
        timeout=120,
    )
    assert done.stdout.splitlines()[-1] == b"max_completion_length: 128"


LOGS = Path(__file__).parents[1] / "data" / "logs"


@pytest.mark.parametrize(
    ("log", "status", "verdict"),
    [
        ("healthy.jsonl", 0, "truncation is not what"),
        ("masked_rising.log", 1, "truncation is what"),
    ],
)
def test_diagnose_exits_with_whether_it_found_something(
    log: str, status: int, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if status:
        with pytest.raises(SystemExit) as stopped:
            main(["diagnose", str(LOGS / log)])
        assert stopped.value.code == status
    else:
        main(["diagnose", str(LOGS / log)])
    captured = capsys.readouterr()
    assert captured.out.startswith(verdict)
    assert captured.err == ""


def test_what_cannot_be_diagnosed_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert str(tmp_path) in error_of(capsys, "diagnose", str(tmp_path))
    assert "nowhere" in error_of(capsys, "diagnose", str(tmp_path / "nowhere"))


RISES = "".join(f"{{'reward': {n / 10}, 'reward_std': 0.1}}\n" for n in range(10))


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_run_that_does_not_tell_is_not_healthy(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.log").write_text(RISES)
    with pytest.raises(SystemExit) as stopped:
        main(["diagnose", str(tmp_path), *options])
    assert stopped.value.code == 1
    assert "does not tell whether completions were cut off" in capsys.readouterr().out


@pytest.mark.parametrize("limit", ["1e400", "NaN", "-5", '"x"', "1" + "0" * 400])
def test_a_record_of_odd_numbers_is_one_line(
    limit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = (
        '{"kind":"batch","split":"train","step":0,"batch":0,"mode":"observe","limit":LIMIT,'
        '"truncated":0,"stopped":0,"causes":{"context":0,"tool":0},"groups":1,'
        '"groups_without_signal":0,"reward":1.0,'
        '"lengths":{"bin_width":1,"ended":[[2,4]],"cut":[]}}'
    )
    path = tmp_path / "truncation_guard.jsonl"
    path.write_text(f'{{"kind":"start"}}\n{batch.replace("LIMIT", limit)}\n')
    assert error_of(capsys, "diagnose", str(path), "--json") == (
        f"truncation-guard: error: {path} has 1 generation batches without their counts or "
        "lengths. Pass a record as a TruncationGuardCallback wrote it."
    )


@pytest.mark.parametrize("name", ["run.jpg", "run.svg", "nowhere/run.png"])
def test_a_picture_of_a_run_that_cannot_be_drawn_is_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / name)
    error = error_of(capsys, "diagnose", str(LOGS / "healthy.jsonl"), "--plot", path)
    assert error == (
        "truncation-guard: error: `--plot` must be a .png file in a folder that exists, got "
        f"{path!r}. Pass for example lengths.png."
    )


def test_the_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out.strip() == __version__


def test_python_m_is_the_same_command_and_help_loads_nothing_heavy() -> None:
    code = (
        "import runpy, sys; sys.argv = ['truncation-guard', 'profile', '--help']\n"
        "try: runpy.run_module('truncation_guard', run_name='__main__')\n"
        "except SystemExit as stopped: code = stopped.code\n"
        "print(code, [name for name in ('torch', 'numpy', 'datasets') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert "--dataset_name" in done.stdout
    assert done.stdout.splitlines()[-1] == "0 []"


def test_a_reader_that_stops_reading_is_no_error() -> None:
    log = Path(__file__).parents[1] / "data" / "logs" / "masked_rising.log"
    command = [sys.executable, "-m", "truncation_guard", "diagnose", str(log)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors == b""
