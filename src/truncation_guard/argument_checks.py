"""Checks of arguments: each error names the argument, its value and the remedy."""

from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

_LONGEST = 10**15
"""Above it a float no longer holds every whole number."""


def is_number(value: object) -> TypeGuard[float]:
    """Whether `value` is a real number and no bool."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_integer(value: object) -> TypeGuard[int]:
    """Whether `value` is of an integer type, numpy's included, and no bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_share(name: str, share: object) -> None:
    """Refuse a value that is no share: no limit covers a percentage.

    Raises:
        ValueError: for anything but a number in (0, 1].
    """
    if not (is_number(share) and 0 < share <= 1):
        raise ValueError(f"`{name}` must be in (0, 1], got {share!r}. Pass 0.95 for 95 %.")


def check_positive(name: str, number: object, remedy: str) -> None:
    """Refuse a number of things that is not at least one.

    Raises:
        ValueError: for anything but an integer of at least 1.
    """
    if not (is_integer(number) and number >= 1):
        raise ValueError(
            f"`{name}` must be an integer of at least 1, got {number!r}. Pass {remedy}."
        )


def whole_numbers(lengths: Iterable[int]) -> NDArray[np.int64]:
    """The lengths as an array of shape (completions,).

    Raises:
        TypeError: for values that are no numbers.
        ValueError: for an empty or nested list, negative numbers, fractions and NaN.
    """
    values = _as_array("lengths", lengths)
    if values.ndim != 1:
        raise ValueError(
            f"`lengths` must be a list of numbers, got {values.ndim} dimensions. Pass one length "
            "in tokens for each completion."
        )
    if not len(values):
        raise ValueError(
            "`lengths` is empty. Pass the length in tokens of at least one completion."
        )
    if values.dtype.kind not in "iuf":
        wrong_values = (n for n in values.tolist() if not is_number(n) or abs(n) > _LONGEST)
        wrong_value = next(wrong_values, values.dtype)
        raise TypeError(
            f"`lengths` must be whole numbers, got {wrong_value!r}. Pass lengths in tokens: "
            "len(tokenizer(text)['input_ids']) + 1."
        )
    is_right = (values >= 0) & (values <= _LONGEST) & (values == np.floor(values))  # NaN is none
    wrong = np.flatnonzero(~is_right)
    if len(wrong):
        raise ValueError(
            f"`lengths` must be whole numbers from 0 to {_LONGEST}, got "
            f"{values[wrong[0]].item()!r} at position {wrong[0]}. Pass lengths in tokens, and "
            "leave out what has none."
        )
    return values.astype(np.int64)


def truth_values(terminated: Iterable[bool] | None, completions: int) -> NDArray[np.bool_]:
    """The flags as an array of shape (completions,); None: all are True.

    Raises:
        TypeError: for values that are no truth values.
        ValueError: for more or fewer flags than completions.
    """
    if terminated is None:
        return np.ones(completions, dtype=np.bool_)
    values = _as_array("terminated", terminated)
    if values.shape != (completions,):
        raise ValueError(
            f"`terminated` must be of the size of `lengths`, {completions}, got "
            f"{values.size}. Pass one truth value for each completion."
        )
    if values.dtype.kind in "biuf":
        is_right = np.isin(values, (0, 1))
    else:
        is_right = np.array([isinstance(value, bool) for value in values.tolist()])
    if not is_right.all():
        wrong_value = values.tolist()[int(np.argmin(is_right))]
        raise TypeError(
            f"`terminated` must be truth values, got {wrong_value!r}. Pass True for each "
            "completion that ended by itself."
        )
    return values.astype(np.bool_)


def _as_array(name: str, values: Iterable[object]) -> NDArray[Any]:
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise TypeError(
            f"`{name}` must be a list, got {values!r}. Pass one item for each completion."
        )
    if hasattr(values, "__array__"):  # of numpy, torch or pandas
        return np.asarray(values)
    rows = list(values)
    if any(isinstance(row, (list, tuple, Mapping)) for row in rows):
        raise ValueError(f"`{name}` must be a flat list. Pass one item for each completion.")
    return np.asarray(rows)
