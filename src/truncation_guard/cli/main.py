"""The command `truncation-guard`.

The one idea: the result goes to stdout and everything else to stderr, so that the result can be
piped; options are spelled as TRL spells them.
"""

import argparse
import io
import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from truncation_guard import __version__
from truncation_guard.cli.diagnose import add_diagnose_command

_SPLIT = "train"
_FORMATS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; None: with the arguments of the process.

    Raises:
        SystemExit: with 2 for bad input, after one line on stderr; with 1 where `diagnose` found
            something, or where nobody reads the output to its end.
    """
    options = _parser().parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, format="%(message)s")
    logging.getLogger("truncation_guard").setLevel(logging.INFO)
    # A console of another encoding shows a question mark in place of a line.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        status = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # as of `| head`: nobody reads on, and nothing is wrong
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except (OSError, ValueError, TypeError, ImportError) as error:
        _fail(str(error))
    if status:
        raise SystemExit(status)


class _OneLineParser(argparse.ArgumentParser):
    """Without the usage in front of an error."""

    def error(self, message: str) -> NoReturn:
        _fail(message)


def _parser() -> argparse.ArgumentParser:
    parser = _OneLineParser(
        prog="truncation-guard",
        description="Size max_completion_length for a GRPO run of TRL, and explain a run that is "
        "over.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="{profile,diagnose}")
    _add_profile_command(commands)
    add_diagnose_command(commands)
    return parser


def _add_profile_command(commands: Any) -> None:
    profile = commands.add_parser(
        "profile",
        help="size max_completion_length from the answers of a data set",
        description="Count the tokens of the reference answers of a data set, and say which "
        "max_completion_length holds a share of them. The result ends in a line for a YAML config.",
    )

    def add(name: str, **details: Any) -> None:
        profile.add_argument(f"--{name}", f"--{name.replace('_', '-')}", **details)

    add(
        "dataset_name",
        required=True,
        help="name on the hub, or a local .jsonl, .json, .parquet or .csv file, or a folder of "
        "such files or of a data set saved to disk",
    )
    add("dataset_config", help="name of its configuration, where it has several")
    add("dataset_train_split", default=_SPLIT, help="its split (default: train)")
    add("model_name_or_path", required=True, help="whose tokenizer counts: a name or a folder")
    profile.add_argument("--column", help="column of the answers (default: found by its name)")
    profile.add_argument(
        "--coverage",
        type=float,
        default=0.95,
        help="share of the answers that the limit is to hold (default: 0.95)",
    )
    add(
        "context_window",
        type=int,
        help="tokens for prompt and completion together (default: the model's, where it has a "
        "config)",
    )
    add("multiple_of", type=int, default=64, help="round the limit up to one (default: 64)")
    add("max_samples", type=int, help="answers to count, drawn at random (default: all)")
    profile.add_argument("--seed", type=int, default=0, help="of the draw (default: 0)")
    profile.add_argument("--plot", metavar="FILE.png", help="draw the lengths into this file")
    profile.add_argument("--json", action="store_true", help="print JSON instead of tables")
    profile.set_defaults(run=_profile)


def _profile(options: argparse.Namespace) -> int:
    from truncation_guard.checks import check_positive, check_share

    check_share("coverage", options.coverage)
    check_positive("multiple_of", options.multiple_of, "1 for no rounding")
    if options.plot is not None:
        from truncation_guard.pictures import check_picture

        check_picture(Path(options.plot))

    from transformers import AutoTokenizer

    from truncation_guard.profiling.dataset.profile_dataset import profile_dataset

    dataset = _load(options.dataset_name, options.dataset_config, options.dataset_train_split)
    try:
        tokenizer = AutoTokenizer.from_pretrained(options.model_name_or_path)
    except (OSError, ImportError):  # these say what to do
        raise
    except Exception as error:  # whatever a broken file leads to, KeyError included
        model = options.model_name_or_path
        raise ValueError(f"The tokenizer of {model} cannot be read: {error!r}") from error
    context_window = options.context_window
    if context_window is None:
        context_window = _context_window(options.model_name_or_path)
    profile = profile_dataset(
        dataset,
        tokenizer,
        column=options.column,
        context_window=context_window,
        max_samples=options.max_samples,
        seed=options.seed,
    )
    if options.plot is not None:
        profile.plot(options.plot, options.coverage, options.multiple_of)
    if options.json:
        print(json.dumps(profile.to_dict(options.coverage, options.multiple_of)))  # noqa: T201
        return 0
    limit = profile.recommend(options.coverage, options.multiple_of).max_completion_length
    print(profile.to_text(options.coverage, options.multiple_of))  # noqa: T201
    print(f"\nmax_completion_length: {limit}")  # noqa: T201
    return 0


def _load(name: str, config: str | None, split: str) -> Any:
    """The data set.

    Raises:
        ValueError: naming what could not be read.
    """
    from datasets import load_dataset, load_from_disk

    path = Path(name)
    if path.is_file() or path.suffix.lower() in _FORMATS:
        _check_file(path, config, split)
    try:
        if path.is_file():
            kind = _FORMATS[path.suffix.lower()]
            return load_dataset(kind, data_files={split: str(path)}, split=split)
        if not any((path / name).exists() for name in ("dataset_dict.json", "state.json")):
            return load_dataset(name, config, split=split)
        saved = load_from_disk(name)
    except Exception as error:  # whatever the reader of a format raises: StopIteration, too
        cause = error.__cause__ or error
        raise ValueError(f"{name} cannot be read: {str(cause) or 'it is empty'}") from error
    return _one_split(name, saved, split)


def _check_file(path: Path, config: str | None, split: str) -> None:
    if not path.exists():
        raise ValueError(f"{path} does not exist.")
    if path.suffix.lower() not in _FORMATS:
        raise ValueError(
            f"{path} is not a file that can be read. Pass one of {', '.join(_FORMATS)}, a folder, "
            "or a name on the hub."
        )
    if config is not None or split != _SPLIT:
        what = f"configuration {config!r}" if config is not None else f"split {split!r}"
        raise ValueError(f"{path} is a single file, which has no {what}. Leave the option out.")


def _one_split(name: str, saved: Any, split: str) -> Any:
    if not isinstance(saved, dict):
        return saved
    if split not in saved:
        raise ValueError(f"{name} has no split {split!r}; it has {', '.join(saved)}.")
    return saved[split]


def _context_window(model: str) -> int | None:
    """The model's, in tokens; None where only a tokenizer is there."""
    from transformers import AutoConfig

    from truncation_guard.trainer.context_window import window_of_config

    try:
        config = AutoConfig.from_pretrained(model)
    except (OSError, ValueError):
        return None
    return window_of_config(config)


def _fail(message: str) -> NoReturn:
    line = " ".join(message.split())
    print(f"truncation-guard: error: {line}", file=sys.stderr)  # noqa: T201
    raise SystemExit(2)
