"""Caveats: what is easily taken for a short limit, and what the figures rest on.

Unlike the checklist, they say nothing where there is nothing to say.
"""

from collections.abc import Callable
from dataclasses import asdict

from truncation_guard.diagnosis.finding import Evidence, Finding
from truncation_guard.diagnosis.limit_history import phases
from truncation_guard.diagnosis.measures import CLEAR, MUCH, NOTABLE, Measures
from truncation_guard.diagnosis.run import NEARLY_ALL, RunTrace
from truncation_guard.diagnosis.wording.by_code import word

_SHORT = 0.2
"""Even log-normal lengths with a sigma of 2, a quarter of which is cut, do not have those that
ended at a mean of less than this share of the limit."""
_RISE = 0.05 - 1e-9


def find_caveats(trace: RunTrace, measures: Measures) -> list[Finding]:
    """Those that apply."""
    return [found for check in _CHECKS if (found := check(trace, measures)) is not None]


def _stop_tokens(trace: RunTrace, measures: Measures) -> Finding | None:
    """Nothing ends."""
    cut, limit = measures.cut_last_limit, measures.limit.tokens
    if cut is None or limit is None or (measures.elsewhere or 0) > MUCH:
        return None
    if cut.overall < NEARLY_ALL:
        return None
    return word("stop-tokens", "warning", {"limit": limit, "share": cut.overall})


def _two_lengths(trace: RunTrace, measures: Measures) -> Finding | None:
    """All that ends does so long before the limit: stop tokens fire, and many run on."""
    cut, limit, ended = measures.cut, measures.limit.tokens, measures.ended_length
    if cut is None or cut.last <= MUCH or limit is None or (measures.elsewhere or 0) > MUCH:
        return None
    if ended is None or ended > _SHORT * limit:
        return None
    evidence: Evidence = {"limit": limit, "share": cut.last, "ended_length": ended}
    return word("two-lengths", "warning", evidence)


def _elsewhere(trace: RunTrace, measures: Measures) -> Finding | None:
    cut, elsewhere = measures.cut, measures.elsewhere
    if cut is None or elsewhere is None or elsewhere <= NOTABLE or elsewhere <= cut.overall / 2:
        return None
    return word("cut-elsewhere", "warning", {"share": elsewhere, "truncated": cut.overall})


def _rising(trace: RunTrace, measures: Measures) -> Finding | None:
    cut = measures.cut_last_limit  # another limit cuts another share
    if cut is None or cut.last <= NOTABLE or cut.last - cut.lowest < max(_RISE, CLEAR * cut.noise):
        return None
    weight = trace.truncated_weight
    known = trace.masked or trace.mode == "exclude" or (trace.mode == "downweight" and weight == 0)
    may_be = trace.mode == "downweight" and weight is None
    if not known and not may_be and not (trace.guarded and trace.mode is None):
        return None
    evidence: Evidence = {
        "lowest": cut.lowest,
        "last": cut.last,
        "mode": trace.mode,
        "masked": trace.masked,
        "known": bool(known),
    }
    return word("rising", "warning", evidence)


def _short_unfinished(trace: RunTrace, measures: Measures) -> Finding | None:
    below = measures.below
    if measures.constant_length is not None:
        constant: Evidence = {"constant_length": measures.constant_length}
        return word("short-unfinished", "warning", constant)
    if below is None or below <= NOTABLE:
        return None
    evidence: Evidence = {
        "share": below,
        "guarded": trace.guarded,
        "ratio": measures.unfinished,
        "limit": measures.limit.tokens,
        "longest": measures.limit.longest,
    }
    if not trace.guarded:
        return word("short-unfinished", "warning", evidence)
    # The guard warns where nothing was asked for that could have stopped them.
    if trace.warned is None:
        return word("short-unfinished", "unknown", evidence)
    return word(
        "short-unfinished", "warning" if "stop-tokens" in trace.warned else "fine", evidence
    )


def _limit_unknown(trace: RunTrace, measures: Measures) -> Finding | None:
    limit = measures.limit
    if limit.entries == 0 or measures.constant_length is not None:
        return None
    if limit.tokens is not None and not limit.assumed:
        return None
    if any(entry.logged_limit is not None for entry in trace.training):
        return None  # it changed: see there
    evidence: Evidence = {
        "assumed": limit.tokens,
        "entries_at_limit": limit.entries_at_it,
        "entries": limit.entries,
        "longest": limit.longest,
    }
    return word("limit-unknown", "unknown", evidence)


def _limit_changed(trace: RunTrace, measures: Measures) -> Finding | None:
    found = phases(trace.training)
    means = [
        entry.step
        for entry in trace.training
        if entry.logged_limit is not None and entry.limit is None
    ]
    if len({phase.tokens for phase in found}) < 2 and not means:
        return None
    evidence: Evidence = {
        "limits": [phase.tokens for phase in found],
        "phases": [asdict(phase) for phase in found],
        "means": len(means),
        "entries": len(trace.training),
        "assumed": any(phase.assumed for phase in found),
        "steps_known": trace.steps_known,
    }
    return word("limit-changed", "fine", evidence)


def _keys_missing(trace: RunTrace, measures: Measures) -> Finding | None:
    if trace.source in ("record", "tables") or not trace.training:
        return None
    without = sum(entry.unfinished is None for entry in trace.training)
    if not without:
        return None
    evidence: Evidence = {
        "entries": len(trace.training),
        "without": without,
        "mean_length": any(entry.mean_length is not None for entry in trace.training),
    }
    all_of_them = without == len(trace.training)
    return word("metrics-missing", "unknown" if all_of_them else "fine", evidence)


_CHECKS: tuple[Callable[[RunTrace, Measures], Finding | None], ...] = (
    _stop_tokens,
    _two_lengths,
    _elsewhere,
    _rising,
    _short_unfinished,
    _limit_unknown,
    _limit_changed,
    _keys_missing,
)
