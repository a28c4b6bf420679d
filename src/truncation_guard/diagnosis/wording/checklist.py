"""The texts of the checklist. A bound or an assumption is never given as a figure."""

from truncation_guard.diagnosis.finding import Evidence, Severity
from truncation_guard.diagnosis.wording.phrases import (
    ADD_A_GUARD,
    TRL_DEFAULTS,
    Wording,
    span_text,
    unit_text,
)
from truncation_guard.shares import percent

_SOURCES = {
    "record": "the record",
    "trainer_state": "the log_history",
    "tables": "a completions table",
    "log": "the log",
}
_RAISE = "raise max_completion_length (how far: see limit-needed)"
_PROFILE = "truncation_guard.profile_rollouts at a generous limit"
_LOOK_UP = "look up its ERROR line in the log"
_RECORDS_THEM = f"{ADD_A_GUARD}: it records them"


def _bound(evidence: Evidence) -> str:
    return "at most " if evidence["bounded"] and evidence["share"] else ""


def _pile_up(severity: Severity, evidence: Evidence) -> tuple[str, str]:
    if severity == "unknown":
        if evidence["constant_length"] is not None:
            return (
                f"all completions are {evidence['constant_length']} tokens long: whether that is "
                "the limit is not known",
                "compare with max_completion_length in the run's configuration",
            )
        if evidence["is_mean"]:
            return "the limit changed within the entries: where lengths pile up is not known", ""
        return (
            f"the lengths of the completions are not in {_SOURCES[evidence['source']]}",
            _RECORDS_THEM,
        )
    longest = f"{evidence['longest']:g}"
    if severity == "fine":
        return f"lengths do not pile up at one value; the longest are {longest} tokens long", ""
    assumed = ", which is assumed to be the limit" if evidence["assumed"] else ""
    fact = (
        f"lengths pile up at {evidence['limit']} tokens{assumed}: {_bound(evidence)}"
        f"{percent(evidence['share'], 3)} of the completions were cut there at the end"
    )
    if evidence["entries_at_limit"]:  # else the lengths leave something out
        fact += (
            f", and the longest has that length in {evidence['entries_at_limit']} of "
            f"{evidence['entries']} entries"
        )
    return fact, _RAISE


def _default_limit(severity: Severity, evidence: Evidence) -> tuple[str, str]:
    limit = evidence["limit"]
    if limit is None:
        return "whether the limit was a default is not known, nor is the limit", ""
    is_default = limit in TRL_DEFAULTS
    since = f"TRL's default ({TRL_DEFAULTS[limit]})" if is_default else "no default of TRL"
    fact = f"the {'assumed ' if evidence['assumed'] else ''}limit of {limit} tokens is {since}"
    if severity != "warning":
        return f"{fact}{', and holds what was written' if is_default else ''}", ""
    return f"{fact}: it was chosen for no task", "set max_completion_length to what the task needs"


def _limit_needed(severity: Severity, evidence: Evidence) -> tuple[str, str]:
    limit = evidence["limit"]
    if "basis" in evidence:
        fact = evidence["reason"]
        if severity == "fine":
            return fact, ""
        if evidence["recommended"] is None:
            return fact, f"measure with {_PROFILE}, and look at stop tokens and repetition first"
        name = f"max_completion_length={evidence['recommended']}"
        return fact, f"set {name}, and check it with {_PROFILE}"
    if "held" not in evidence:
        source = _SOURCES[evidence["source"]]
        fact = f"what limit would hold 95% of the completions cannot be known from {source}"
        return fact, f"measure it with {_PROFILE}"
    held = percent(evidence["held"], 3)
    name = "the limit" if limit is None else f"the limit of {limit} tokens"
    least = "at least " if evidence["bounded"] and evidence["held"] < 1 else ""
    if severity == "fine":
        return f"{name} held {least}{held} of the completions at the end", ""
    return (
        f"{name} held {least}{held} of the completions at the end; what would hold 95% cannot be "
        "known from means, for the lengths behind the cuts are in none of them",
        f"measure it with {_PROFILE}",
    )


def _truncated(severity: Severity, evidence: Evidence) -> tuple[str, str]:
    if severity == "unknown":
        if evidence["constant_length"] is not None:
            return "all completions were cut off, or none: see short-unfinished", ""
        source = _SOURCES[evidence["source"]]
        return f"how many completions were cut off is not in {source}", _RECORDS_THEM
    if evidence["highest"] == 0:
        by_length = "by their lengths " if evidence["by_length"] else ""
        return f"{by_length}no completion was cut off{span_text(evidence)}", ""
    fact = (
        f"{_bound(evidence)}{percent(evidence['share'], 3)} of the completions were cut off"
        f"{span_text(evidence)}"
    )
    if evidence["entries"] > 1:
        unit = unit_text(evidence["steps_known"])
        fact += (
            f": {percent(evidence['first'], 3)} at first, {percent(evidence['last'], 3)} at the "
            f"end, {percent(evidence['highest'], 3)} at most ({unit} {evidence['highest_at']:g})"
        )
    return fact, "" if severity == "fine" else _RAISE


