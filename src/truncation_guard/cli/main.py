"""The command `truncation-guard`: its parser, and how it ends.

The result goes to stdout and everything else to stderr, so that the result can be piped.
"""

import argparse
import io
import logging
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from truncation_guard import __version__
from truncation_guard.cli.diagnose import add_diagnose_command
from truncation_guard.cli.profile import add_profile_command


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
    add_profile_command(commands)
    add_diagnose_command(commands)
    return parser


def _fail(message: str) -> NoReturn:
    line = " ".join(message.split())
    print(f"truncation-guard: error: {line}", file=sys.stderr)  # noqa: T201
    raise SystemExit(2)
