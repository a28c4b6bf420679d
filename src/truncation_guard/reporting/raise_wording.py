"""The wording of what was decided about the limit.

The one idea: a raise costs time and memory, so its line says what for; and where more room buys
nothing, the line says where else to look.
"""

from truncation_guard.reporting.limit_raiser import LimitDecision
from truncation_guard.shares import percent

LIMIT_RAISED, NOT_LENGTH = "limit-raised", "not-length"
_ELSEWHERE = (
    "look elsewhere: at the stop tokens, at completions that repeat themselves (log_completions="
    "True shows them), at a reward that pays for length"
)


def code(decision: LimitDecision) -> str:
    """The code of its WARN line."""
    return NOT_LENGTH if decision.after is None else LIMIT_RAISED


def figures(decision: LimitDecision) -> dict[str, object]:
    """The figures of its WARN line."""
    return {
        "limit": decision.before,
        **({} if decision.after is None else {"raised_to": decision.after}),
        "window_share": f"{decision.shares[1]:.4g}",
        "window_completions": decision.completions,
    }


def wording(decision: LimitDecision, limit_name: str) -> tuple[str, str]:
    """Fact and remedy.

    Args:
        decision: what was decided.
        limit_name: the setting that the limit comes from.
    """
    earlier, newer = map(percent, decision.shares)
    seen = (
        f"{earlier} and then {newer} of the completions of two windows were cut off under "
        f"{limit_name}={decision.before}"
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
