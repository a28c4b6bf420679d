"""The verdict: whether truncation holds a run back.

It takes both, much truncation and a run that does not learn. One without the other is "may be" or
"is not".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from truncation_guard.diagnosis.finding import Finding
from truncation_guard.diagnosis.measurements import MUCH, NOTABLE, Course, Measures
from truncation_guard.diagnosis.run import RunTrace
from truncation_guard.diagnosis.wording.phrases import (
    TOKENS_OF_AN_ENVIRONMENT,
    unit_text,
)
from truncation_guard.shares import percent

Answer = Literal["is", "is not", "may be"]

_MOST = 0.75


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """Whether truncation holds a run back, and why so."""

    answer: Answer
    reason: str

    def __str__(self) -> str:
        """The first line of a report."""
        return f"truncation {self.answer} what holds this run back: {self.reason}"


def judge(trace: RunTrace, measures: Measures, findings: Sequence[Finding]) -> RunVerdict:
    """The verdict on a run."""
    cut, below = measures.cut, measures.below or 0.0
    if cut is None:
        return _without_shares(trace, measures)
    # The guard counts these apart; here they are in TRL's ratio.
    if not trace.guarded and below > NOTABLE and below >= cut.overall and cut.last <= MUCH:
        least = "" if below == measures.unfinished else "at least "
        return RunVerdict(
            "is not",
            f"{least}{percent(below, 3)} of the completions ended without a known stop token, but "
            f"below the limit: no matter of length, unless {TOKENS_OF_AN_ENVIRONMENT}",
        )
    if cut.last <= NOTABLE:
        return _hardly(trace, measures, cut)
    return _cut(trace, measures, cut, {finding.code: finding for finding in findings})


def _without_shares(trace: RunTrace, measures: Measures) -> RunVerdict:
    share = measures.evaluation_cut
    if measures.constant_length is not None:
        return RunVerdict(
            "may be",
            f"all completions are {measures.constant_length} tokens long and count as clipped, "
            "which is either the limit, or no matter of length",
        )
    if share is None:
        return RunVerdict("may be", "what there is does not tell whether completions were cut off")
    what = f"{percent(share, 3)} of the answers were cut off in its last evaluation"
    if share <= NOTABLE:
        return RunVerdict("is not", f"{what}, and there is nothing about its training")
    return RunVerdict("may be", f"{what}, but there is nothing about its training")


def _hardly(trace: RunTrace, measures: Measures, cut: Course) -> RunVerdict:
    if cut.is_notable:
        unit = unit_text(trace.steps_known)
        above = cut.last_above
        until = "" if above is None else f", and hardly any after {unit} {above:g}"
        return RunVerdict(
            "is not",
            f"{percent(max(cut.first, cut.overall), 3)} of the completions were cut off for a "
            f"time, but {percent(cut.last, 3)} at the end{until}",
        )
    reason = f"only {percent(cut.overall, 3)} of the completions were cut off"
    if cut.highest == 0:
        reason = "no completion was cut off"
    may_learn = measures.learns or measures.top == "unknown"
    if not may_learn and measures.reward_change in ("flat", "falls"):
        reason += ", and the reward did not rise all the same"
    return RunVerdict("is not", reason)


def _cut(
    trace: RunTrace, measures: Measures, cut: Course, found: Mapping[str, Finding]
) -> RunVerdict:
    at = "" if measures.limit.tokens is None else f" at {measures.limit.tokens} tokens"
    if "cut-elsewhere" in found:
        at = " by the context window or in the tool loop"
    bound = "at most " if measures.bounded and cut.last < 1 else ""
    reason = f"{bound}{percent(cut.last, 3)} of the completions were cut off{at} at the end"
    harm = _harm(measures)
    answer: Answer = "may be"
    if cut.last < 0.5 and measures.silent is not None and measures.silent.last >= _MOST:
        reason += (
            f", and {harm or 'no group has a signal'}; but most completions finish, and are worth "
            "no more than others: look at the reward functions as well"
        )
    elif cut.last > MUCH and harm:
        answer, reason = "is", f"{reason}, and {harm}"
    elif cut.last >= _MOST and not measures.learns:
        answer = "is"
    elif measures.reward_change == "rises":
        reason += ", but the reward rises"
    elif measures.learns:
        reason += ", but the reward is near 1"
    elif harm:
        reason += f", and {harm}"
    if cut.entries == 1:
        reason += ", as far as a single entry tells"
    if "stop-tokens" in found:
        reason += "; stop tokens that do not fire would look the same"
        if measures.limit.assumed:
            reason += ", and that this length is the limit is assumed"
    if "two-lengths" in found:
        reason += "; but what ends does so much earlier, so a longer limit may not help"
    return RunVerdict(answer, reason)


def _harm(measures: Measures) -> str:
    """The sign that a run does not learn; empty without one."""
    if measures.learns:
        return ""
    if measures.uniform is not None and measures.uniform >= 0.5:
        return "most of the time all rewards are equal"
    if measures.silent is not None and measures.silent.last >= 0.5:
        return f"{percent(measures.silent.last, 3)} of the groups teach nothing"
    if measures.reward_change in ("flat", "falls"):
        return "the reward does not rise"
    return ""
