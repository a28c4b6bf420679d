"""The truncated share of an entry, or what bounds it.

TRL counts as clipped whatever does not end on a stop token that it knows, of any length. Only a
completion as long as the limit was cut by it, and the lengths bound how many were.
"""

from truncation_guard.diagnosis.run import PRINTED, EntryLimit, LogEntry, RunTrace

_MANY = 0.5
_NEAR = 0.9
"""With so many unfinished, nearly every batch has one at the limit, so that the mean of the longest
is about the limit; where it is further below, they ended for another reason."""


def drop_masked_lengths(trace: RunTrace) -> None:
    """Forget the lengths in which those that were cut are 0 tokens long, and note that.

    TRL 0.17 masks them, by `mask_truncated_completions`, before it takes the lengths (later ones
    take them before). No completion is really empty.
    """
    unguarded = [entry for entry in (*trace.training, *trace.evaluation) if entry.truncated is None]
    if not any(entry.ratio and entry.min_length == 0 for entry in unguarded):
        return
    for entry in unguarded:
        if entry.ratio:  # a mean over batches may be of some without a 0
            entry.mean_length = entry.min_length = entry.max_length = None
    trace.notes.append(
        "Completions that were cut have a length of 0, as TRL 0.17 logs them with "
        "mask_truncated_completions: where some were cut, the lengths are left out."
    )


def truncated_share(entry: LogEntry, with_tools: bool) -> float | None:
    """Share of completions that a limit cut: exact by the guard, at most this by TRL's metrics.

    At most (mean - 1) / (limit - 1) of the completions can be as long as the limit. That does not
    hold with tools, whose tokens TRL leaves out of the lengths but not out of the limit. Nor
    does it with a `rollout_func` that masks tokens of an environment; but no metric tells that
    there is one, so the wording has to.
    """
    if entry.truncated is not None:
        return entry.truncated
    under, ratio, longest, mean = entry.under, entry.ratio, entry.longest, entry.mean_length
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


def below_share(entry: LogEntry, with_tools: bool) -> float | None:
    """Share that did not end on a stop token, and yet below the limit: at least this."""
    if entry.stopped is not None:
        return entry.stopped
    cut = truncated_share(entry, with_tools)
    return None if cut is None or entry.ratio is None else max(entry.ratio - cut, 0.0)


def _from_mean_alone(mean: float | None, under: EntryLimit | None) -> float | None:
    """TRL up to 0.16 logs the mean length alone; where that is the limit, everything is cut."""
    if mean is None or under is None or under.tokens is None or under.tokens < 2:
        return None
    at_most = min(max(mean - 1, 0.0) / (under.tokens - 1), 1.0)
    return at_most if under.reached else None


def _is_short(longest: float, under: EntryLimit) -> bool:
    if under.tokens is None:
        return under.how == "open"  # a limit that so many reached would have come back
    return longest < _NEAR * under.tokens
