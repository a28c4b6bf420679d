"""`profile_completions`: how long the completions of a run became, from its output folder.

Only token counts are read, never texts: those of the guard's record, or a column of them in TRL's
completions tables.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from truncation_guard.argument_checks import check_positive, is_integer
from truncation_guard.completions_tables import find_tables, reading
from truncation_guard.lengths.histogram import LengthHistogram
from truncation_guard.lengths.sample import LengthSample
from truncation_guard.profiling.length_profile import LengthProfile
from truncation_guard.record import FILE_NAME, RecordedRun, batch_lengths, read_record

_COUNTS = "completion_length"
"""The column of token counts."""


def profile_completions(
    source: str | Path, tokenizer: Any = None, *, limit: int | None = None
) -> LengthProfile:
    """The lengths of a run's training completions, from the files in its output folder.

    `truncation_guard.jsonl`, the guard's own record, is taken where there is one. Its lengths are
    those of generation: exact where a batch had at most 256 different ones, else rounded up to the
    edges of bins (a note says so, and how wide). Of several runs in one file the last counts, and
    evaluation is left out.

    The tables that GRPOTrainer writes with `log_completions=True` are read only where they hold
    token counts: integers in a column `completion_length`. A reward function adds it with
    `log_extra("completion_length", [len(ids) for ids in completion_ids])`. A completion of `limit`
    tokens counts as truncated, since a table does not say how one ended. A table has the last
    generation batch before each log, with an evaluation's completions among them. Rows that a later
    table repeats of the one before it are left out.

    Args:
        source: an output folder, its `completions` folder, one `.parquet` table, or a
            `truncation_guard.jsonl`.
        tokenizer: not needed: no text is tokenized.
        limit: the run's `max_completion_length`; only tables need it, a record has its own.

    Returns:
        A profile with the source `"completions"` and the file or folder as its column. The model
        changed during the run, so it describes the run and not one model.

    Raises:
        FileNotFoundError: where there is no such file or folder, or nothing to read in it.
        ValueError: for a file that is neither, cannot be read or holds no completions, a table
            without token counts, or one without `limit`.
    """
    path = Path(source)
    files = _find(path)
    if files[0].suffix == ".jsonl":
        return _from_record(files[0])
    return _from_tables(path, files, limit)


def _find(path: Path) -> list[Path]:
    """The record, or the tables in the order of their steps."""
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist. Pass a run's output folder.")
    if path.is_file():
        if path.suffix not in (".jsonl", ".parquet"):
            raise ValueError(
                f"{path} is neither a .jsonl nor a .parquet file. Pass a run's output folder, a "
                f"{FILE_NAME} or one of TRL's completions tables."
            )
        return [path]
    if (path / FILE_NAME).is_file():
        return [path / FILE_NAME]
    tables = find_tables(path)
    if tables:
        return tables
    raise FileNotFoundError(
        f"{path} has neither a {FILE_NAME} nor completions tables. Train with a "
        "TruncationGuardCallback or log_completions=True, or pass another folder."
    )


def _from_record(path: Path) -> LengthProfile:
    runs = [(run, _training_batches(run)) for run in read_record(path)]
    runs = [(run, batches) for run, batches in runs if batches]
    if not runs:
        raise ValueError(
            f"{path} has no generation batch of a training. Pass the record of a run that got to "
            "its first step."
        )
    _, batches = runs[-1]
    try:
        lengths = LengthHistogram.sum_of(map(batch_lengths, batches))
        width = max(1, *(batch["lengths"]["bin_width"] for batch in batches))
        limits = [batch["limit"] for batch in batches]
        sample = LengthSample.of(lengths)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} has a batch without its lengths or limit ({error!r}). Pass a record as a "
            "TruncationGuardCallback wrote it."
        ) from error
    notes = [
        f"From all {len(batches)} generation batches of the training: the model changed meanwhile."
    ]
    if width > 1:
        notes.append(f"Lengths are rounded up, by at most {width - 1} tokens.")
    if len(set(limits)) > 1:
        notes.append("The limit changed during the run; the last one counts as the current one.")
    if len(runs) > 1:
        notes.append(f"The file holds {len(runs)} runs; this is the last one.")
    return LengthProfile(
        sample=sample, source="completions", column=str(path), limit=limits[-1], notes=tuple(notes)
    )


def _training_batches(run: RecordedRun) -> list[Mapping[str, Any]]:
    return [batch for (split, _, _), batch in sorted(run.batches.items()) if split == "train"]


def _from_tables(path: Path, files: Sequence[Path], limit: int | None) -> LengthProfile:
    ended = Counter(count for new in _new_counts(files) for count in new)
    if limit is None:
        raise ValueError(
            f"{path}: TRL's tables do not hold the limit. Pass the run's `limit` "
            "(max_completion_length)."
        )
    check_positive("limit", limit, "the run's max_completion_length")
    if not ended:
        raise ValueError(f"{path} has no completion. Pass the tables of a run that generated some.")
    if max(ended) > limit:
        raise ValueError(
            f"{path} has a completion of {max(ended)} tokens, more than `limit`={limit}. Pass the "
            "run's max_completion_length."
        )
    cut = Counter({limit: ended.pop(limit)} if limit in ended else {})
    notes = []
    if cut:
        notes.append(
            f"{cut.total()} completions of {limit} tokens are taken as truncated: the tables do "
            "not say which were."
        )
    return LengthProfile(
        sample=LengthSample.of(LengthHistogram(ended, cut)),
        source="completions",
        column=str(path),
        limit=limit,
        notes=tuple(notes),
    )


def _new_counts(files: Iterable[Path]) -> Iterator[list[int]]:
    """The token counts of each table's rows that the one before it did not have.

    TRL keeps the last rows of a queue and writes all of them at each log (1.16): a table begins
    with the rows that are left of the one before it.
    """
    before: list[dict[str, Any]] = []
    for file in files:
        rows = _read(file)
        overlap = next(
            n
            for n in range(min(len(before), len(rows)), -1, -1)
            if before[-n:] == rows[:n] or not n
        )
        yield [row[_COUNTS] for row in rows[overlap:]]
        before = rows


def _read(file: Path) -> list[dict[str, Any]]:
    """The rows of a table, without its step."""
    from pyarrow import parquet

    with reading(file):
        table = parquet.read_table(file)
    if _COUNTS not in table.column_names:
        raise ValueError(
            f"{file} has no column `{_COUNTS}` of token counts, only {table.column_names}; texts "
            f"are not counted. Pass a {FILE_NAME}, which a TruncationGuardCallback writes, or log "
            f'the counts in a reward function: log_extra("{_COUNTS}", [len(ids) for ids in '
            "completion_ids])."
        )
    rows: list[dict[str, Any]] = table.to_pylist()
    for row in rows:
        if not is_integer(row[_COUNTS]) or row[_COUNTS] < 0:
            raise ValueError(
                f"{file} has {row[_COUNTS]!r} in its column `{_COUNTS}`, which is no token count. "
                "Pass a table with whole numbers of tokens there."
            )
    return [{name: value for name, value in row.items() if name != "step"} for row in rows]
