"""Under which limit every entry of a run was written.

The one idea: a limit may change, by a raise or between restarts, so a share at a limit is only told
of entries that were written under it. What is recorded counts; else the lengths hint at it.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from truncation_guard.diagnosis.run import EntryLimit, LogEntry, RunTrace, Standing

FEW = 0.2
"""Share of the entries that the longest length has to come back in, to be taken for the limit."""
_LEAST_ASSUMED = 8
"""Tokens. Nobody sets a shorter limit: short completions of one length are short for another
reason."""
_LEAST_SURE = 64
"""Tokens. Completions that all have one length below may as well be short answers."""
_ROUND = (64, 50)
"""What people take a multiple of for a limit."""
NEARLY_ALL = 0.999
"""Four printed digits of a length do not tell it from all."""
PRINTED = 0.005
"""What four printed digits may make of a share."""
_LEAST_RUN = 3
"""Entries after each other whose longest length is the same, for a limit that is not the last."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Entries after each other under one limit."""

    tokens: int | None
    """None where it is not known, only that it changed."""
    least: float | None
    """The longest of its completions, where the limit is not known."""
    assumed: bool
    first_step: float | None
    last_step: float | None


@dataclass(frozen=True, slots=True)
class LastLimit:
    """The limit that the training ended under."""

    tokens: int | None
    """None where it is not known, and nothing hints at it."""
    assumed: bool
    """Whether it is only the longest length, which comes back again and again."""
    longest: float | None
    """The longest completion under it in tokens, as far as the source knows; the mean of several
    batches' longest in a log."""
    entries_at_it: int
    """Entries or batches under it whose longest completion has the length of the limit."""
    entries: int
    """Entries or batches under it with a longest completion."""


def find_limit(trace: RunTrace) -> LastLimit:
    """The recorded limit, else the one that the lengths hint at; sets `under` of every entry."""
    settle_limits(trace)
    entries = last_phase(trace.training or trace.evaluation)
    lengths = [entry.longest for entry in entries if entry.longest is not None]
    under = next((entry.under for entry in reversed(entries) if entry.under is not None), None)
    tokens = trace.limit if under is None else under.tokens
    at_it = 0 if tokens is None else sum(length >= tokens for length in lengths)
    assumed = under is not None and under.assumed
    return LastLimit(tokens, assumed, max(lengths, default=None), at_it, len(lengths))


def settle_logged_limits(entries: Sequence[LogEntry], exact: Iterable[int] = ()) -> None:
    """Set the limit of the entries whose logged mean is surely one limit.

    A mean over a raise may be a whole number, too. It is taken for a limit where the entry before
    or after has the same, where there is no other entry, or where it is one of `exact`.
    """
    logged = [entry for entry in entries if entry.logged_limit is not None]
    values = [entry.logged_limit for entry in logged]
    known = set(exact)
    for number, entry in enumerate(logged):
        value = values[number]
        beside = values[max(number - 1, 0) : number] + values[number + 1 : number + 2]
        if value is None or not value.is_integer() or value < 1:
            continue
        if value in beside or value in known or not beside:
            entry.limit = int(value)


def settle_limits(trace: RunTrace) -> None:
    """Find out for every entry the limit that it was written under."""
    _settle(trace.training, trace.limit)
    _settle(trace.evaluation, trace.limit)
    if any(_is_known(entry) for entry in trace.training):
        _take_over(trace.training, trace.evaluation)
    else:
        hints = {entry.under for entry in trace.evaluation if _is_known(entry)}
        if len(hints) == 1:
            (under,) = hints
            for entry in trace.training:
                entry.under = under
        for entry in trace.evaluation if hints else ():
            entry.under = entry.under if _is_known(entry) else max(hints, key=_tokens)


def phases(entries: Sequence[LogEntry]) -> tuple[Phase, ...]:
    """The limits of a training, in their order."""
    told = [
        (entry.under, entry)
        for entry in entries
        if entry.under is not None and entry.under.how != "between"
    ]
    found = []
    for tokens, group in groupby(told, key=lambda item: item[0].tokens):
        of_it = list(group)
        (under, first), (_, last) = of_it[0], of_it[-1]
        found.append(Phase(tokens, under.least, under.assumed, first.step, last.step))
    return tuple(found)


def last_phase(entries: Sequence[LogEntry]) -> Sequence[LogEntry]:
    """The entries under the last limit that is known, or after it under none that is."""
    told = [
        entry
        for entry in entries
        if entry.under and entry.under.how != "between" and entry.longest is not None
    ]
    if not told:
        return entries
    limit = _tokens(told[-1].under)
    end = len(entries)
    while entries[end - 1] is not told[-1]:
        end -= 1
    start = end
    while start and (entries[start - 1].under is None or _is_same(entries[start - 1], limit)):
        start -= 1
    return entries[start:end]


