"""The lines that a training writes: their grammar and their figures.

The grammar of a WARN line, which tools may parse:

    [truncation-guard] WARN <code> step=<n> mode=<mode> key=value ... | <fact> -> <remedy>

`step` counts finished optimizer steps. The figures are of this generation batch unless their name
begins with `window_`; `groups` counts groups with a truncated completion, `worst` is the most
affected one. `facts_and_remedies` words fact and remedy.
"""

from collections.abc import Mapping

from truncation_guard.batch.counts import BatchCounts
from truncation_guard.lengths.histogram import LengthHistogram
from truncation_guard.lengths.recommendation import LimitAdvice
from truncation_guard.logger import PREFIX
from truncation_guard.options import Mode
from truncation_guard.reporting import facts_and_remedies
from truncation_guard.reporting.limit_raiser import LimitDecision
from truncation_guard.reporting.monitor import TruncationFinding
from truncation_guard.shares import percent

_HISTOGRAM_BINS = 12


def plain_warn_line(
    code: str, step: int, mode: str, figures: Mapping[str, object], fact: str, remedy: str
) -> str:
    """A WARN line in the grammar above, without a line break."""
    pairs = " ".join(f"{key}={value}" for key, value in figures.items())
    line = f"{PREFIX} WARN {code} step={step} mode={mode} {pairs} | {fact} -> {remedy}"
    return " ".join(line.split())


def warn_line(
    finding: TruncationFinding, mode: Mode, truncated_weight: float, truncated_reward: float
) -> str:
    """The WARN line of a finding, with what `mode` does about truncated completions."""
    counts = finding.counts
    effect = "evaluation is only measured"
    if counts.training:
        effect = facts_and_remedies.effect(mode, truncated_weight, truncated_reward)
    fact, remedy = facts_and_remedies.truncation(finding, effect)
    return plain_warn_line(finding.code, counts.step, mode, _figures(finding), fact, remedy)


def limit_line(decision: LimitDecision, counts: BatchCounts, mode: Mode) -> str:
    """The WARN line of a decision about the limit, made on the batch of these counts."""
    figures: dict[str, object] = {"limit": decision.before}
    if decision.after is not None:
        figures["raised_to"] = decision.after
    figures["window_share"] = _figure(decision.newer.share)
    figures["window_completions"] = decision.earlier.completions + decision.newer.completions
    code = "not-length" if decision.after is None else "limit-raised"
    fact, remedy = facts_and_remedies.limit_decision(decision, counts.limit_name)
    return plain_warn_line(code, counts.step, mode, figures, fact, remedy)


def summary_line(total: BatchCounts, step: int, advice: LimitAdvice | None) -> str:
    """What a training saw until this optimizer step, in one line.

    Args:
        total: its generation batches, added up.
        step: finished optimizer steps.
        advice: what its lengths say about the limit; None without a limit.
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
        parts.append(facts_and_remedies.quantile_fact(advice))
    return ", ".join(parts)


def histogram_text(lengths: LengthHistogram) -> str:
    """Lengths in tokens as lines of text, those of truncated completions apart."""
    title = f"{PREFIX} lengths of {lengths.completions} completions in tokens"
    return "\n".join([title, *lengths.lines(_HISTOGRAM_BINS)])


def _figures(finding: TruncationFinding) -> dict[str, object]:
    counts, groups = finding.counts, finding.counts.groups
    figures: dict[str, object] = {} if counts.training else {"split": "eval"}
    figures |= {
        "share": _figure(counts.share),
        "completions": f"{counts.truncated}/{counts.completions}",
        "groups": f"{groups.truncated}/{groups.groups}",
        "worst": f"{groups.worst}/{groups.size}",
        "limit": counts.limit,
    }
    if counts.truncated != counts.causes["limit"]:
        figures["causes"] = ",".join(
            f"{cause}:{count}" for cause, count in counts.causes.items() if count
        )
    if finding.over_window:
        window = finding.window
        figures["window_share"] = _figure(window.share)
        figures["window_completions"] = f"{window.truncated}/{window.completions}"
    return figures


def _figure(share: float) -> str:
    """A share for a tool that parses the line."""
    return f"{share:.4g}"
