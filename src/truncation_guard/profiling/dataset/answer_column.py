"""The column of a data set that holds the reference answers, and the others that are needed.

TRL's own names come first, then those that data sets of questions and answers use, where a worked
solution comes before a final answer.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import isnan
from typing import Any, Literal

ANSWER_COLUMNS = (
    "completion",
    "messages",
    # A data set with both, like NuminaMath-1.5, has the worked one under `solution`.
    "solution",
    "answer",
    "response",
    "output",
    "text",
)
"""Where answers are looked for, the first that holds text or messages wins."""

Kind = Literal["text", "messages"]


def choose_column(columns: Sequence[str], first_rows: Mapping[str, Sequence[Any]]) -> str:
    """The column that the answers are taken from.

    Args:
        columns: every column there is.
        first_rows: the values of the first rows in those of `ANSWER_COLUMNS` that there are.

    Raises:
        ValueError: where no column fits; lists the columns.
    """
    found = [name for name in ANSWER_COLUMNS if name in columns]
    readable = [name for name in found if None not in _kinds(first_rows[name])]
    if readable:
        # A column whose first rows hold no answer is the last resort: it may hold some further on.
        return min(readable, key=lambda name: not any(map(_holds_answer, first_rows[name])))
    raise ValueError(
        f"No column holds answers by its name ({listed(ANSWER_COLUMNS)}) as text or messages. "
        f"There are: {listed(columns)}.{_remedy(columns)}"
    )


def check_column(column: object, columns: Sequence[str]) -> None:
    """Refuse a column that is not there.

    Raises:
        ValueError: lists the columns that there are.
    """
    if column not in columns:
        raise ValueError(f"There is no column {column!r}. There are: {listed(columns)}.")


def columns_to_read(
    column: str,
    columns: Sequence[str],
    first_rows: Mapping[str, Sequence[Any]],
    *,
    measure_prompts: bool,
) -> list[str]:
    """The columns that the count of the answers depends on, the answers' own first.

    Args:
        column: the column of the answers.
        columns: every column there is.
        first_rows: the values of the first rows in `column` and in `prompt`.
        measure_prompts: whether the prompts' own tokens are wanted.
    """
    others = ["tools"]
    kinds = _kinds(first_rows[column]) | _kinds(first_rows.get("prompt", ()))
    if measure_prompts or "messages" in kinds or len(kinds) != 1:
        others.append("prompt")
    return [column, *(name for name in others if name in columns and name != column)]


def kind_of(value: object) -> Kind | None:
    """Whether this is a text or a list of messages; None for anything else."""
    if isinstance(value, str):
        return "text"
    if isinstance(value, (list, tuple)) and value and all(_is_message(item) for item in value):
        return "messages"
    return None


def is_nothing(value: object) -> bool:
    """Whether a row's value is None, NaN or an empty text or list."""
    if isinstance(value, float):
        return isnan(value)  # what pandas has for a missing text
    if isinstance(value, str):
        return not value or value.isspace()
    return value is None or (isinstance(value, (list, tuple)) and not value)


def listed(names: Iterable[str]) -> str:
    """The names for an error text."""
    return ", ".join(f"`{name}`" for name in names)


def _kinds(values: Iterable[Any]) -> set[Kind | None]:
    """What kinds there are among the values that are not empty."""
    return {kind_of(value) for value in values if not is_nothing(value)}


def _holds_answer(value: Any) -> bool:
    if kind_of(value) == "messages":
        return any(message["role"] == "assistant" for message in value)
    return not is_nothing(value)


def _is_message(item: object) -> bool:
    return isinstance(item, Mapping) and "role" in item


def _remedy(columns: Sequence[str]) -> str:
    if {"role", "content"} <= set(columns):
        return " A conversation is a list of messages: pass a list of conversations."
    return " Name the right one with `column`."