def doubtful_lengths(entries: Sequence[LogEntry]) -> set[float]:
    """Short lengths that all completions of their entries have, none ending on a stop token."""
    ending: set[float] = set()
    constant: Counter[float] = Counter()
    for entry in entries:
        longest = entry.longest
        if longest is None or not _LEAST_ASSUMED <= longest < _LEAST_SURE:
            continue
        if entry.truncated is not None:
            continue  # the guard knows
        is_all = entry.ratio is None or entry.ratio >= NEARLY_ALL
        is_one = entry.mean_length is not None and longest - entry.mean_length < PRINTED * longest
        if is_all and is_one and not longest % 1:
            constant[longest] += 1
        else:
            ending.add(longest)
    least = min(2, len(entries))
    return {length for length, often in constant.items() if often >= least} - ending


def _settle(entries: Sequence[LogEntry], recorded: int | None) -> None:
    """Recorded limits first; stretches without one by their lengths."""
    if any(entry.logged_limit is not None for entry in entries):
        _settle_guarded(entries)
    elif recorded is not None and all(entry.limit is None for entry in entries):
        for entry in entries:
            entry.under = EntryLimit(recorded, "at")
    else:
        for limit, stretch in groupby(entries, key=lambda entry: entry.limit):
            of_it = list(stretch)
            if limit is None:
                _assume(of_it)
            for entry in of_it if limit is not None else ():
                entry.under = EntryLimit(limit, "at")
    for under, stretch in groupby(entries, key=lambda entry: entry.under):
        of_it = [entry for entry in stretch if entry.longest is not None]
        if under is not None and under.tokens is not None and under.how == "at":
            _look_whether_reached(of_it, under, under.tokens)


def _settle_guarded(entries: Sequence[LogEntry]) -> None:
    """By the guard's metric; an entry that lost it is under what both its neighbours are under."""
    own = [entry.limit if entry.logged_limit is not None else None for entry in entries]
    later: list[int | None] = [None] * len(entries)
    for number in range(len(entries) - 2, -1, -1):
        later[number] = own[number + 1] if own[number + 1] is not None else later[number + 1]
    for unguarded, stretch in groupby(entries, key=_is_without_guard):
        of_it = list(stretch)
        if unguarded and len(of_it) >= _LEAST_RUN:
            _assume(of_it)  # the guard was added later
    before: int | None = None
    for number, entry in enumerate(entries):
        tokens = own[number]
        if tokens is None and entry.logged_limit is None:
            beside = {limit for limit in (before, later[number]) if limit is not None}
            tokens = beside.pop() if len(beside) == 1 else None
        before = before if own[number] is None else own[number]
        is_longer = tokens is not None and (entry.longest or 0.0) > tokens
        if not _is_known(entry) and not (entry.under is not None and is_longer):
            entry.under = EntryLimit(tokens, "between" if tokens is None else "at")


def _is_without_guard(entry: LogEntry) -> bool:
    return entry.truncated is None and entry.logged_limit is None and entry.ratio is not None


def _look_whether_reached(entries: Sequence[LogEntry], under: EntryLimit, tokens: int) -> None:
    at_it = sum((entry.longest or 0) >= tokens for entry in entries)
    if at_it < FEW * len(entries):
        for entry in entries:
            entry.under = EntryLimit(tokens, "at", under.assumed, reached=False)


def _assume(entries: Sequence[LogEntry]) -> None:
    """Limits that the lengths hint at: the longest, where it comes back and did not terminate."""
    told = [entry for entry in entries if entry.longest is not None]
    runs = _runs(told)
    before: tuple[int | None, int] = None, 0
    for value, first, end in runs:
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


def _fill(entries: Sequence[LogEntry], before: int | None, after: int | None) -> None:
    """Entries beside a limit, of which the lengths alone do not tell where they belong."""
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
        if len(numbers) >= _LEAST_RUN or (comes_back and value == longest)
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


def _take_over(training: Sequence[LogEntry], evaluation: Sequence[LogEntry]) -> None:
    """Evaluations run under the limit of the training at that time."""
    known = [entry for entry in training if entry.under is not None]
    steps = list(accumulate((entry.step or 0.0 for entry in known), max))
    for entry in evaluation:
        if entry.limit is None and entry.logged_limit is None:
            before = len(known) if entry.step is None else bisect_right(steps, entry.step)
            entry.under = known[max(before - 1, 0)].under


def _is_known(entry: LogEntry) -> bool:
    return entry.under is not None and entry.under.tokens is not None


def _is_same(entry: LogEntry, limit: int) -> bool:
    under = entry.under
    return under is not None and under.how != "between" and _tokens(under) == limit


def _tokens(under: EntryLimit | None) -> int:
    return 0 if under is None else under.tokens or 0
