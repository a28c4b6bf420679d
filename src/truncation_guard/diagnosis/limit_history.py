"""The limit that every entry of a run was written under.

A limit may change, by a raise or between restarts, so a share at a limit is only told of entries
under it. What is recorded counts; else the lengths hint at it.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from truncation_guard.diagnosis.assumed_limit import FEW, LEAST_RUN, assume_limits
from truncation_guard.diagnosis.run import EntryLimit, LogEntry, RunTrace


@dataclass(frozen=True, slots=True)
class Phase:
    """Entries after each other under one limit."""

    tokens: int | None
    """None for an unknown limit."""
    least: float | None
    """The longest completion, where the limit is unknown."""
    assumed: bool
    first_step: float | None
    last_step: float | None


@dataclass(frozen=True, slots=True)
class LastLimit:
    """The limit that the training ended under."""

    tokens: int | None
    """None if it is unknown, and nothing hints at it."""
    assumed: bool
    """Whether it is inferred from a longest length that comes back again and again."""
    longest: float | None
    """Tokens of the longest completion under it; in a log, the mean of several batches' longest."""
    entries_at_it: int
    """Entries under it whose longest completion has the length of the limit."""
    entries: int
    """Entries under it with a longest completion."""


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
    """Set the limit that every entry was written under."""
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
    told = [(e.under, e) for e in entries if e.under is not None and e.under.how != "between"]
    found = []
    for tokens, group in groupby(told, key=lambda item: item[0].tokens):
        of_it = list(group)
        (under, first), (_, last) = of_it[0], of_it[-1]
        found.append(Phase(tokens, under.least, under.assumed, first.step, last.step))
    return tuple(found)


def last_phase(entries: Sequence[LogEntry]) -> Sequence[LogEntry]:
    """The entries under the last limit that is known, or after it under none that is."""
    told = [e for e in entries if e.under and e.under.how != "between" and e.longest is not None]
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
                assume_limits(of_it)
            for entry in of_it if limit is not None else ():
                entry.under = EntryLimit(limit, "at")
    for under, stretch in groupby(entries, key=lambda entry: entry.under):
        of_it = [entry for entry in stretch if entry.longest is not None]
        if under is not None and under.tokens is not None and under.how == "at":
            _look_whether_reached(of_it, under, under.tokens)


def _settle_guarded(entries: Sequence[LogEntry]) -> None:
    """By the guard's metric; an entry without it has the limit that both its neighbours have."""
    own = [entry.limit if entry.logged_limit is not None else None for entry in entries]
    before = list(accumulate(own, _latest))
    after = list(accumulate(reversed(own), _latest))[::-1]
    for unguarded, stretch in groupby(entries, key=_is_without_guard):
        of_it = list(stretch)
        if unguarded and len(of_it) >= LEAST_RUN:
            assume_limits(of_it)  # the guard was added later
    for entry, tokens, *beside in zip(entries, own, before, after, strict=True):
        if tokens is None and entry.logged_limit is None:
            limits = set(beside) - {None}
            tokens = limits.pop() if len(limits) == 1 else None
        is_longer = tokens is not None and (entry.longest or 0.0) > tokens
        if not _is_known(entry) and not (entry.under is not None and is_longer):
            entry.under = EntryLimit(tokens, "between" if tokens is None else "at")


def _latest(before: int | None, limit: int | None) -> int | None:
    return before if limit is None else limit


def _is_without_guard(entry: LogEntry) -> bool:
    return entry.truncated is None and entry.logged_limit is None and entry.ratio is not None


def _look_whether_reached(entries: Sequence[LogEntry], under: EntryLimit, tokens: int) -> None:
    at_it = sum((entry.longest or 0) >= tokens for entry in entries)
    if at_it < FEW * len(entries):
        for entry in entries:
            entry.under = EntryLimit(tokens, "at", under.assumed, reached=False)


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
