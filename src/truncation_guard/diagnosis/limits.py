"""Which limit a run had, and how many of its completions were cut at it.

The one idea: TRL counts as clipped whatever does not end on a stop token that it knows, of any
length. Only a completion as long as the limit was cut by it, and the lengths bound how many were.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from truncation_guard.diagnosis.trace import RunTrace, Window

_FEW = 0.2
"""Share of the entries that the longest length has to come back in, to be taken for the limit."""
_LEAST_ASSUMED = 8
"""Tokens. Nobody sets a shorter limit: short completions of one length are short for another
reason."""
_PRINTED = 0.005
"""What four printed digits may make of a share."""
_MANY = 0.5
_NEAR = 0.9
"""With so many unfinished, nearly every batch has one at the limit, so that the mean of the longest
is about the limit; where it is further below, they ended for another reason."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The limit that the training ended under."""

    tokens: int | None
    """None where it is not known, and nothing hints at it."""
    assumed: bool
    """Whether it is only the longest length, which comes back again and again."""
    longest: float | None
    """The longest completion in tokens, as far as the source knows; the mean of several batches'
    longest in a log."""
    entries_at_it: int
    """Entries or batches whose longest completion has the length of the limit."""
    entries: int
    """Entries or batches with a longest completion."""


def find_limit(trace: RunTrace) -> Limit:
    """The recorded limit, else the one that the lengths hint at."""
    windows = trace.training or trace.evaluation
    lengths = _longest_of(windows)
    longest = max(lengths, default=None)
    tokens = trace.limit
    for of_split in (trace.training, trace.evaluation):
        tokens = _assume(of_split) if tokens is None else tokens
    at_it = 0 if tokens is None else sum(length >= tokens for length in lengths)
    return Limit(tokens, trace.limit is None and tokens is not None, longest, at_it, len(lengths))


def cut_share(window: Window, limit: Limit, with_tools: bool) -> float | None:
    """Share of completions that a limit cut: exact by the guard, at most this by TRL's metrics.

    At most (mean - 1) / (limit - 1) of the completions can be as long as the limit. That does not
    hold with tools, whose tokens TRL leaves out of the lengths but not out of the limit.
    """
    if window.truncated is not None:
        return window.truncated
    longest, mean = _longest(window), window.mean_length
    if window.ratio is None:
        return _from_mean_alone(mean, limit)
    if with_tools or window.ratio == 0 or longest is None or mean is None:
        return window.ratio
    if window.ratio >= _MANY and _is_short(longest, limit):
        return 0.0
    bound = limit.tokens or limit.longest
    if bound is None or bound < 2:
        return window.ratio
    at_most = (mean - 1) / (bound - 1)
    return at_most if at_most < window.ratio - _PRINTED else window.ratio


def below_share(window: Window, limit: Limit, with_tools: bool) -> float | None:
    """Share that did not end on a stop token, and yet below the limit: at least this."""
    if window.stopped is not None:
        return window.stopped
    cut = cut_share(window, limit, with_tools)
    return None if cut is None or window.ratio is None else max(window.ratio - cut, 0.0)


def _from_mean_alone(mean: float | None, limit: Limit) -> float | None:
    """TRL up to 0.16 logs the mean length alone; where that is the limit, everything is cut."""
    if mean is None or limit.tokens is None or limit.tokens < 2:
        return None
    if limit.entries_at_it < _FEW * limit.entries:
        return None
    return min((mean - 1) / (limit.tokens - 1), 1.0)


def _is_short(longest: float, limit: Limit) -> bool:
    if limit.tokens is None:
        return limit.entries > 1  # a limit that so many reached would have come back
    return longest < _NEAR * limit.tokens


def _longest(window: Window) -> float | None:
    return window.mean_length if window.max_length is None else window.max_length


def _longest_of(windows: Sequence[Window]) -> list[float]:
    return [length for window in windows if (length := _longest(window)) is not None]


def _assume(windows: Sequence[Window]) -> int | None:
    """The longest length, if it comes back and completions there did not terminate."""
    lengths = _longest_of(windows)
    longest = max(lengths, default=0.0)
    if longest < _LEAST_ASSUMED or not float(longest).is_integer():
        return None
    often = Counter(lengths)[longest]
    unfinished = [w for w in windows if _longest(w) == longest and w.ratio != 0]
    if not unfinished or (len(lengths) > 1 and (often < 2 or often < _FEW * len(lengths))):
        return None
    if len(lengths) == 1:
        window = unfinished[0]
        if window.ratio is None or window.mean_length is None or longest < 2:
            return None
        if (window.mean_length - 1) / (longest - 1) < window.ratio:
            return None
    return int(longest)
