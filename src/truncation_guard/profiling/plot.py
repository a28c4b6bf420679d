"""The picture of a profile, for the extra `plot`: readable in grey."""

from pathlib import Path
from typing import Any

from truncation_guard.lengths.histogram import Bin
from truncation_guard.lengths.recommendation import LimitRecommendation
from truncation_guard.lengths.sample import LengthSample
from truncation_guard.picture_check import import_figure
from truncation_guard.shares import percent

_BINS = 40
_MARKED = {"p50": (0.5, ":"), "p95": (0.95, "--")}


def plot_lengths(
    path: str | Path, title: str, sample: LengthSample, recommendation: LimitRecommendation
) -> None:
    """Draw a histogram of lengths, percentiles and the recommended limit into a PNG file.

    Raises:
        ImportError: without matplotlib.
    """
    figure = import_figure()(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    _draw_bins(axes, sample.lengths.bins(_BINS))
    for name, (q, style) in _MARKED.items():
        if (tokens := sample.quantile(q)) is not None:
            axes.axvline(tokens, color="0.2", linestyle=style, label=f"{name} = {tokens}")
    if recommendation.max_completion_length is not None:
        axes.axvline(
            recommendation.max_completion_length,
            color="black",
            linewidth=2,
            label=f"max_completion_length = {recommendation.max_completion_length} "
            f"({percent(recommendation.coverage)}, {recommendation.basis})",
        )
    axes.set_xlim(left=0)
    axes.set_xlabel("length of a completion (tokens)")
    axes.set_ylabel("completions")
    axes.set_title(title)
    figure.legend(loc="outside lower center", ncols=2)
    figure.savefig(path, format="png", dpi=150)


def _draw_bins(axes: Any, bins: list[Bin]) -> None:
    width = bins[0].last - bins[0].first + 1
    edges = [part.first - 0.5 for part in bins]
    ended = [part.ended for part in bins]
    axes.bar(edges, ended, width, align="edge", color="0.6", edgecolor="white", label="ended")
    cut = [part for part in bins if part.cut]
    if cut:
        axes.bar(
            [part.first - 0.5 for part in cut],
            [part.cut for part in cut],
            width,
            bottom=[part.ended for part in cut],
            align="edge",
            color="white",
            edgecolor="0.3",
            hatch="///",
            label="truncated (would be longer)",
        )
