"""`profile_completions`: how long the completions of a run became, from what it left behind.

The one idea: `truncation_guard.jsonl` holds numbers, TRL's completions tables only text. What is
counted again from a text is close and no more, so a record goes first and a table says what it is.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from truncation_guard.checks import check_positive
from truncation_guard.completions_tables import find_tables, reading
from truncation_guard.lengths.histogram import LengthHistogram
from truncation_guard.lengths.sample import LengthSample
from truncation_guard.profiling.length_profile import LengthProfile
from truncation_guard.record import FILE_NAME, RecordedRun, batch_lengths, read_record

_TAKEN_AS_TRUNCATED = 0.95
"""A text of this share of the limit may be one that it cut: see `profile_completions`."""
_BEYOND = 1.1
_FEW = 16
"""Texts of more than so many times the limit, and a few tokens, were not cut at it."""


def profile_completions(
    source: str | Path, tokenizer: Any = None, *, limit: int | None = None
) -> LengthProfile:
    """The lengths of a run's training completions, from the files in its output folder.

    `truncation_guard.jsonl`, the guard's own record, is taken where there is one. Its lengths are
    those of generation: exact where a batch had at most 256 different ones, else rounded up to the
    edges of bins (a note says so, and how wide). Of several runs in one file the last counts, and
    evaluation is left out.

    The tables that GRPOTrainer writes with `log_completions=True` (RLOOTrainer of TRL 1.16 writes
    none) hold neither tokens nor how a completion ended, only its text, so the figures are
    approximate:

    - The text is tokenized again. Sampled tokens are often not those that a tokenizer would choose,
      and special tokens are gone, so a length is off by a few tokens. One is added for the stop
      token.
    - Which completions were truncated is unknown. Texts of at least 95 % of the limit are taken as
      truncated where they end: a few tokens of difference do not turn a truncated completion into
      one that ended, and one that did end there is counted as at least as long as it is.
    - A table has the last generation batch before each log, with an evaluation's completions among
      them. What a later table repeats of the one before it is left out.
    - Completions of several messages or with tool calls are left out, since the tokens between them
      are gone.

    Args:
        source: an output folder, its `completions` folder, one `.parquet` table, or a
            `truncation_guard.jsonl`.
        tokenizer: the run's tokenizer or processor; only tables need it.
        limit: the run's `max_completion_length`; only tables need it, a record has its own.

    Returns:
        A profile with the source `"completions"` and the file or folder as its column. The model
        changed during the run, so it describes the run and not one model.

    Raises:
        FileNotFoundError: where there is no such file or folder, or nothing to read in it.
        ValueError: for a file that is neither, cannot be read or holds no completions, or a table
            without `tokenizer` or `limit`.
    """
    path = Path(source)
    files = _find(path)
    if files[0].suffix == ".jsonl":
        return _from_record(files[0])
    if tokenizer is None or isinstance(tokenizer, str) or limit is None:
        raise ValueError(
            f"{path}: TRL's tables hold neither token counts nor the limit. Pass the run's "
            "`tokenizer` and its `limit` (max_completion_length)."
        )
    check_positive("limit", limit, "the run's max_completion_length")
    return _from_tables(path, files, getattr(tokenizer, "tokenizer", tokenizer), limit)


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


def _from_tables(path: Path, files: Sequence[Path], tokenizer: Any, limit: int) -> LengthProfile:
    ended: Counter[int] = Counter()
    cut: Counter[int] = Counter()
    skipped = beyond = 0
    from_here = math.ceil(_TAKEN_AS_TRUNCATED * limit)
    for completions in _new_completions(files):
        texts = [_text(completion) for completion in completions]
        known = [text for text in texts if text is not None]
        skipped += len(texts) - len(known)
        if known:
            for ids in tokenizer(known, add_special_tokens=False)["input_ids"]:
                beyond += len(ids) > _BEYOND * limit + _FEW
                if len(ids) >= from_here:
                    cut[min(len(ids), limit)] += 1
                else:
                    ended[len(ids) + 1] += 1
    if not ended and not cut:
        raise ValueError(
            f"{path} has no completion that is one text. Completions of several messages or with "
            f"tool calls cannot be counted from a table; train with a TruncationGuardCallback, "
            f"which writes a {FILE_NAME}."
        )
    notes = ["Lengths were counted from the text and are off by a few tokens."]
    if cut:
        notes.append(
            f"{cut.total()} completions of {from_here} or more tokens are taken as truncated: the "
            "tables do not say which were."
        )
    if beyond:
        notes.append(
            f"{beyond} texts have far more tokens than the limit of {limit} when they are counted "
            "again: limit or tokenizer are not those of the run, or the model writes tokens that a "
            "tokenizer would not choose. Do not rely on these figures."
        )
    if skipped:
        notes.append(f"{skipped} completions that are not one text were left out.")
    return LengthProfile(
        sample=LengthSample.of(LengthHistogram(ended, cut)),
        source="completions",
        column=str(path),
        limit=limit,
        skipped=skipped,
        notes=tuple(notes),
    )


def _new_completions(files: Iterable[Path]) -> Iterator[list[Any]]:
    """The completions of each table that the one before it did not have.

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
        yield [row["completion"] for row in rows[overlap:]]
        before = rows


def _read(file: Path) -> list[dict[str, Any]]:
    """The rows of a table, without its step."""
    from pyarrow import parquet

    with reading(file):
        table = parquet.read_table(file)
    if "completion" not in table.column_names:
        raise ValueError(
            f"{file} has no column `completion`, only {table.column_names}. Pass a table that TRL "
            "wrote with log_completions=True."
        )
    rows: list[dict[str, Any]] = table.to_pylist()
    return [{name: value for name, value in row.items() if name != "step"} for row in rows]


def _text(completion: Any) -> str | None:
    """The text of a completion that is nothing but one; None for all others."""
    if isinstance(completion, str):
        return completion
    if not (isinstance(completion, list) and len(completion) == 1):
        return None
    message = completion[0]
    if not isinstance(message, dict):
        return None
    content = message.get("content")
    others = [value for name, value in message.items() if name not in ("role", "content")]
    return content if isinstance(content, str) and not any(others) else None
