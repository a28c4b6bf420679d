"""A `LengthProfile` for a reader: text, rich tables, HTML.

The one idea: what is not known is shown as a bound or as "unknown", never as a number.
"""

from typing import TYPE_CHECKING

from truncation_guard.rendering import html, plain_lines
from truncation_guard.shares import percent

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from truncation_guard.profiling.length_profile import LengthProfile

_TITLES = {
    "reference": "reference answers",
    "rollouts": "rollouts of the model",
    "completions": "completions of a run",
}


def title(profile: "LengthProfile") -> str:
    """How many completions of what they are."""
    taken_from = "" if profile.column is None else f" ({profile.column})"
    return f"{len(profile.sample)} {_TITLES[profile.source]}{taken_from}"


def render(profile: "LengthProfile", coverage: float = 0.95, multiple_of: int = 64) -> "Group":
    """Percentiles, histogram, limits and their costs, and what `recommend` concludes."""
    from rich.console import Group
    from rich.text import Text

    notes = [f"Note: {note}" for note in profile.notes]
    return Group(
        Text(_headline(profile)),
        _percentiles(profile),
        *map(Text, profile.sample.lengths.lines()),
        _limits(profile),
        *map(Text, [_conclusion(profile, coverage, multiple_of), *notes]),
    )


def to_text(profile: "LengthProfile", coverage: float = 0.95, multiple_of: int = 64) -> str:
    """The tables as plain text, without a line break at the end."""
    return "\n".join(plain_lines(render(profile, coverage, multiple_of)))


def to_html(profile: "LengthProfile") -> str:
    """The tables as one `<pre>` element."""
    return html(render(profile))


def _headline(profile: "LengthProfile") -> str:
    parts = [title(profile), "lengths in tokens"]
    if profile.sample.truncated:
        parts.append(f"{percent(profile.share_truncated)} truncated")
    if profile.skipped:
        parts.append(f"{profile.skipped} rows without an answer skipped")
    if profile.longest_prompt is not None:
        parts.append(f"longest prompt {profile.longest_prompt}")
    return ", ".join(parts)


def _percentiles(profile: "LengthProfile") -> "Table":
    table = _new_table(*profile.percentiles)
    known = profile.percentiles.values()
    table.add_row(*(f"> {profile.sample.longest}" if n is None else str(n) for n in known))
    return table


def _limits(profile: "LengthProfile") -> "Table":
    headings = ["limit", "completions covered", "tokens per completion"]
    if profile.limit is not None:
        headings.append(f"cost relative to {profile.limit}")
    table = _new_table(*headings)
    for row in profile.table():
        figures = [(row.mean_tokens, "{:.0f}"), (row.cost, "{:.2f}")]
        cells = ["unknown" if n is None else form.format(n) for n, form in figures]
        cells.insert(0, _covered(row.covered))
        table.add_row(str(row.limit), *cells[: len(headings) - 1])
    return table


def _covered(share: float | None) -> str:
    if share is None:
        return "unknown"
    text = f"{share:.1%}"
    return "> 99.9%" if text == "100.0%" and share < 1 else text


def _conclusion(profile: "LengthProfile", coverage: float, multiple_of: int) -> str:
    advice = profile.recommend(coverage, multiple_of)
    limit = advice.max_completion_length
    if limit is None:
        name = "no max_completion_length for"
    elif advice.high is not None and limit < advice.high:
        name = f"max_completion_length={limit} is the most that is allowed, and short of"
    else:
        name = f"max_completion_length={limit} for"
    return f"{name} a coverage of {percent(coverage)} ({advice.basis}): {advice.reason}."


def _new_table(*headings: str) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table
