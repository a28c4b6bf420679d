"""Under which limit every entry of a run was written.

The one idea: a limit may change, by a raise or between restarts, so a share at a limit is only told
of entries that were written under it. What is recorded counts; else the lengths hint at it.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from truncation_guard.diagnosis.run import RunTrace, Standing, Under, Window

FEW = 0.2
"""Share of the entries that the longest length has to come back in, to be taken for the limit."""
_LEAST_ASSUMED = 8
"""Tokens. Nobody sets a shorter limit: short completions of one length are short for another
reason."""
_LEAST_SURE = 64
"""Tokens. Completions that all have one length below may as well be short answers."""
_ROUND = (64, 50)
"""What people take a multiple of for a limit."""
_NEARLY_ALL = 0.999
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


def settle_logged_limits(windows: Sequence[Window], exact: Iterable[int] = ()) -> None:
    """Set the limit of the entries whose logged mean is surely one limit.

    A mean over a raise may be a whole number, too. It is taken for a limit where the entry before
    or after has the same, where there is no other entry, or where it is one of `exact`.
    """
    logged = [window for window in windows if window.logged_limit is not None]
    values = [window.logged_limit for window in logged]
    known = set(exact)
    for number, window in enumerate(logged):
        value = values[number]
        beside = values[max(number - 1, 0) : number] + values[number + 1 : number + 2]
        if value is None or not value.is_integer() or value < 1:
            continue
        if value in beside or value in known or not beside:
            window.limit = int(value)


def settle_limits(trace: RunTrace) -> None:
    """Find out for every entry the limit that it was written under."""
    _settle(trace.training, trace.limit)
    _settle(trace.evaluation, trace.limit)
    if any(_is_known(window) for window in trace.training):
        _take_over(trace.training, trace.evaluation)
    else:
        hints = {window.under for window in trace.evaluation if _is_known(window)}
        if len(hints) == 1:
            (under,) = hints
            for window in trace.training:
                window.under = under
        for window in trace.evaluation if hints else ():
            window.under = window.under if _is_known(window) else max(hints, key=_tokens)


def phases(windows: Sequence[Window]) -> tuple[Phase, ...]:
    """The limits of a training, in their order."""
    told = [(w.under, w) for w in windows if w.under is not None and w.under.how != "between"]
    found = []
    for tokens, group in groupby(told, key=lambda item: item[0].tokens):
        of_it = list(group)
        (under, first), (_, last) = of_it[0], of_it[-1]
        found.append(Phase(tokens, under.least, under.assumed, first.step, last.step))
    return tuple(found)


def last_phase(windows: Sequence[Window]) -> Sequence[Window]:
    """The entries under the last limit that is known, or after it under none that is."""
    told = [w for w in windows if w.under and w.under.how != "between" and w.longest is not None]
    if not told:
        return windows
    limit = _tokens(told[-1].under)
    end = len(windows)
    while windows[end - 1] is not told[-1]:
        end -= 1
    start = end
    while start and (windows[start - 1].under is None or _is_same(windows[start - 1], limit)):
        start -= 1
    return windows[start:end]


def doubtful_lengths(windows: Sequence[Window]) -> set[float]:
    """Short lengths that all completions of their entries have, none ending on a stop token."""
    ending: set[float] = set()
    constant: Counter[float] = Counter()
    for window in windows:
        longest = window.longest
        if longest is None or not _LEAST_ASSUMED <= longest < _LEAST_SURE:
            continue
        if window.truncated is not None:
            continue  # the guard knows
        is_all = window.ratio is None or window.ratio >= _NEARLY_ALL
        is_one = window.mean_length is not None and longest - window.mean_length < PRINTED * longest
        if is_all and is_one and not longest % 1:
            constant[longest] += 1
        else:
            ending.add(longest)
    least = min(2, len(windows))
    return {length for length, often in constant.items() if often >= least} - ending


def _settle(windows: Sequence[Window], recorded: int | None) -> None:
    """Recorded limits first; stretches without one by their lengths."""
    if any(window.logged_limit is not None for window in windows):
        _settle_guarded(windows)
    elif recorded is not None and all(window.limit is None for window in windows):
        for window in windows:
            window.under = Under(recorded, "at")
    else:
        for limit, stretch in groupby(windows, key=lambda w: w.limit):
            of_it = list(stretch)
            if limit is None:
                _assume(of_it)
            for window in of_it if limit is not None else ():
                window.under = Under(limit, "at")
    for under, stretch in groupby(windows, key=lambda w: w.under):
        of_it = [window for window in stretch if window.longest is not None]
        if under is not None and under.tokens is not None and under.how == "at":
            _look_whether_reached(of_it, under, under.tokens)


def _settle_guarded(windows: Sequence[Window]) -> None:
    """By the guard's metric; an entry that lost it is under what both its neighbours are under."""
    own = [window.limit if window.logged_limit is not None else None for window in windows]
    later: list[int | None] = [None] * len(windows)
    for number in range(len(windows) - 2, -1, -1):
        later[number] = own[number + 1] if own[number + 1] is not None else later[number + 1]
    for unguarded, stretch in groupby(windows, key=_is_without_guard):
        of_it = list(stretch)
        if unguarded and len(of_it) >= _LEAST_RUN:
            _assume(of_it)  # the guard was added later
    before: int | None = None
    for number, window in enumerate(windows):
        tokens = own[number]
        if tokens is None and window.logged_limit is None:
            beside = {limit for limit in (before, later[number]) if limit is not None}
            tokens = beside.pop() if len(beside) == 1 else None
        before = before if own[number] is None else own[number]
        is_longer = tokens is not None and (window.longest or 0.0) > tokens
        if not _is_known(window) and not (window.under is not None and is_longer):
            window.under = Under(tokens, "between" if tokens is None else "at")


