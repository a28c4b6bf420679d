"""Caveats: causes easily taken for a short limit, and doubts about the figures.

Unlike the checklist, a caveat is given only where it applies.
"""

from dataclasses import asdict

from truncation_guard.diagnosis.finding import Finding, Severity
from truncation_guard.diagnosis.limit_history import phases
from truncation_guard.diagnosis.measurements import CLEAR, MUCH, NOTABLE, Measures
from truncation_guard.diagnosis.run import NEARLY_ALL, RunTrace
from truncation_guard.diagnosis.wording.by_code import word

_SHORT = 0.2
"""Share of the limit. Even of log-normal lengths with a sigma of 2, a quarter of them truncated,
the terminated ones have a longer mean."""
_RISE = 0.05 - 1e-9


def find_caveats(trace: RunTrace, measures: Measures) -> list[Finding]:
    """The caveats that apply."""
    return [found for check in _CHECKS if (found := check(trace, measures)) is not None]


def _stop_tokens(trace: RunTrace, measures: Measures) -> Finding | None:
    """Nothing ends."""
    cut, limit = measures.cut_last_limit, measures.limit.tokens
    if cut is None or limit is None or (measures.elsewhere or 0) > MUCH:
        return None
    if cut.overall < NEARLY_ALL:
        return None
    return word("stop-tokens", "warning", limit=limit, share=cut.overall)


def _two_lengths(trace: RunTrace, measures: Measures) -> Finding | None:
    """The terminated ones end long before the limit: stop tokens fire, and many run on."""
    cut, limit, ended = measures.cut, measures.limit.tokens, measures.ended_length
    if cut is None or cut.last <= MUCH or limit is None or (measures.elsewhere or 0) > MUCH:
        return None
    if ended is None or ended > _SHORT * limit:
        return None
    return word("two-lengths", "warning", limit=limit, share=cut.last, ended_length=ended)


def _elsewhere(trace: RunTrace, measures: Measures) -> Finding | None:
    cut, elsewhere = measures.cut, measures.elsewhere
    if cut is None or elsewhere is None or elsewhere <= NOTABLE or elsewhere <= cut.overall / 2:
        return None
    return word("cut-elsewhere", "warning", share=elsewhere, truncated=cut.overall)


def _rising(trace: RunTrace, measures: Measures) -> Finding | None:
    cut = measures.cut_last_limit  # another limit cuts another share
    if cut is None or cut.last <= NOTABLE or cut.last - cut.lowest < max(_RISE, CLEAR * cut.noise):
        return None
    mode, weight = trace.mode, trace.truncated_weight
    known = bool(trace.masked) or mode == "exclude" or (mode == "downweight" and weight == 0)
    may_be = (mode == "downweight" and weight is None) or (trace.guarded and mode is None)
    if not known and not may_be:
        return None
    shares = {"lowest": cut.lowest, "last": cut.last}
    return word("rising", "warning", **shares, mode=mode, masked=trace.masked, known=known)


def _short_unfinished(trace: RunTrace, measures: Measures) -> Finding | None:
    below, constant = measures.below, measures.constant_length
    if constant is not None:
        return word("short-unfinished", "warning", constant_length=constant)
    if below is None or below <= NOTABLE:
        return None
    severity: Severity = "warning"
    if trace.guarded and trace.warned is None:
        severity = "unknown"
    elif trace.guarded and "stop-tokens" not in (trace.warned or ()):
        severity = "fine"  # the guard warns where nothing was asked for that could have ended them
    return word(
        "short-unfinished",
        severity,
        share=below,
        guarded=trace.guarded,
        ratio=measures.unfinished,
        limit=measures.limit.tokens,
        longest=measures.limit.longest,
    )


def _limit_unknown(trace: RunTrace, measures: Measures) -> Finding | None:
    limit = measures.limit
    if limit.entries == 0 or measures.constant_length is not None:
        return None
    if limit.tokens is not None and not limit.assumed:
        return None
    if any(entry.logged_limit is not None for entry in trace.training):
        return None  # it changed: see there
    return word(
        "limit-unknown",
        "unknown",
        assumed=limit.tokens,
        entries_at_limit=limit.entries_at_it,
        entries=limit.entries,
        longest=limit.longest,
    )


def _limit_changed(trace: RunTrace, measures: Measures) -> Finding | None:
    found = phases(trace.training)
    means = sum(e.logged_limit is not None and e.limit is None for e in trace.training)
    if len({phase.tokens for phase in found}) < 2 and not means:
        return None
    return word(
        "limit-changed",
        "fine",
        limits=[phase.tokens for phase in found],
        phases=[asdict(phase) for phase in found],
        means=means,
        entries=len(trace.training),
        assumed=any(phase.assumed for phase in found),
        steps_known=trace.steps_known,
    )


def _keys_missing(trace: RunTrace, measures: Measures) -> Finding | None:
    if trace.source in ("record", "tables"):
        return None
    entries, without = len(trace.training), sum(e.unfinished is None for e in trace.training)
    if not without:
        return None
    return word(
        "metrics-missing",
        "unknown" if without == entries else "fine",
        entries=entries,
        without=without,
        mean_length=any(entry.mean_length is not None for entry in trace.training),
    )


_CHECKS = (
    _stop_tokens,
    _two_lengths,
    _elsewhere,
    _rising,
    _short_unfinished,
    _limit_unknown,
    _limit_changed,
    _keys_missing,
)
