"""The picture of a run, for the extra `plot`: truncation, lengths and reward over its steps.

Three axes share the steps, so that the eye finds what goes together. It is readable in grey.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from truncation_guard.diagnosis.limit_history import LastLimit
from truncation_guard.diagnosis.measurements import Measures
from truncation_guard.diagnosis.run import Figure, LogEntry, RunTrace
from truncation_guard.diagnosis.truncated_share import truncated_share
from truncation_guard.diagnosis.verdict import RunVerdict
from truncation_guard.picture_check import import_figure

_SQUARES = {"marker": "s", "linestyle": "", "color": "black", "markerfacecolor": "white"}
_MOST_POINTS = 1000
"""More of them do not show on a picture of this width; neighbours are averaged then."""
_FEW_POINTS = 30
"""So few are marked one by one."""


def plot_run(trace: RunTrace, measures: Measures, verdict: RunVerdict, path: str | Path) -> None:
    """Draw the truncated share, lengths with the limit, and reward into a PNG file.

    Raises:
        ImportError: without matplotlib.
    """
    figure = import_figure()(figsize=(8, 8), layout="constrained")
    top, middle, bottom = figure.subplots(3, sharex=True)
    _draw_shares(top, trace, bounded=measures.bounded)
    _draw_lengths(middle, trace, measures.limit)
    _draw(bottom, trace.training, lambda entry: entry.reward, "training", color="black")
    _draw(bottom, trace.evaluation, lambda entry: entry.reward, "evaluation", **_SQUARES)
    bottom.set_ylabel("mean reward")
    bottom.set_xlabel("optimizer step" if trace.steps_known else "log entry (steps are not known)")
    for axes in (top, middle, bottom):
        axes.grid(color="0.9")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
        else:
            axes.set_yticks([])
            axes.text(0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center", va="center")
    title = f"truncation {verdict.answer} what holds this run back\n{trace.path}"
    figure.suptitle(title, fontsize="medium", wrap=True)
    figure.align_ylabels()
    figure.savefig(path, format="png", dpi=150)


def _draw_shares(axes: Any, trace: RunTrace, *, bounded: bool) -> None:
    def cut(entry: LogEntry) -> float | None:
        share = truncated_share(entry, trace.with_tools)
        return None if share is None else 100 * share

    name = "training, at most" if bounded else "training"
    _draw(axes, trace.training, cut, name, color="black")
    _draw(axes, trace.evaluation, cut, "evaluation", **_SQUARES)
    axes.set_ylim(-4, 104)
    axes.set_ylabel("truncated completions (%)")


def _draw_lengths(axes: Any, trace: RunTrace, limit: LastLimit) -> None:
    training = trace.training
    assumed = ", assumed" if limit.assumed else ""
    _draw(axes, training, lambda entry: entry.max_length, "longest", color="0.55", linestyle=":")
    _draw(axes, training, lambda entry: entry.mean_length, "mean", color="black")
    _draw(
        axes,
        training,
        lambda entry: entry.terminated_length(_tokens(entry)),
        "mean of those\nthat ended",
        color="0.45",
        linestyle="--",
    )
    mean = "evaluation, mean"
    _draw(axes, trace.evaluation, lambda entry: entry.mean_length, mean, **_SQUARES)
    style = {"color": "black", "linewidth": 3, "alpha": 0.35}
    if len({_tokens(entry) for entry in training} - {None}) > 1:
        _draw(axes, training, _tokens, f"limit{assumed}", **style)
    elif limit.tokens is not None and axes.lines:
        axes.axhline(limit.tokens, label=f"limit{assumed}", **style)
    axes.margins(y=0.1)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("length (tokens)")


def _tokens(entry: LogEntry) -> int | None:
    return None if entry.under is None else entry.under.tokens


def _draw(axes: Any, entries: Sequence[LogEntry], figure: Figure, label: str, **style: Any) -> None:
    points = _points(entries, figure)
    if points:
        marker = "." if len(points) <= _FEW_POINTS else None
        axes.plot(*zip(*points, strict=True), label=label, **({"marker": marker} | style))


def _points(entries: Sequence[LogEntry], figure: Figure) -> list[tuple[float, float]]:
    """(step, value), the values of one step averaged, and of neighbours where there are many."""
    values: dict[float, list[float]] = {}
    for number, entry in enumerate(entries, start=1):
        if (value := figure(entry)) is not None:
            values.setdefault(number if entry.step is None else entry.step, []).append(value)
    points = [(step, sum(of_step) / len(of_step)) for step, of_step in values.items()]
    every = -(len(points) // -_MOST_POINTS)
    if every < 2:
        return points
    parts = [points[start : start + every] for start in range(0, len(points), every)]
    return [
        (sum(step for step, _ in part) / len(part), sum(value for _, value in part) / len(part))
        for part in parts
    ]
