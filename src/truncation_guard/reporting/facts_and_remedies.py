"""Fact and remedy of each WARN line."""

from collections.abc import Callable

from truncation_guard.lengths.recommendation import LimitAdvice
from truncation_guard.options import Mode
from truncation_guard.reporting.limit_raiser import LimitDecision
from truncation_guard.reporting.monitor import Code, Obstacle, TruncationFinding
from truncation_guard.shares import percent

_ELSEWHERE = (
    "look elsewhere: at the stop tokens, at completions that repeat themselves (log_completions="
    "True shows them), at a reward that pays for length"
)


def truncation(finding: TruncationFinding, effect: str) -> tuple[str, str]:
    """Fact and remedy of a finding; `effect` says what is done about truncated completions."""
    remedy = _remedy(finding) + _OTHER_REMEDIES.get(finding.code, "")
    return _FACTS[finding.code](finding, effect), remedy


def limit_decision(decision: LimitDecision, limit_name: str) -> tuple[str, str]:
    """Fact and remedy of a decision about the limit, under the name of its setting."""
    seen = (
        f"{percent(decision.earlier.share)} and then {percent(decision.newer.share)} of the "
        f"completions of two windows were cut off under {limit_name}={decision.before}"
    )
    if decision.after is not None:
        return _raised(decision, decision.after, seen, limit_name)
    if decision.reason == "no-effect" and decision.share_before_raise is not None:
        return (
            f"{seen}, and {percent(decision.share_before_raise)} before it was last raised: more "
            "room lets hardly any more of them end, so length is not the cause, and the limit "
            "stays from now on",
            _ELSEWHERE,
        )
    return (
        f"{seen}, and raise_limit_to={decision.ceiling} or what the longest prompt "
        f"({decision.longest_prompt} tokens) leaves of the context window leaves no room for more",
        f"if most of them are getting somewhere, allow more; otherwise {_ELSEWHERE}",
    )


def effect(mode: Mode, truncated_weight: float, truncated_reward: float) -> str:
    """What a mode does about truncated completions."""
    if mode == "downweight" and truncated_weight == 0.0:
        return "their advantages are set to 0"
    return {
        "observe": "nothing is changed about them",
        "downweight": f"their advantages are multiplied by {truncated_weight:g}",
        "exclude": "they are left out of the baseline and of the loss",
        "penalize": f"each of their rewards is at most {truncated_reward:g}",
    }[mode]


def quantile_fact(advice: LimitAdvice) -> str:
    """What is known of the length that holds the coverage."""
    name = f"the {_ordinal(advice.coverage)} percentile of the length"
    if advice.quantile is None:
        return f"{name} is above {advice.longest} and not identified"
    return f"{name} is {advice.quantile}"


def _limit_ignored(finding: TruncationFinding, effect: str) -> str:
    counts = finding.counts
    return (
        f"{counts.limit_name}={counts.limit} is not obeyed by what writes the completions: "
        f"{counts.above_limit} of {counts.completions} are longer, up to {counts.lengths.longest} "
        "tokens"
    )


def _stop_tokens(finding: TruncationFinding, effect: str) -> str:
    counts = finding.counts
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
    return "; ".join(facts)


def _context(finding: TruncationFinding, effect: str) -> str:
    counts = finding.counts
    return (
        f"{counts.causes['context']} of {counts.completions} completions were cut off because "
        f"prompt and completion fill the context window of {counts.context_window} tokens "
        f"({effect})"
    )


def _all_truncated(finding: TruncationFinding, effect: str) -> str:
    groups = finding.counts.groups
    return (
        f"all completions of {groups.all_truncated} of {groups.groups} groups were cut off"
        f"{_cut_by(finding)} before they finished ({effect}): such a group cannot show the model "
        f"what a finished answer is worth{_limit_fact(finding)}"
    )


def _truncated(finding: TruncationFinding, effect: str) -> str:
    of = f"of the last {finding.window.completions} completions"
    return (
        f"{percent(finding.share)} {of if finding.over_window else 'of completions'} were cut off"
        f"{_cut_by(finding)} before they finished ({effect}){_limit_fact(finding)}"
    )


def _no_signal(finding: TruncationFinding, effect: str) -> str:
    groups = finding.counts.groups
    return (
        f"{groups.truncated_without_signal} of {groups.groups} groups have truncated completions "
        f"({effect}) and no advantage left, so that these groups teach nothing"
        f"{_limit_fact(finding)}"
    )


def _rising(finding: TruncationFinding, effect: str) -> str:
    reward = finding.counts.reward
    now = "" if reward is None else f" (truncation_guard/reward is {reward:.4g})"
    lowest = percent(finding.lowest_share or 0.0)  # there is one, or it could not have risen
    return (
        f"the share of truncated completions has risen from {lowest} to {percent(finding.share)} "
        f"while {effect}: nothing pushes back any more{now}{_limit_fact(finding)}"
    )


_FACTS: dict[Code, Callable[[TruncationFinding, str], str]] = {
    "limit-ignored": _limit_ignored,
    "stop-tokens": _stop_tokens,
    "context": _context,
    "all-truncated": _all_truncated,
    "truncated": _truncated,
    "no-signal": _no_signal,
    "rising": _rising,
}
_OTHER_REMEDIES: dict[Code, str] = {
    "no-signal": "; where rewards differ at all, a larger num_generations leaves more survivors",
    "rising": "; or use mode='penalize', or mode='downweight' with a truncated_weight above 0",
}


def _cut_by(finding: TruncationFinding) -> str:
    """By what more than half of them were cut, where this batch tells."""
    counts = finding.counts
    if counts.truncated == 0 or finding.obstacle == "limit-ignored":
        return ""
    places = {
        "limit": f" at {counts.limit_name}={counts.limit}",
        "context": " by the context window",
        "tool": " in the tool loop",
    }
    half = counts.truncated / 2
    return next((places[cause] for cause, n in counts.causes.items() if n > half), "")


def _limit_fact(finding: TruncationFinding) -> str:
    return "" if finding.advice is None else f"; {quantile_fact(finding.advice)}"


def _remedy(finding: TruncationFinding) -> str:
    if finding.obstacle is not None:
        return _OBSTACLES[finding.obstacle]
    name, advice = finding.counts.limit_name, finding.advice
    if advice is None:
        return f"set {name}"
    if advice.recommended_limit is None:
        return (
            f"{name}={finding.counts.limit} holds the coverage of {advice.coverage:g} that was "
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


def _raised(decision: LimitDecision, after: int, seen: str, limit_name: str) -> tuple[str, str]:
    basis = "twice as much, because what they need is not identified"
    if decision.reason == "observed":
        basis = "which holds the coverage that was asked for"
    elif after < 2 * decision.before:
        basis = f"the most that raise_limit_to={decision.ceiling} and the context window allow"
    return (
        f"{seen}: it is raised to {after} before one of the next rollouts, {basis}",
        f"expect longer rollouts and more memory, and set {limit_name} to it in the next run",
    )
