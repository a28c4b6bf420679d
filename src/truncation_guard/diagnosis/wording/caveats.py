"""The texts of the caveats: what to check before the limit is raised in vain."""

from truncation_guard.diagnosis.finding import Evidence, Severity
from truncation_guard.diagnosis.wording.phrases import (
    ADD_A_GUARD,
    TOKENS_OF_AN_ENVIRONMENT,
    Wording,
    unit_text,
)
from truncation_guard.shares import percent


def _stop_tokens(severity: Severity, evidence: Evidence) -> tuple[str, str]:
    return (
        f"no completion ever ended before {evidence['limit']} tokens: either all need more, or no "
        "stop token fires",
        "before raising the limit look at some completions: if they go on after their answer, add "
        "the end-of-turn token to model.generation_config.eos_token_id",
    )


def _two_lengths(severity: Severity, evidence: Evidence) -> tuple[str, str]:
    return (
        f"{percent(evidence['share'], 3)} of the completions ran into {evidence['limit']} tokens "
        f"while the others ended after {evidence['ended_length']:.3g} on average: stop tokens do "
        "fire, and the rest either need far more or never end",
        "before raising the limit look at some that were cut: do they repeat themselves, go on "
        "after their answer, or belong to harder prompts?",
    )


def _cut_elsewhere(severity: Severity, evidence: Evidence) -> tuple[str, str]:
    return (
        f"{percent(evidence['share'], 3)} of the completions were cut by the context window or in "
        f"the tool loop, out of {percent(evidence['truncated'], 3)} that were cut at all",
        "shorten the prompts, use a longer window, or raise max_tool_calling_iterations; a longer "
        "max_completion_length does not help",
    )


def _rising(severity: Severity, evidence: Evidence) -> tuple[str, str]:
    how = "mask_truncated_completions" if evidence["masked"] else f"mode={evidence['mode']}"
    if evidence["known"]:
        taken = f"{how} took"
    elif evidence["mode"] is None:
        taken = "the guard, by its mode, may have taken"
    else:
        taken = f"{how}, by its truncated_weight, may have taken"
    return (
        f"the truncated share rose from {percent(evidence['lowest'], 3)} to "
        f"{percent(evidence['last'], 3)} while {taken} the pressure to finish away",
        "raise the limit, or use a TruncationGuardCallback with mode='penalize' or a "
        "truncated_weight above 0",
    )


def _short_unfinished(severity: Severity, evidence: Evidence) -> tuple[str, str]:
    if "constant_length" in evidence:
        return (
            f"all completions are {evidence['constant_length']} tokens long and count as clipped: "
            "either that is the limit, or they are short and TRL does not know what ends them",
            "compare with max_completion_length in the run's configuration: if that is higher, "
            "look for a stop token that tokenizer and generation config do not name",
        )
    share = percent(evidence["share"], 3)
    unless = ""
    if evidence["guarded"]:
        fact = f"{share} of the completions ended below every limit without a stop token"
        if severity != "warning":
            return f"{fact}: fine, where stop strings or an environment end them", ""
    else:
        least = "" if evidence["share"] == evidence["ratio"] else "at least "
        longest = f"{evidence['longest']:g}"
        limit = "" if evidence["limit"] is None else f", the limit is {evidence['limit']}"
        fact = (
            f"{least}{share} of the completions count as clipped and yet are short (the longest "
            f"has {longest} tokens{limit}): TRL counts what does not end on a stop token that it "
            "knows"
        )
        unless = f", unless {TOKENS_OF_AN_ENVIRONMENT}"
    return fact, (
        f"a longer limit does not help{unless}: look for a stop token that tokenizer and "
        "generation config do not name, for stop strings, tools, or an environment that ends them"
    )


def _limit_unknown(severity: Severity, evidence: Evidence) -> tuple[str, str]:
    longest = f"{evidence['longest']:g}"
    remedy = "compare with max_completion_length in the run's configuration"
    if evidence["assumed"] is None:
        return (
            f"the limit is recorded nowhere, and nothing hints at it (the longest completion has "
            f"{longest} tokens)",
            remedy,
        )
    again = ""
    if not evidence["entries_at_limit"]:
        again = " in evaluation"
    elif evidence["entries"] > 1:
        again = f" in {evidence['entries_at_limit']} of {evidence['entries']} entries"
    return (
        f"the limit is recorded nowhere: {evidence['assumed']} tokens are assumed, the length of "
        f"the longest completion{again}",
        remedy,
    )


def _limit_changed(severity: Severity, evidence: Evidence) -> tuple[str, str]:
    unit = unit_text(evidence["steps_known"])
    means = ""
    if evidence["means"]:
        entries = f"{evidence['means']} of {evidence['entries']} entries"
        means = f"in {entries} only a mean of limits is logged"
    if not any(evidence["limits"]):
        return f"the limit changed during the run: {means}", ""
    parts = [
        f"{_length(phase)} tokens{_when(phase, number, len(evidence['phases']), unit)}"
        for number, phase in enumerate(evidence["phases"])
    ]
    assumed = ", as the longest completions show" if evidence["assumed"] else ""
    tail = f" ({means})" if means else ""
    return f"the limit changed during the run{assumed}: {', then '.join(parts)}{tail}", ""


def _length(phase: Evidence) -> str:
    return f"at least {phase['least']:g}" if phase["tokens"] is None else str(phase["tokens"])


def _when(phase: Evidence, number: int, phases: int, unit: str) -> str:
    first, last = phase["first_step"], phase["last_step"]
    if first is None or last is None:
        return ""
    if number == phases - 1 and phases > 1:
        return f" from {unit} {first:g} on"
    return f" up to {unit} {last:g}" if number == 0 else f" from {unit} {first:g} to {last:g}"


def _metrics_missing(severity: Severity, evidence: Evidence) -> tuple[str, str]:
    without, entries = evidence["without"], evidence["entries"]
    if severity == "fine":
        return (
            f"{without} of {entries} entries have no completions/clipped_ratio: nothing was "
            "generated in them, or they are cut",
            "",
        )
    known = "only a mean length" if evidence["mean_length"] else "no completions/* at all"
    return (
        f"completions/clipped_ratio is in none of {entries} entries, and there is {known}: TRL "
        "logs it from 0.17 on",
        f"update TRL, or {ADD_A_GUARD}",
    )


CAVEATS: dict[str, Wording] = {
    "stop-tokens": _stop_tokens,
    "two-lengths": _two_lengths,
    "cut-elsewhere": _cut_elsewhere,
    "rising": _rising,
    "short-unfinished": _short_unfinished,
    "limit-unknown": _limit_unknown,
    "limit-changed": _limit_changed,
    "metrics-missing": _metrics_missing,
}
