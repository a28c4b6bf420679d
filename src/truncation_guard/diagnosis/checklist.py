"""The checklist: questions about every run, answered from its figures.

Where the figures do not tell, the answer is `unknown`. `wording` has the texts.
"""

from truncation_guard.diagnosis.caveats import find_caveats
from truncation_guard.diagnosis.finding import Evidence, Finding, Severity
from truncation_guard.diagnosis.measurements import MUCH, NOTABLE, Measures
from truncation_guard.diagnosis.run import RunTrace
from truncation_guard.diagnosis.wording.by_code import word
from truncation_guard.diagnosis.wording.phrases import TRL_DEFAULTS
from truncation_guard.lengths.sample import LengthSample

_COVERAGE = 0.95
_ACTING = ("downweight", "exclude", "penalize")
_NOT_OF_TRUNCATION = ("config", "limit-ignored", "loss-scale", "measured-only")
"""WARN codes about the set-up, not about truncated completions."""


def find_all(trace: RunTrace, measures: Measures) -> tuple[Finding, ...]:
    """The answers to the checklist in its order, then the caveats."""
    answers = [answer for check in _CHECKS if (answer := check(trace, measures)) is not None]
    return (*answers, *find_caveats(trace, measures))


def _pile_up(trace: RunTrace, measures: Measures) -> Finding:
    limit, cut, constant = measures.limit, measures.cut, measures.constant_length
    has_means = any(entry.logged_limit is not None for entry in trace.training)
    is_mean = limit.tokens is None and has_means
    if cut is None or limit.entries == 0 or is_mean:
        evidence = {"source": trace.source, "constant_length": constant, "is_mean": is_mean}
        return word("pile-up", "unknown", **evidence)
    at_limit = max(cut.last - (measures.elsewhere or 0.0), 0.0)
    return word(
        "pile-up",
        "warning" if limit.tokens is not None and at_limit > NOTABLE else "fine",
        limit=limit.tokens,
        assumed=limit.assumed,
        share=at_limit,
        bounded=measures.bounded,
        entries_at_limit=limit.entries_at_it,
        entries=limit.entries,
        longest=limit.longest,
    )


def _default_limit(trace: RunTrace, measures: Measures) -> Finding:
    limit, cut = measures.limit, measures.cut
    share = measures.evaluation_cut if cut is None else cut.last
    severity: Severity = "fine"
    if limit.tokens is None or share is None:
        severity = "unknown"
    elif limit.tokens in TRL_DEFAULTS and share > NOTABLE:
        severity = "warning"
    return word("default-limit", severity, limit=limit.tokens, assumed=limit.assumed)


def _limit_needed(trace: RunTrace, measures: Measures) -> Finding:
    limit, cut = measures.limit.tokens, measures.cut
    if trace.sample is not None:
        return _from_sample(trace.sample, limit)
    if cut is None:
        return word("limit-needed", "unknown", limit=limit, source=trace.source)
    held = 1 - cut.last
    severity: Severity = "fine" if held >= _COVERAGE else "unknown"
    return word("limit-needed", severity, limit=limit, held=held, bounded=measures.bounded)


def _from_sample(sample: LengthSample, limit: int | None) -> Finding:
    advice = sample.recommend(_COVERAGE)
    return word(
        "limit-needed",
        # An observed quantile lies within the limit.
        "fine" if advice.basis == "observed" else "warning",
        limit=limit,
        recommended=advice.max_completion_length,
        basis=advice.basis,
        low=advice.low,
        high=advice.high,
        completions=len(sample),
        held=1 - sample.truncated / len(sample),
        reason=advice.reason,
    )


def _truncated(trace: RunTrace, measures: Measures) -> Finding:
    cut = measures.cut
    if cut is None:
        evidence = {"source": trace.source, "constant_length": measures.constant_length}
        return word("truncated", "unknown", **evidence)
    severity: Severity = "fine"
    if cut.last > NOTABLE:
        severity = "problem" if cut.last > MUCH else "warning"
    return word(
        "truncated",
        severity,
        share=cut.overall,
        first=cut.first,
        last=cut.last,
        highest=cut.highest,
        highest_at=cut.highest_at,
        last_above=cut.last_above,
        entries=cut.entries,
        bounded=measures.bounded,
        by_length=not trace.guarded and (measures.below or 0.0) > NOTABLE,
        **_steps(trace, measures),
    )


