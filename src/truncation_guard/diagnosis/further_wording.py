"""What the findings beside the checklist say.

The one idea: each names what to look at before the limit is raised in vain.
"""

from collections.abc import Callable

from truncation_guard.diagnosis.finding import Evidence, Severity, share_text

ADD_A_GUARD = "add a TruncationGuardCallback"


def _stop_tokens(severity: Severity, evidence: Evidence) -> tuple[str, str]:
    limit = evidence["limit"]
    remedy = (
        "before raising the limit look at some completions: if they go on after their answer, add "
        "the end-of-turn token to model.generation_config.eos_token_id"
    )
    if evidence["nothing_ended"]:
        return (
            f"no completion ever ended before {limit} tokens: either all need more, or no stop "
            "token fires",
            remedy,
        )
    return (
        f"{share_text(evidence['share'])} of the completions ran into {limit} tokens while the "
        f"others ended after {evidence['ended_length']:.3g} on average: this is no tail of long "
        "answers, these do not end",
        f"{remedy}; otherwise look for repetition",
    )


def _cut_elsewhere(severity: Severity, evidence: Evidence) -> tuple[str, str]:
    return (
        f"{share_text(evidence['share'])} of the completions were cut by the context window or in "
        f"the tool loop, out of {share_text(evidence['truncated'])} that were cut at all",
        "shorten the prompts, use a longer window, or raise max_tool_calling_iterations; a longer "
        "max_completion_length does not help",
    )


def _rising(severity: Severity, evidence: Evidence) -> tuple[str, str]:
    how = "mask_truncated_completions" if evidence["masked"] else f"mode={evidence['mode']}"
    taken = f"while {how} took" if evidence["known"] else "while the guard, by its mode, may take"
    return (
        f"the truncated share rose from {share_text(evidence['lowest'])} to "
        f"{share_text(evidence['last'])} {taken} the pressure to finish away",
        "raise the limit, or use a TruncationGuardCallback with mode='penalize' or a "
        "truncated_weight above 0",
    )


def _short_unfinished(severity: Severity, evidence: Evidence) -> tuple[str, str]:
    share = share_text(evidence["share"])
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
    return fact, (
        "a longer limit does not help: look for a stop token that tokenizer and generation config "
        "do not name, for stop strings, tools, or an environment that ends them"
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
    return f"the limit changed during the run: {', '.join(map(str, evidence['limits']))} tokens", ""


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


FURTHER_WORDING: dict[str, Callable[[Severity, Evidence], tuple[str, str]]] = {
    "stop-tokens": _stop_tokens,
    "cut-elsewhere": _cut_elsewhere,
    "rising": _rising,
    "short-unfinished": _short_unfinished,
    "limit-unknown": _limit_unknown,
    "limit-changed": _limit_changed,
    "metrics-missing": _metrics_missing,
}
