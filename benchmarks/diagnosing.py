"""`diagnose` on training logs of 100 MB, and on a `trainer_state.json` of 200,000 entries.

    python benchmarks/diagnosing.py

They are made once, after the shapes that TRL 1.16 and transformers 5.24 write, and kept in
`--folder`. One log is metric lines and progress bars, one mostly printed completions full of LaTeX,
one the same in a single line. Each is diagnosed in a process of its own; its peak memory is that of
Linux, Python and the imports included. `json.load` on the same state is there to compare with.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

LIMIT = 1024
EVERY_EVALUATION = 20
PER_STEP = 4  # lines of progress bars between two entries
LINES_PER_STEP = 60  # of completions
LATEX = [
    r"\frac{1}{2}",
    r"\sqrt{x_{1}^{2}}",
    r"\text{so the answer is }",
    r"\boxed{42}",
    r"\{1, 2\}",
    r"\begin{align}",
    r"\left\{",
    "{",
    "}",
    "we get the reward",
    "of this completion",
]


def main() -> None:
    """Print a table of seconds and peak memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=100, help="size of the log")
    parser.add_argument("--entries", type=int, default=200_000, help="entries of the state")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()) / "truncation_guard_diagnosing"
    )
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure is not None:
        print(json.dumps(measure(*arguments.measure)))
        return
    arguments.folder.mkdir(parents=True, exist_ok=True)
    files = [
        make_log(arguments.folder / f"train_{arguments.megabytes}.log", arguments.megabytes),
        make_log(arguments.folder / f"latex_{arguments.megabytes}.log", arguments.megabytes, latex),
        make_log(
            arguments.folder / f"one_line_{arguments.megabytes}.log",
            arguments.megabytes,
            lambda step: latex(step).replace("\n", " "),
        ),
        make_state(arguments.folder / f"state_{arguments.entries}.json", arguments.entries),
    ]
    table = Table(title=f"diagnose, {os.cpu_count()} cores")
    for column in ("", "file", "MB", "entries", "seconds", "seconds per 100 MB", "peak, MB"):
        table.add_column(column, justify="right")
    for contender, file in [*(("diagnose", file) for file in files), ("json.load", files[-1])]:
        found = run_apart(contender, file)
        megabytes = file.stat().st_size / 1e6
        table.add_row(
            contender,
            file.name,
            f"{megabytes:.0f}",
            str(found["entries"]),
            f"{found['seconds']:.1f}",
            f"{100 * found['seconds'] / megabytes:.1f}",
            f"{found['peak'] / 1e6:.0f}",
        )
    Console(width=100).print(table)


def entries() -> Iterator[dict[str, float]]:
    """Log entries of a run, an evaluation now and then, without end."""
    draw = random.Random(0)
    step = 0
    while True:
        step += 1
        share, ended = draw.uniform(0.2, 0.4), draw.uniform(300, 500)
        figures = {
            "num_tokens": 20000.0 * step,
            "completions/mean_length": share * LIMIT + (1 - share) * ended,
            "completions/min_length": draw.uniform(50, 90),
            "completions/max_length": float(LIMIT),
            "completions/clipped_ratio": share,
            "completions/mean_terminated_length": ended,
            "completions/min_terminated_length": draw.uniform(50, 90),
            "completions/max_terminated_length": draw.uniform(900, LIMIT),
            "rewards/accuracy_reward/mean": draw.random(),
            "rewards/accuracy_reward/std": draw.random(),
            "reward": draw.random(),
            "reward_std": draw.random(),
            "frac_reward_zero_std": draw.random(),
            "entropy": draw.random(),
            **{f"clip_ratio/{name}": draw.random() for name in ("low_mean", "high_mean")},
        }
        epoch = {"epoch": step / 1e6, "step": float(step)}
        yield {"loss": draw.random(), "grad_norm": 0.3, "learning_rate": 1e-6, **figures, **epoch}
        if step % EVERY_EVALUATION == 0:
            yield {f"eval_{name}": value for name, value in figures.items()} | epoch


def bars(step: int) -> str:
    """Progress bars as a terminal gets them."""
    shown = [f"\r {step % 100:2d}%|███▎      | {step}/900000 [00:{n:02d}<" for n in range(PER_STEP)]
    return "\n" + "".join(f"{bar}09:59,  1.78s/it]" for bar in shown)


def latex(step: int) -> str:
    """Completions as `log_completions` or a script prints them; braces close or do not."""
    draw = random.Random(step)
    return "\n" + "".join(
        " ".join(draw.choice(LATEX) for _ in range(12)) + "\n" for _ in range(LINES_PER_STEP)
    )


def make_log(path: Path, megabytes: int, between: Callable[[int], str] = bars) -> Path:
    """A log with the entries of a run, and other text between them."""
    if path.exists():
        return path
    unfinished = path.with_suffix(".part")
    with unfinished.open("w", encoding="utf-8") as log:
        for metrics in entries():
            step = int(metrics.pop("step"))
            log.write(f"{ {k: f'{v:.4g}' for k, v in metrics.items()} }{between(step)}")
            if log.tell() >= megabytes * 1e6:
                break
    return unfinished.rename(path)


def make_state(path: Path, number: int) -> Path:
    """A state as `Trainer` saves it."""
    if path.exists():
        return path
    unfinished = path.with_suffix(".part")
    with unfinished.open("w", encoding="utf-8") as state:
        state.write(f'{{\n  "epoch": 0.2,\n  "global_step": {number},\n  "log_history": [\n')
        for count, metrics in zip(range(number), entries(), strict=False):
            text = json.dumps(metrics, indent=2, sort_keys=True).replace("\n", "\n    ")
            state.write(f"    {text}{',' if count < number - 1 else ''}\n")
        state.write('  ],\n  "logging_steps": 1,\n  "stateful_callbacks": {}\n}\n')
    return unfinished.rename(path)


def run_apart(contender: str, file: Path) -> dict[str, Any]:
    """What a process of its own measures of itself."""
    command = [sys.executable, __file__, "--measure", contender, str(file)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, Any] = json.loads(output)
    return found


def measure(contender: str, file: str) -> dict[str, Any]:
    """Seconds, entries and peak memory in bytes."""
    start = time.perf_counter()
    if contender == "diagnose":
        from truncation_guard.diagnosis.diagnose import diagnose

        trace = diagnose(file).trace
        number = len(trace.training) + len(trace.evaluation)
    else:
        number = len(json.loads(Path(file).read_text(encoding="utf-8"))["log_history"])
    seconds = time.perf_counter() - start
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return {"seconds": seconds, "entries": number, "peak": 1024 * int(peak.split()[1])}


if __name__ == "__main__":
    main()