def _warned(trace: RunTrace, measures: Measures) -> Finding | None:
    cut = measures.cut
    if cut is None or not cut.is_notable:
        return None
    if trace.warned is None:
        return word("warned", "unknown", guarded=trace.guarded)
    lines = {code: n for code, n in trace.warned.items() if code not in _NOT_OF_TRUNCATION}
    return word(
        "warned",
        "fine" if lines or cut.last <= NOTABLE else "warning",
        codes=", ".join(sorted(lines)),
        lines=sum(lines.values()) if trace.source == "log" else None,
        others=", ".join(sorted(trace.warned.keys() - lines.keys())),
        guarded=trace.guarded,
        switched_off=trace.switched_off is not None,
    )


def _no_signal(trace: RunTrace, measures: Measures) -> Finding:
    silent = measures.silent
    if silent is None:
        return word("no-signal", "unknown", source=trace.source)
    severity: Severity = "unknown" if _may_be_solved(measures) else "warning"
    # Where the reward has risen, they may be equal because most problems are solved by now.
    if silent.last < 0.5 or measures.learns:
        severity = "fine"
    return word("no-signal", severity, share=silent.last, overall=silent.overall)


def _reward(trace: RunTrace, measures: Measures) -> Finding:
    reward, change, uniform = measures.reward, measures.reward_change, measures.uniform
    if reward is None:
        return word("reward", "unknown", source=trace.source)
    severity: Severity = "warning"
    if measures.learns:
        severity = "fine"
    elif _may_be_solved(measures) or (change is None and (uniform or 0.0) < 0.5):
        severity = "unknown"
    return word(
        "reward",
        severity,
        first=reward.first,
        last=reward.last,
        entries=reward.entries,
        change=change,
        uniform=uniform,
        top=measures.top,
        **_steps(trace, measures),
    )


def _may_be_solved(measures: Measures) -> bool:
    """Whether hardly any rewards differ, and they may be the highest there are."""
    hardly_cut = measures.cut is None or measures.cut.last <= NOTABLE
    return measures.top == "unknown" and measures.reward_change != "falls" and hardly_cut


def _guarded(trace: RunTrace, measures: Measures) -> Finding:
    cut = measures.cut
    evidence: Evidence = {
        "guarded": trace.guarded,
        "mode": trace.mode,
        "truncated_weight": trace.truncated_weight,
        "masked": trace.masked,
        "switched_off": trace.switched_off,
        "steps_known": trace.steps_known,
    }
    if cut is None:
        return word("guarded", "unknown", **evidence)
    evidence |= {"share": cut.overall, "notable": cut.is_notable}
    is_on = trace.guarded and trace.switched_off is None
    acts = trace.mode in _ACTING and (trace.mode, trace.truncated_weight) != ("downweight", 1)
    if cut.last <= NOTABLE or (is_on and acts):
        return word("guarded", "fine", **evidence)
    is_open = is_on and trace.mode is None
    return word("guarded", "unknown" if is_open else "warning", **evidence)


def _evaluation(trace: RunTrace, measures: Measures) -> Finding:
    share = measures.evaluation_cut
    if share is None:
        return word("evaluation", "unknown", evaluated=bool(trace.evaluation))
    return word(
        "evaluation",
        "warning" if share > NOTABLE else "fine",
        share=share,
        step=measures.evaluation_step,
        steps_known=trace.steps_known,
        training_share=None if measures.cut is None else measures.cut.last,
    )


_CHECKS = (
    _pile_up,
    _default_limit,
    _limit_needed,
    _truncated,
    _warned,
    _no_signal,
    _reward,
    _guarded,
    _evaluation,
)


def _steps(trace: RunTrace, measures: Measures) -> Evidence:
    first, last = measures.steps or (None, None)
    return {"first_step": first, "last_step": last, "steps_known": trace.steps_known}