def _warned(severity: Severity, evidence: Evidence) -> tuple[str, str]:
    if severity == "unknown":
        return "a guard was on; its WARN lines are in the log of the run, which was not read", ""
    if not evidence["codes"] and evidence["switched_off"]:
        return "a guard was on, and switched itself off before it warned", _LOOK_UP
    if not evidence["codes"] and evidence["guarded"]:
        line = "no WARN line of it"
        if evidence["others"]:
            line = f"no WARN line of it but of the set-up ({evidence['others']})"
        return (
            f"a guard was on, and {line} is in the log",
            "log stderr as well (2>&1), and leave warn_above at its default",
        )
    if not evidence["codes"]:
        return "nothing ever warned about it: TRL itself only logs a ratio", ADD_A_GUARD
    lines = "" if evidence["lines"] is None else f" in {evidence['lines']} WARN lines"
    return f"the guard warned of it{lines} ({evidence['codes']})", "follow the first of the lines"


def _no_signal(severity: Severity, evidence: Evidence) -> tuple[str, str]:
    if "source" in evidence:
        return f"how many groups had no signal is not in {_SOURCES[evidence['source']]}", ""
    fact = (
        f"{percent(evidence['share'], 3)} of the groups taught nothing at the end: all their "
        "advantages are 0"
    )
    if severity == "fine":
        return fact, ""
    if severity == "unknown":
        return f"{fact}: fine, if the problems are solved", ""
    return fact, (
        "end truncation first, where there is some; then make the problems easier or harder, or "
        "raise num_generations"
    )


def _reward(severity: Severity, evidence: Evidence) -> tuple[str, str]:
    if "source" in evidence:
        return f"the reward is not in {_SOURCES[evidence['source']]}", ""
    fact = f"the reward went from {evidence['first']:.3g} to {evidence['last']:.3g}"
    if evidence["entries"] == 1:
        fact = f"the reward is {evidence['first']:.3g}"
    fact += span_text(evidence)
    if evidence["top"] == "one" and severity == "fine" and evidence["change"] != "rises":
        return f"{fact}: near 1, the most that a reward function usually gives", ""
    if evidence["top"] == "unknown" and severity == "unknown":
        return (
            f"{fact}, and most rewards are equal: fine, if that is the most that can be had",
            "compare with what the reward functions give at most",
        )
    if severity == "unknown":
        return f"{fact}; {evidence['entries']} entries are too few to tell a change from noise", ""
    fact += {"falls": ": it falls", "flat": ": it is flat"}.get(evidence["change"], "")
    if severity == "fine":
        return fact, ""
    if (evidence["uniform"] or 0) >= 0.5:
        fact += f"; all rewards are equal in {percent(evidence['uniform'], 3)} of the entries"
    return fact, "end truncation first, where there is some; then look at the reward functions"


def _guarded(severity: Severity, evidence: Evidence) -> tuple[str, str]:
    if "share" not in evidence:
        return "whether advantages had to be guarded is not known", ""
    if not evidence["notable"]:
        return "there was hardly anything to guard the advantages against", ""
    mode, weight = evidence["mode"], evidence["truncated_weight"]
    if evidence["switched_off"] is not None:
        unit = unit_text(evidence["steps_known"])
        return (
            f"the guard switched itself off after {unit} {evidence['switched_off']:g} and did "
            "nothing from then on",
            _LOOK_UP,
        )
    if evidence["guarded"] and mode is None:
        return "a guard was on; in which mode is not recorded", ""
    if mode == "observe":
        return "the guard was on and changed nothing (mode=observe)", "use its default mode"
    if mode == "downweight" and weight == 1:
        return (
            "the guard was on and changed nothing (mode=downweight with a truncated_weight of 1)",
            "use a truncated_weight below 1",
        )
    if evidence["guarded"]:
        return f"the guard in mode={mode} {_effect(mode, weight)}", ""
    if evidence["masked"]:
        return (
            "mask_truncated_completions kept truncated completions from the loss, but their "
            "rewards stayed in the baseline of their groups",
            f"{ADD_A_GUARD} instead",
        )
    masked = " and no mask" if evidence["masked"] is False else ""
    fact = f"no guard{masked}: truncated completions were scored like wrong answers"
    if evidence["masked"] is None:
        fact += " (whether mask_truncated_completions was set is not recorded)"
    return fact, ADD_A_GUARD


def _effect(mode: str, weight: float | None) -> str:
    """The effect of a mode on truncated completions."""
    if mode == "downweight":
        by = "its truncated_weight, which is not recorded" if weight is None else f"{weight:g}"
        return f"multiplied the advantages of truncated completions by {by}"
    if mode == "penalize":
        return (
            "let no reward of a truncated completion be above truncated_reward; they stayed in "
            "the baseline and in the loss"
        )
    return "left truncated completions out of the baseline and of the loss"


def _evaluation(severity: Severity, evidence: Evidence) -> tuple[str, str]:
    if severity == "unknown":
        evaluated = evidence["evaluated"]
        return (
            "evaluations do not say whether answers finish"
            if evaluated
            else "there was no evaluation"
        ), ""
    unit, step = unit_text(evidence["steps_known"]), evidence["step"]
    at = "" if step is None else f" at {unit} {step:g}"
    fact = f"{percent(evidence['share'], 3)} of the answers were cut off in the evaluation{at}"
    if severity == "fine":
        return fact, ""
    training = evidence["training_share"]
    if training is not None:
        fact += f" ({percent(training, 3)} in training at its end)"
    return fact, "eval_reward is that of cut answers: raise max_completion_length"


CHECKLIST: dict[str, Wording] = {
    "pile-up": _pile_up,
    "default-limit": _default_limit,
    "limit-needed": _limit_needed,
    "truncated": _truncated,
    "warned": _warned,
    "no-signal": _no_signal,
    "reward": _reward,
    "guarded": _guarded,
    "evaluation": _evaluation,
}
