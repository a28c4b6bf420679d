"""The command `truncation-guard diagnose`.

Its exit status says whether there is something to look into, so that a script can ask.
"""

import argparse
import json
from pathlib import Path
from typing import Any

_HELP = "explain a finished run: is truncation what held it back?"


def add_diagnose_command(subparsers: Any) -> None:
    """Add the command to those of `truncation-guard`; `options.run` is what runs it."""
    parser = subparsers.add_parser(
        "diagnose",
        help=_HELP,
        description="Say from what a run of GRPOTrainer or RLOOTrainer left behind whether "
        "truncation is what held it back. Exit status: 0 healthy, 1 findings, or a run that does "
        "not tell whether completions were cut off, 2 unusable input.",
    )
    parser.add_argument(
        "path",
        metavar="PATH",
        help="its output folder, truncation_guard.jsonl, trainer_state.json, or training log",
    )
    parser.add_argument("--plot", metavar="FILE.png", help="draw the run into this file")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the diagnosis.

    Returns:
        0 for a healthy run, 1 where there are findings, or where nothing can be said.

    Raises:
        OSError: for what does not exist or cannot be opened.
        ValueError: for what cannot be read, and for a plot that is no PNG file.
        ImportError: for a plot without matplotlib.
    """
    from truncation_guard.diagnosis.diagnose import diagnose

    if options.plot is not None:
        from truncation_guard.picture_check import check_picture

        check_picture(Path(options.plot))
    diagnosis = diagnose(options.path)
    if options.plot is not None:
        diagnosis.plot(options.plot)
    as_json = options.json and json.dumps(diagnosis.to_dict(), allow_nan=False)
    print(as_json or diagnosis)  # noqa: T201
    return 0 if diagnosis.healthy else 1
