"""The command `truncation-guard profile`; its options are spelled as TRL spells them."""

import argparse
import json
from pathlib import Path
from typing import Any

from truncation_guard.cli.load_dataset import DEFAULT_SPLIT, load_dataset_argument


def add_profile_command(subparsers: Any) -> None:
    """Add the command to those of `truncation-guard`; `options.run` is what runs it."""
    parser = subparsers.add_parser(
        "profile",
        help="size max_completion_length from the answers of a data set",
        description="Count the tokens of the reference answers of a data set, and say which "
        "max_completion_length holds a share of them. The result ends in a line for a YAML config.",
    )

    def add(name: str, **details: Any) -> None:
        parser.add_argument(f"--{name}", f"--{name.replace('_', '-')}", **details)

    add(
        "dataset_name",
        required=True,
        help="name on the hub, or a local .jsonl, .json, .parquet or .csv file, or a folder of "
        "such files or of a data set saved to disk",
    )
    add("dataset_config", help="name of its configuration, where it has several")
    add("dataset_train_split", default=DEFAULT_SPLIT, help="its split (default: train)")
    add("model_name_or_path", required=True, help="whose tokenizer counts: a name or a folder")
    parser.add_argument("--column", help="column of the answers (default: found by its name)")
    parser.add_argument(
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
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default: 0)")
    parser.add_argument("--plot", metavar="FILE.png", help="draw the lengths into this file")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the profile, and the recommended limit as a line for a YAML config.

    Returns:
        0.

    Raises:
        OSError: for what does not exist or cannot be opened.
        TypeError: for answers that are neither text nor messages.
        ValueError: for what cannot be read, and for options out of range.
        ImportError: for a plot without matplotlib.
    """
    from truncation_guard.argument_checks import check_positive, check_share

    check_share("coverage", options.coverage)
    check_positive("multiple_of", options.multiple_of, "1 for no rounding")
    if options.plot is not None:
        from truncation_guard.picture_check import check_picture

        check_picture(Path(options.plot))

    from truncation_guard.profiling.dataset.profile_dataset import profile_dataset

    dataset = load_dataset_argument(
        options.dataset_name, options.dataset_config, options.dataset_train_split
    )
    tokenizer = _tokenizer(options.model_name_or_path)
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


def _tokenizer(model: str) -> Any:
    """The model's.

    Raises:
        OSError: for a model that is not there.
        ImportError: for a library that the tokenizer needs.
        ValueError: for a tokenizer that cannot be read.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model)
    except (OSError, ImportError):  # these say what to do
        raise
    except Exception as error:  # whatever a broken file leads to, KeyError included
        raise ValueError(f"The tokenizer of {model} cannot be read: {error!r}") from error


def _context_window(model: str) -> int | None:
    """The model's, in tokens; None where only a tokenizer is there."""
    from transformers import AutoConfig

    from truncation_guard.trainer.context_window import window_of_config

    try:
        config = AutoConfig.from_pretrained(model)
    except (OSError, ValueError):
        return None
    return window_of_config(config)
