"""Pictures, for the extra `plot`.

The one idea: every picture is readable in grey, with units on its axes.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from truncation_guard.lengths.histogram import Bin
from truncation_guard.pictures import import_figure
from truncation_guard.profiling import tables
from truncation_guard.shares import percent

if TYPE_CHECKING:
    from truncation_guard.profiling.length_profile import LengthProfile

_BINS = 40
_MARKED = {"p50": ":", "p95": "--"}


def plot_lengths(
    profile: "LengthProfile", path: str | Path, coverage: float, multiple_of: int
) -> None:
    """Draw a profile's histogram, percentiles and recommended limit into a PNG file.

    Args:
        profile: what to draw.
        path: where the file goes.
        coverage: share of completions that the recommended limit is to hold, in (0, 1].
        multiple_of: the recommended limit is rounded up to a multiple of this.

    Raises:
        ImportError: without matplotlib.
    """
    figure = import_figure()(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    _draw_bins(axes, profile.bins(_BINS))
    percentiles = profile.percentiles
    for name, style in _MARKED.items():
        if (tokens := percentiles[name]) is not None:
            axes.axvline(tokens, color="0.2", linestyle=style, label=f"{name} = {tokens}")
    advice = profile.recommend(coverage, multiple_of)
    if advice.max_completion_length is not None:
        axes.axvline(
            advice.max_completion_length,
            color="black",
            linewidth=2,
            label=f"max_completion_length = {advice.max_completion_length} "
            f"({percent(coverage)}, {advice.basis})",
        )
    axes.set_xlim(left=0)
    axes.set_xlabel("length of a completion (tokens)")
    axes.set_ylabel("completions")
    axes.set_title(tables.title(profile))
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
