"""The wording: a `Verdict` becomes one WARN line, lengths become a histogram in text.

The line's grammar, which tools may parse:

    [truncation-guard] WARN <code> step=<n> mode=<mode> key=value ... | <fact> -> <remedy>

`step` counts finished optimizer steps. The figures are of this generation batch unless their name
begins with `window_`; `groups` counts groups with a truncated completion, `worst` is the most
affected one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from truncation_guard.batch.counts import BatchCounts
from truncation_guard.lengths.recommendation import LimitAdvice
from truncation_guard.log import PREFIX
from truncation_guard.options import Mode
from truncation_guard.reporting.monitor import Code, Obstacle, Verdict
from truncation_guard.shares import percent

SetupCheck = Literal[
    "context",
    "stop-tokens",
    "soft-punishment",
    "masked-twice",
    "kl-term",
    "entropy-term",
    "unsloth",
    "groups",
    "raise-limit-to",
]

_HISTOGRAM_BINS = 12


@dataclass(frozen=True, slots=True)
class SetupFinding:
    """One thing about the set-up that is very likely a mistake."""

    kind: SetupCheck
    """Which check it is from."""
    fact: str
    """What is so, and what follows; for a WARN line."""
    remedy: str
    """What to do about it."""


def warn_line(
    verdict: Verdict, mode: Mode, truncated_weight: float, truncated_reward: float
) -> str:
    """The WARN line of a verdict, without a line break.

    Args:
        verdict: what is wrong.
        mode: what is really done about truncated completions.
        truncated_weight: for the wording of `downweight`.
        truncated_reward: for the wording of `penalize`.
    """
    effect = "evaluation is only measured"
    if verdict.counts.training:
        effect = _effect(mode, truncated_weight, truncated_reward)
    fact, remedy = _WORDING[verdict.code](verdict, effect)
    figures = _figures(verdict)
    return plain_warn_line(verdict.code, verdict.counts.step, mode, figures, fact, remedy)


def plain_warn_line(
    code: str, step: int, mode: str, figures: Mapping[str, object], fact: str, remedy: str
) -> str:
    """A WARN line in the grammar above."""
    pairs = " ".join(f"{key}={value}" for key, value in figures.items())
    line = f"{PREFIX} WARN {code} step={step} mode={mode} {pairs} | {fact} -> {remedy}"
    return " ".join(line.split())


def summary_line(total: BatchCounts, step: int, advice: LimitAdvice | None) -> str:
    """What a training saw, in one line.

    Args:
        total: its generation batches, added up.
        step: optimizer steps at its end.
        advice: what its lengths say about the limit; None where there is none.
    """
    groups = total.groups
    parts = [
        f"{PREFIX} training ended at step {step}: {total.truncated} of {total.completions} "
        f"completions were truncated ({percent(total.share)})",
        f"{total.stopped} stopped without a stop token",
        f"{groups.all_truncated} of {groups.groups} groups were truncated as a whole",
    ]
    if groups.without_signal is not None:
        parts.append(f"groups without signal: {groups.without_signal}")
    if advice is not None:
        parts.append(_quantile_fact(advice))
    return ", ".join(parts)


def histogram_text(counts: BatchCounts) -> str:
    """Lengths in tokens as lines of text, those of truncated completions apart."""
    lines = counts.lengths.lines(_HISTOGRAM_BINS)
    return "\n".join([f"{PREFIX} lengths of {counts.completions} completions in tokens", *lines])


def _effect(mode: Mode, truncated_weight: float, truncated_reward: float) -> str:
    if mode == "downweight" and truncated_weight == 0.0:
        return "their advantages are set to 0"
    return {
        "observe": "nothing is changed about them",
        "downweight": f"their advantages are multiplied by {truncated_weight:g}",
        "exclude": "they are left out of the baseline and of the loss",
        "penalize": f"each of their rewards is at most {truncated_reward:g}",
    }[mode]


def _figures(verdict: Verdict) -> dict[str, object]:
    counts = verdict.counts
    groups = counts.groups
    figures: dict[str, object] = {} if counts.training else {"split": "eval"}
    figures |= {
        "share": _number(counts.share),
        "completions": f"{counts.truncated}/{counts.completions}",
        "groups": f"{groups.truncated}/{groups.groups}",
        "worst": f"{groups.worst}/{groups.size}",
        "limit": counts.limit,
    }
    if counts.truncated != counts.causes["limit"]:
        figures["causes"] = ",".join(
            f"{cause}:{count}" for cause, count in counts.causes.items() if count
        )
    if verdict.over_window:
        figures["window_share"] = _number(verdict.window_share)
        figures["window_completions"] = f"{verdict.window_truncated}/{verdict.window_completions}"
    return figures


def _limit_ignored(verdict: Verdict, effect: str) -> tuple[str, str]:
    counts = verdict.counts
    return (
        f"{counts.limit_name}={counts.limit} is not obeyed by what writes the completions: "
        f"{counts.above_limit} of {counts.completions} are longer, up to {counts.lengths.longest} "
        "tokens",
        _remedy(verdict),
    )


def _stop_tokens(verdict: Verdict, effect: str) -> tuple[str, str]:
    counts = verdict.counts
    stops = ", ".join(map(str, counts.stop_tokens)) or "no token"
    facts = [
        f"{held} of the {counts.searched} unfinished completions that were searched hold token "
        f"{token}, which looks like an end of turn, but generation only stops at {stops}"
        for token, held in counts.end_of_turn.items()
    ]
    if counts.stopped_unasked:
        facts.append(
            f"{counts.stopped_unasked} of {counts.completions} completions ended below every limit "
            f"on none of the stop tokens ({stops}), and nothing was asked for that could stop them"
        )
    return "; ".join(facts), _remedy(verdict)


def _context(verdict: Verdict, effect: str) -> tuple[str, str]:
    counts = verdict.counts
    return (
        f"{counts.causes['context']} of {counts.completions} completions were cut off because "
        f"prompt and completion fill the context window of {counts.context_window} tokens "
        f"({effect})",
        _remedy(verdict),
    )


def _all_truncated(verdict: Verdict, effect: str) -> tuple[str, str]:
    groups = verdict.counts.groups
    return (
        f"all completions of {groups.all_truncated} of {groups.groups} groups were cut off"
        f"{_cut_by(verdict)} before they finished ({effect}): such a group cannot show the model "
        f"what a finished answer is worth{_limit_fact(verdict)}",
        _remedy(verdict),
    )


def _truncated(verdict: Verdict, effect: str) -> tuple[str, str]:
    share = f"{percent(verdict.share)} of completions"
    if verdict.over_window:
        share = f"{percent(verdict.share)} of the last {verdict.window_completions} completions"
    return (
        f"{share} were cut off{_cut_by(verdict)} before they finished ({effect})"
        f"{_limit_fact(verdict)}",
        _remedy(verdict),
    )


def _no_signal(verdict: Verdict, effect: str) -> tuple[str, str]:
    groups = verdict.counts.groups
    return (
        f"{groups.truncated_without_signal} of {groups.groups} groups have truncated completions "
        f"({effect}) and no advantage left, so that these groups teach nothing"
        f"{_limit_fact(verdict)}",
        f"{_remedy(verdict)}; where rewards differ at all, a larger num_generations leaves more "
        "survivors",
    )


def _rising(verdict: Verdict, effect: str) -> tuple[str, str]:
    reward = verdict.counts.reward
    now = "" if reward is None else f" (truncation_guard/reward is {reward:.4g})"
    lowest = percent(verdict.lowest_share or 0.0)  # there is one, or it could not have risen
    return (
        f"the share of truncated completions has risen from {lowest} to {percent(verdict.share)} "
        f"while {effect}: nothing pushes back any more{now}{_limit_fact(verdict)}",
        f"{_remedy(verdict)}; or use mode='penalize', or mode='downweight' with a truncated_weight "
        "above 0",
    )


_WORDING: dict[Code, Callable[[Verdict, str], tuple[str, str]]] = {
    "limit-ignored": _limit_ignored,
    "stop-tokens": _stop_tokens,
    "context": _context,
    "all-truncated": _all_truncated,
    "truncated": _truncated,
    "no-signal": _no_signal,
    "rising": _rising,
}


def _cut_by(verdict: Verdict) -> str:
    """By what more than half of them were cut, where this batch tells."""
    counts = verdict.counts
    if counts.truncated == 0 or verdict.obstacle == "limit-ignored":
        return ""
    places = {
        "limit": f" at {counts.limit_name}={counts.limit}",
        "context": " by the context window",
        "tool": " in the tool loop",
    }
    half = counts.truncated / 2
    return next((places[cause] for cause, n in counts.causes.items() if n > half), "")


def _limit_fact(verdict: Verdict) -> str:
    return "" if verdict.advice is None else f"; {_quantile_fact(verdict.advice)}"


def _quantile_fact(advice: LimitAdvice) -> str:
    name = f"the {_ordinal(advice.coverage)} percentile of the length"
    if advice.quantile is None:
        return f"{name} is above {advice.longest} and not identified"
    return f"{name} is {advice.quantile}"


def _remedy(verdict: Verdict) -> str:
    if verdict.obstacle is not None:
        return _OBSTACLES[verdict.obstacle]
    name, advice = verdict.counts.limit_name, verdict.advice
    if advice is None:
        return f"set {name}"
    if advice.recommended_limit is None:
        return (
            f"{name}={verdict.counts.limit} holds the coverage of {advice.coverage:g} that was "
            "asked for: raise it all the same, or raise warn_above"
        )
    if advice.quantile is None:
        return (
            f"raise {name} (next try: {advice.recommended_limit}), or size it with "
            "truncation_guard.profile_rollouts"
        )
    return f"raise {name} to {advice.recommended_limit}"


_OBSTACLES: dict[Obstacle, str] = {
    "limit-ignored": "make the rollout function, the environment or generation_kwargs use "
    "trainer.max_completion_length, or set the limit to what they use",
    "stop-tokens": "before the trainer is built, add the missing token to "
    "model.generation_config.eos_token_id (with vLLM also to generation_kwargs: stop_token_ids); a "
    "longer max_completion_length does not help",
    "context": "shorten the prompts, or use a longer window (with vLLM: vllm_max_model_length); a "
    "longer max_completion_length does not help",
    "tool-iterations": "raise max_tool_calling_iterations: the rounds of tool calls ran out, and a "
    "longer max_completion_length does not help",
}


def _ordinal(coverage: float) -> str:
    number = f"{100 * coverage:g}"
    special = number.endswith(("11", "12", "13")) or "." in number
    suffix = "th" if special else {"1": "st", "2": "nd", "3": "rd"}.get(number[-1], "th")
    return f"{number}{suffix}"


def _number(share: float) -> str:
    return f"{share:.4g}"
