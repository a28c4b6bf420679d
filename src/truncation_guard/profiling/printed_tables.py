"""The tables of a profile for rich.

What is not known is shown as a bound or as "unknown", never as a number.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from truncation_guard.lengths.histogram import LengthHistogram
from truncation_guard.lengths.recommendation import LimitRecommendation
from truncation_guard.profiling.limit_cost import LimitCost
from truncation_guard.shares import percent

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table


def render(
    headline: str,
    lengths: LengthHistogram,
    percentiles: Mapping[str, int | None],
    costs: Sequence[LimitCost],
    recommendation: LimitRecommendation,
    *,
    relative_to: int | None,
    notes: Sequence[str],
) -> "Group":
    """Percentiles, histogram, limits and their costs, the recommended limit and notes.

    Args:
        headline: the first line.
        lengths: of the completions.
        percentiles: name -> tokens; None: not identified.
        costs: a row for each limit.
        recommendation: the last line before the notes.
        relative_to: the limit that the costs are relative to; None: there is none.
        notes: sentences.
    """
    from rich.console import Group
    from rich.text import Text

    return Group(
        Text(headline),
        _percentiles(percentiles, lengths.longest),
        *map(Text, lengths.lines()),
        _limits(costs, relative_to),
        Text(_conclusion(recommendation)),
        *(Text(f"Note: {note}") for note in notes),
    )


def _percentiles(percentiles: Mapping[str, int | None], longest: int) -> "Table":
    table = _new_table(*percentiles)
    table.add_row(*(f"> {longest}" if n is None else str(n) for n in percentiles.values()))
    return table


def _limits(costs: Sequence[LimitCost], relative_to: int | None) -> "Table":
    headings = ["limit", "completions covered", "tokens per completion"]
    if relative_to is not None:
        headings.append(f"cost relative to {relative_to}")
    table = _new_table(*headings)
    for row in costs:
        figures = [(row.mean_tokens, "{:.0f}"), (row.cost, "{:.2f}")]
        cells = ["unknown" if n is None else form.format(n) for n, form in figures]
        cells.insert(0, "unknown" if row.covered is None else percent(row.covered, 3))
        table.add_row(str(row.limit), *cells[: len(headings) - 1])
    return table


def _conclusion(recommendation: LimitRecommendation) -> str:
    limit, high = recommendation.max_completion_length, recommendation.high
    if limit is None:
        name = "no max_completion_length for"
    elif high is not None and limit < high:
        name = f"max_completion_length={limit} is the most that is allowed, and short of"
    else:
        name = f"max_completion_length={limit} for"
    return (
        f"{name} a coverage of {percent(recommendation.coverage)} ({recommendation.basis}): "
        f"{recommendation.reason}."
    )


def _new_table(*headings: str) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table