def _is_without_guard(window: Window) -> bool:
    return window.truncated is None and window.logged_limit is None and window.ratio is not None


def _look_whether_reached(windows: Sequence[Window], under: Under, tokens: int) -> None:
    at_it = sum((window.longest or 0) >= tokens for window in windows)
    if at_it < FEW * len(windows):
        for window in windows:
            window.under = Under(tokens, "at", under.assumed, reached=False)


def _assume(windows: Sequence[Window]) -> None:
    """Limits that the lengths hint at: the longest, where it comes back and did not terminate."""
    told = [window for window in windows if window.longest is not None]
    runs = _runs(told)
    before: tuple[int | None, int] = None, 0
    for value, first, end in runs:
        _fill(told[before[1] : first], before[0], value)
        for window in told[first:end]:
            window.under = Under(value, "at", assumed=True)
        before = value, end
    _fill(told[before[1] :], before[0], None)
    doubtful = doubtful_lengths(told)
    for is_open, stretch in groupby(told, key=lambda window: window.under is None):
        of_it = list(stretch)
        least = max(window.longest or 0.0 for window in of_it)
        for window in of_it if is_open else ():
            how: Standing = "alone" if len(of_it) == 1 else "open"
            if window.longest in doubtful:
                how = "doubtful"
            window.under = Under(None, how, least=least)


def _fill(windows: Sequence[Window], before: int | None, after: int | None) -> None:
    """Entries beside a limit, of which the lengths alone do not tell where they belong."""
    limits = [limit for limit in (before, after) if limit is not None]
    for window in windows if limits else ():
        longest = window.longest or 0.0
        if longest <= min(limits):
            window.under = Under(min(limits), "at", assumed=True)
        elif longest <= max(limits):
            window.under = Under(None, "between")


def _runs(windows: Sequence[Window]) -> list[tuple[int, int, int]]:
    """(length, first entry, entry after) of every stretch whose longest length comes back."""
    doubtful = doubtful_lengths(windows)
    counts = Counter(window.longest for window in windows)
    pins = [
        (int(window.longest or 0), [number])
        for number, window in enumerate(windows)
        if _may_be_cut(window, counts[window.longest], len(windows))
        and window.longest not in doubtful
    ]
    longest = max((window.longest or 0.0 for window in windows), default=0.0)
    often = sum(value == longest for value, _ in pins)
    comes_back = often >= min(2, len(windows)) and often >= FEW * len(windows)
    kept = [
        (value, numbers)
        for value, numbers in _joined(pins, windows)
        if len(numbers) >= _LEAST_RUN or (comes_back and value == longest)
    ]
    return [
        (value, numbers[0], numbers[-1] + 1)
        for value, numbers in _joined(kept, windows)
        if len(numbers) >= FEW * (numbers[-1] + 1 - numbers[0])
    ]


def _joined(
    stretches: Iterable[tuple[int, list[int]]], windows: Sequence[Window]
) -> list[tuple[int, list[int]]]:
    """Stretches of one length after each other as one, if nothing in between is longer."""
    joined: list[tuple[int, list[int]]] = []
    for value, numbers in stretches:
        if joined and joined[-1][0] == value:
            between = windows[joined[-1][1][-1] + 1 : numbers[0]]
            if all((window.longest or 0.0) <= value for window in between):
                joined[-1][1].extend(numbers)
                continue
        joined.append((value, list(numbers)))
    return joined


def _may_be_cut(window: Window, often: int, entries: int) -> bool:
    """Whether the longest of an entry, which as many entries have, may have been cut there."""
    longest, mean, ratio = window.longest, window.mean_length, window.unfinished
    if longest is None or longest < _LEAST_ASSUMED or longest % 1 or ratio == 0:
        return False
    if entries > 1 and (ratio is None or ratio < _NEARLY_ALL or mean is None):
        return True
    if ratio is None or mean is None:
        return False
    if (mean - 1) / (longest - 1) >= ratio - (PRINTED if entries > 1 else 0):
        return True
    # Nothing ends on a stop token, and some are shorter, so the stop token is not known: then a
    # length that comes back shows a limit only where it looks like one, or most entries have it.
    is_likely = 2 * often > entries or any(longest % unit == 0 for unit in _ROUND)
    return entries > 1 and longest >= _LEAST_SURE and is_likely


def _take_over(training: Sequence[Window], evaluation: Sequence[Window]) -> None:
    """Evaluations run under the limit of the training at that time."""
    known = [window for window in training if window.under is not None]
    steps = list(accumulate((window.step or 0.0 for window in known), max))
    for window in evaluation:
        if window.limit is None and window.logged_limit is None:
            before = len(known) if window.step is None else bisect_right(steps, window.step)
            window.under = known[max(before - 1, 0)].under


def _is_known(window: Window) -> bool:
    return window.under is not None and window.under.tokens is not None


def _is_same(window: Window, limit: int) -> bool:
    under = window.under
    return under is not None and under.how != "between" and _tokens(under) == limit


def _tokens(under: Under | None) -> int:
    return 0 if under is None else under.tokens or 0
