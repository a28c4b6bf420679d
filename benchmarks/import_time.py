"""How long the imports take, next to what everybody pays anyway.

Each import runs in fresh interpreters, in turn with the others, so that a busy machine slows all of
them alike; the median counts. The package by itself stands next to an interpreter that imports
nothing, the callback next to the trainer that it is for.

    python benchmarks/import_time.py [--repeats 11]
"""

import argparse
import statistics
import subprocess
import sys
import time

from rich.console import Console
from rich.table import Table

PAIRS = (
    ("pass", "import truncation_guard"),
    ("pass", "import truncation_guard.cli.main"),
    ("from trl import GRPOTrainer", "from truncation_guard import TruncationGuardCallback"),
    (
        "from trl import GRPOTrainer",
        "from trl import GRPOTrainer; from truncation_guard import TruncationGuardCallback",
    ),
)


def main() -> None:
    """Print a table: one row for each pair."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=11)
    repeats = parser.parse_args().repeats
    codes = list(dict.fromkeys(code for pair in PAIRS for code in pair))
    for code in codes:  # writes the bytecode and warms the disk's cache
        seconds(code)
    times: dict[str, list[float]] = {code: [] for code in codes}
    for _ in range(repeats):
        for code in codes:
            times[code].append(seconds(code))
    medians = {code: statistics.median(times[code]) for code in codes}
    table = Table("next to", "ms", "this", "ms", "ratio")
    for plain, code in PAIRS:
        ratio = medians[code] / medians[plain]
        numbers = f"{medians[plain] * 1e3:.0f}", f"{medians[code] * 1e3:.0f}"
        table.add_row(plain, numbers[0], code, numbers[1], f"{ratio:.2f}")
    Console(width=120).print(table)


def seconds(code: str) -> float:
    """Of a fresh interpreter that runs this code."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
