"""`profile_dataset`: how long the reference answers of a data set are, for a first limit.

Nothing is kept of a batch of rows but how often each length came up.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from truncation_guard.argument_checks import check_positive, is_integer
from truncation_guard.lengths.histogram import LengthHistogram
from truncation_guard.lengths.sample import LengthSample
from truncation_guard.logger import PREFIX, logger
from truncation_guard.profiling.dataset.answer_column import (
    ANSWER_COLUMNS,
    check_column,
    choose_column,
    columns_to_read,
    is_nothing,
    kind_of,
    listed,
)
from truncation_guard.profiling.dataset.answer_tokens import AnswerCounter, AnswerCounts
from truncation_guard.profiling.dataset.row_reader import EMPTY, Rows, open_rows
from truncation_guard.profiling.length_profile import LengthProfile

_FINAL_ANSWER_TOKENS = 16
"""Half of the answers are no longer: they hold a result and not the way to it."""
_SECONDS_WITHOUT_A_BAR = 1.0
_REFERENCE_NOTE = (
    "Reference answers are shorter than what a model writes: measure its own completions with "
    "truncation_guard.profile_rollouts before you settle on a limit."
)


def profile_dataset(
    dataset: Any,
    tokenizer: Any,
    *,
    column: str | None = None,
    split: str | None = None,
    context_window: int | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    batch_size: int = 1000,
    max_samples: int | None = None,
    seed: int = 0,
    progress: bool = True,
) -> LengthProfile:
    """Measure the reference answers of a data set, in tokens that generation would have to produce.

    Counted is the text after the prompt and its generation prompt, as the chat template renders
    it, up to the token that ends the turn and with it. What a template writes after that token is
    left out, and where there is none it is added. A conversation holds a completion for each run of
    assistant messages; the results of tools within one count, as in TRL's tool loop. Memory does
    not grow with the data set.

    Args:
        dataset: a `Dataset`, an `IterableDataset`, a `DatasetDict` with a `split`, or a list of
            texts, of rows (dicts) or of conversations (lists of messages).
        tokenizer: the model's tokenizer, or its processor.
        column: where the answers are: texts or messages, as in TRL's dataset formats. None: the
            first that holds some of `completion`, `messages`, `solution`, `answer`, `response`,
            `output`, `text`. The profile's notes say which.
        split: the split of a `DatasetDict`; None: its only one.
        context_window: tokens that prompt and completion may have together. With it the prompts of
            the rows that are counted are measured too, where they are known, and `recommend` leaves
            room for the longest. Images do not count.
        chat_template_kwargs: further arguments for the chat template, as in `GRPOConfig`.
        batch_size: rows that are in memory at a time.
        max_samples: count at most so many rows: a random sample, of an `IterableDataset` the first
            ones, which you can `shuffle` before. None: all rows.
        seed: of that sample.
        progress: show a progress bar on stderr when it takes more than a second.

    Returns:
        A profile with the source `reference`.

    Raises:
        TypeError: for data that is none of the above, and for a row whose answer is neither text
            nor messages.
        ValueError: for arguments out of range, a column or split that is not there, a tokenizer
            without a stop token or chat template, data without any answer, a row that the chat
            template refuses, and a prompt that fills the context window. It names the row.
    """
    _check_tokenizer(tokenizer)
    _check_arguments(context_window, chat_template_kwargs, batch_size, max_samples, seed)
    rows = open_rows(dataset, split)
    name, first = _find_column(rows, column)
    counter = AnswerCounter(
        name, tokenizer, chat_template_kwargs=chat_template_kwargs, context_window=context_window
    )
    _check_first_rows(first, counter)
    names = columns_to_read(name, rows.columns, first, measure_prompts=context_window is not None)
    available = rows.total
    if max_samples is not None:
        rows.sample(max_samples, seed)
    counts = _count(rows, names, counter, batch_size, progress)
    _check_counts(counts, name)
    sample = LengthSample.of(LengthHistogram(counts.lengths))
    notes = [
        *_column_notes(name, sample, is_guess=column is None and len(rows.columns) > 1),
        *_sample_notes(counts.rows, max_samples, available, seed),
    ]
    if counts.left_out:
        notes.append(
            f"{counts.left_out} answers have reasoning in a field of its own that the chat "
            "template leaves out: it is not counted, and a model writes it all the same."
        )
    if context_window is not None and counts.longest_prompt is None:
        notes.append("No prompt is known, so the context window is not taken into account.")
    return LengthProfile(
        sample=sample,
        source="reference",
        column=name,
        skipped=counts.skipped,
        longest_prompt=counts.longest_prompt,
        context_window=context_window,
        notes=tuple(notes),
    )


def _check_tokenizer(tokenizer: Any) -> None:
    if not hasattr(getattr(tokenizer, "tokenizer", tokenizer), "eos_token"):
        raise TypeError(
            f"`tokenizer` must be a tokenizer or a processor of transformers, got {tokenizer!r}. "
            "Pass AutoTokenizer.from_pretrained(...)."
        )


def _check_arguments(
    context_window: int | None,
    chat_template_kwargs: Mapping[str, Any] | None,
    batch_size: int,
    max_samples: int | None,
    seed: int,
) -> None:
    check_positive("batch_size", batch_size, "a number of rows")
    if max_samples is not None:
        check_positive("max_samples", max_samples, "None for all rows")
    if context_window is not None:
        check_positive("context_window", context_window, "a number of tokens, or None")
    if not is_integer(seed):
        raise ValueError(f"`seed` must be an integer, got {seed!r}. Pass for example 0.")
    if chat_template_kwargs is not None and not isinstance(chat_template_kwargs, Mapping):
        raise TypeError(
            f"`chat_template_kwargs` must be a dict, got {type(chat_template_kwargs).__name__}. "
            "Pass for example {'enable_thinking': False}."
        )


def _find_column(rows: Rows, column: str | None) -> tuple[str, Mapping[str, Sequence[Any]]]:
    """The column of the answers, and the first rows of it and of the prompts."""
    if column is not None:
        check_column(column, rows.columns)
    wanted = ("prompt", *(ANSWER_COLUMNS if column is None else [column]))
    first = rows.first([name for name in dict.fromkeys(wanted) if name in rows.columns])
    if column is None:
        column = choose_column(rows.columns, first)
        if len(rows.columns) > 1:
            logger.info("%s reference answers are taken from column `%s`", PREFIX, column)
    return column, first


def _check_first_rows(first: Mapping[str, Sequence[Any]], counter: AnswerCounter) -> None:
    """Find what is wrong from the start before the long work."""
    answers = first[counter.column]
    for row, value in enumerate(answers):
        if not is_nothing(value):
            counter.check_kind(row, value)
    if any(kind_of(value) == "messages" for value in (*answers, *first.get("prompt", ()))):
        counter.check_template()


def _count(
    rows: Rows, names: Sequence[str], counter: AnswerCounter, batch_size: int, progress: bool
) -> AnswerCounts:
    from tqdm import tqdm

    total = AnswerCounts()
    with tqdm(
        desc="counting tokens",
        total=rows.total,
        unit=" rows",
        delay=_SECONDS_WITHOUT_A_BAR,
        disable=None if progress else True,  # None: where stderr is no terminal
        leave=False,
    ) as bar:
        for batch, numbers in rows.batches(names, batch_size):
            total.add(counter.count(batch, numbers))
            bar.update(len(numbers))
    return total


def _check_counts(counts: AnswerCounts, column: str) -> None:
    if not counts.rows:
        raise ValueError(EMPTY)
    if not counts.lengths:
        raise ValueError(
            f"Column `{column}` holds no answer: all {counts.rows} rows that were read are empty, "
            "or have no message of the role `assistant`. Name another one with `column`."
        )


def _column_notes(column: str, sample: LengthSample, *, is_guess: bool) -> list[str]:
    notes = []
    if is_guess:
        notes.append(
            f"Column `{column}` was taken, by its first rows the first of {listed(ANSWER_COLUMNS)} "
            "that holds answers; name another one with `column`."
        )
    half = sample.quantile(0.5)
    if half is not None and half <= _FINAL_ANSWER_TOKENS:
        text = (
            f"Half of the answers in column `{column}` have at most {half} tokens, as final "
            "answers have: they cannot size a limit."
        )
        logger.warning("%s %s Use truncation_guard.profile_rollouts.", PREFIX, text)
        notes.append(text)
    return [*notes, _REFERENCE_NOTE]


def _sample_notes(
    read: int, max_samples: int | None, available: int | None, seed: int
) -> list[str]:
    if max_samples is None or max_samples == available:
        return []
    if read < max_samples:
        return [f"`max_samples` ({max_samples}) is more than the {read} rows there are: all count."]
    if available is None:
        return [f"The first {read} rows of a stream."]
    return [f"A random sample of {read} of {available} rows (seed {seed})."]
