"""Limits that the lengths hint at, where none is recorded.

The longest length is taken for the limit where it comes back and its completions did not terminate.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from truncation_guard.diagnosis.run import NEARLY_ALL, PRINTED, EntryLimit, LogEntry, Standing

FEW = 0.2
"""Share of the entries that the longest length has to come back in, to be taken for the limit."""
_LEAST_ASSUMED = 8
"""Tokens. Nobody sets a shorter limit: short completions of one length are short for another
reason."""
_LEAST_SURE = 64
"""Tokens. Completions that all have one length below may as well be short answers."""
_ROUND = (64, 50)
"""A limit is often a multiple of these."""
LEAST_RUN = 3
"""Entries after each other whose longest length is the same, for a limit that is not the last."""


def assume_limits(entries: Sequence[LogEntry]) -> None:
    """Set the limits that the lengths hint at."""
    told = [entry for entry in entries if entry.longest is not None]
    before: tuple[int | None, int] = None, 0
    for value, first, end in _runs(told):
        _fill(told[before[1] : first], before[0], value)
        for entry in told[first:end]:
            entry.under = EntryLimit(value, "at", assumed=True)
        before = value, end
    _fill(told[before[1] :], before[0], None)
    doubtful = doubtful_lengths(told)
    for is_open, stretch in groupby(told, key=lambda entry: entry.under is None):
        of_it = list(stretch)
        least = max(entry.longest or 0.0 for entry in of_it)
        for entry in of_it if is_open else ():
            how: Standing = "alone" if len(of_it) == 1 else "open"
            if entry.longest in doubtful:
                how = "doubtful"
            entry.under = EntryLimit(None, how, least=least)


def doubtful_lengths(entries: Sequence[LogEntry]) -> set[float]:
    """Short lengths that all completions of their entries have, none ending on a stop token."""
    ending: set[float] = set()
    constant: Counter[float] = Counter()
    for entry in entries:
        longest = entry.longest
        if longest is None or not _LEAST_ASSUMED <= longest < _LEAST_SURE:
            continue
        if entry.truncated is not None:  # the guard knows
            continue
        is_all = entry.ratio is None or entry.ratio >= NEARLY_ALL
        is_one = entry.mean_length is not None and longest - entry.mean_length < PRINTED * longest
        if is_all and is_one and not longest % 1:
            constant[longest] += 1
        else:
            ending.add(longest)
    least = min(2, len(entries))
    return {length for length, often in constant.items() if often >= least} - ending


def _fill(entries: Sequence[LogEntry], before: int | None, after: int | None) -> None:
    """Entries beside a limit, which their lengths alone do not place."""
    limits = [limit for limit in (before, after) if limit is not None]
    for entry in entries if limits else ():
        longest = entry.longest or 0.0
        if longest <= min(limits):
            entry.under = EntryLimit(min(limits), "at", assumed=True)
        elif longest <= max(limits):
            entry.under = EntryLimit(None, "between")


def _runs(entries: Sequence[LogEntry]) -> list[tuple[int, int, int]]:
    """(length, first entry, entry after) of every stretch whose longest length comes back."""
    doubtful = doubtful_lengths(entries)
    counts = Counter(entry.longest for entry in entries)
    pins = [
        (int(entry.longest or 0), [number])
        for number, entry in enumerate(entries)
        if _may_be_cut(entry, counts[entry.longest], len(entries)) and entry.longest not in doubtful
    ]
    longest = max((entry.longest or 0.0 for entry in entries), default=0.0)
    often = sum(value == longest for value, _ in pins)
    comes_back = often >= min(2, len(entries)) and often >= FEW * len(entries)
    kept = [
        (value, numbers)
        for value, numbers in _joined(pins, entries)
        if len(numbers) >= LEAST_RUN or (comes_back and value == longest)
    ]
    return [
        (value, numbers[0], numbers[-1] + 1)
        for value, numbers in _joined(kept, entries)
        if len(numbers) >= FEW * (numbers[-1] + 1 - numbers[0])
    ]


def _joined(
    stretches: Iterable[tuple[int, list[int]]], entries: Sequence[LogEntry]
) -> list[tuple[int, list[int]]]:
    """Stretches of one length after each other as one, if nothing in between is longer."""
    joined: list[tuple[int, list[int]]] = []
    for value, numbers in stretches:
        if joined and joined[-1][0] == value:
            between = entries[joined[-1][1][-1] + 1 : numbers[0]]
            if all((entry.longest or 0.0) <= value for entry in between):
                joined[-1][1].extend(numbers)
                continue
        joined.append((value, list(numbers)))
    return joined


def _may_be_cut(entry: LogEntry, often: int, entries: int) -> bool:
    """Whether the longest of an entry, which as many entries have, may have been cut there."""
    longest, mean, ratio = entry.longest, entry.mean_length, entry.unfinished
    if longest is None or longest < _LEAST_ASSUMED or longest % 1 or ratio == 0:
        return False
    if entries > 1 and (ratio is None or ratio < NEARLY_ALL or mean is None):
        return True
    if ratio is None or mean is None:
        return False
    if (mean - 1) / (longest - 1) >= ratio - (PRINTED if entries > 1 else 0):
        return True
    # Nothing ends on a stop token, and some are shorter, so the stop token is not known: then a
    # length that comes back shows a limit only where it looks like one, or most entries have it.
    is_likely = 2 * often > entries or any(longest % unit == 0 for unit in _ROUND)
    return entries > 1 and longest >= _LEAST_SURE and is_likely
