"""Which limit a run had, and how many of its completions were cut at it.

The one idea: TRL counts as clipped whatever does not end on a stop token that it knows, of any
length. Only a completion as long as the limit was cut by it, and the lengths bound how many were.
"""

from dataclasses import dataclass

from truncation_guard.diagnosis.phases import PRINTED, last_phase, settle_limits
from truncation_guard.diagnosis.run import RunTrace, Under, Window

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
    """The longest completion under it in tokens, as far as the source knows; the mean of several
    batches' longest in a log."""
    entries_at_it: int
    """Entries or batches under it whose longest completion has the length of the limit."""
    entries: int
    """Entries or batches under it with a longest completion."""


def find_limit(trace: RunTrace) -> Limit:
    """The recorded limit, else the one that the lengths hint at; sets `under` of every entry."""
    settle_limits(trace)
    windows = last_phase(trace.training or trace.evaluation)
    lengths = [window.longest for window in windows if window.longest is not None]
    under = next((w.under for w in reversed(windows) if w.under is not None), None)
    tokens = trace.limit if under is None else under.tokens
    at_it = 0 if tokens is None else sum(length >= tokens for length in lengths)
    assumed = under is not None and under.assumed
    return Limit(tokens, assumed, max(lengths, default=None), at_it, len(lengths))


def drop_lengths_without_the_cut(trace: RunTrace) -> None:
    """Forget the lengths in which those that were cut are 0 tokens long, and note that.

    TRL 0.17 masks them, by `mask_truncated_completions`, before it takes the lengths (later ones
    take them before). No completion is really empty.
    """
    unguarded = [w for w in (*trace.training, *trace.evaluation) if w.truncated is None]
    if not any(window.ratio and window.min_length == 0 for window in unguarded):
        return
    for window in unguarded:
        if window.ratio:  # a mean over batches may be of some without a 0
            window.mean_length = window.min_length = window.max_length = None
    trace.notes.append(
        "Completions that were cut have a length of 0, as TRL 0.17 logs them with "
        "mask_truncated_completions: where some were cut, the lengths are left out."
    )


def cut_share(window: Window, with_tools: bool) -> float | None:
    """Share of completions that a limit cut: exact by the guard, at most this by TRL's metrics.

    At most (mean - 1) / (limit - 1) of the completions can be as long as the limit. That does not
    hold with tools, whose tokens TRL leaves out of the lengths but not out of the limit. Nor
    does it with a `rollout_func` that masks tokens of an environment; but no metric tells that
    there is one, so the wording has to.
    """
    if window.truncated is not None:
        return window.truncated
    under, ratio, longest, mean = window.under, window.ratio, window.longest, window.mean_length
    if under is not None and under.how == "doubtful":
        return None
    if ratio is None:
        return _from_mean_alone(mean, under)
    if with_tools or ratio == 0 or longest is None or mean is None:
        return ratio
    if under is None or under.how == "between":
        return ratio
    if ratio >= _MANY and _is_short(longest, under):
        return 0.0
    bound = under.tokens or under.least or longest
    if bound < 2:
        return ratio
    at_most = max(mean - 1, 0.0) / (bound - 1)
    return at_most if at_most < ratio - PRINTED else ratio


def below_share(window: Window, with_tools: bool) -> float | None:
    """Share that did not end on a stop token, and yet below the limit: at least this."""
    if window.stopped is not None:
        return window.stopped
    cut = cut_share(window, with_tools)
    return None if cut is None or window.ratio is None else max(window.ratio - cut, 0.0)


def _from_mean_alone(mean: float | None, under: Under | None) -> float | None:
    """TRL up to 0.16 logs the mean length alone; where that is the limit, everything is cut."""
    if mean is None or under is None or under.tokens is None or under.tokens < 2:
        return None
    at_most = min(max(mean - 1, 0.0) / (under.tokens - 1), 1.0)
    return at_most if under.reached else None


def _is_short(longest: float, under: Under) -> bool:
    if under.tokens is None:
        return under.how == "open"  # a limit that so many reached would have come back
    return longest < _NEAR * under.tokens
