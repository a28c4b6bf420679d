"""A `Diagnosis` for a reader: text, rich tables, HTML.

The one idea: the verdict comes first, then what is to be looked into, worst first, then what is
fine or cannot be known.
"""

from typing import TYPE_CHECKING

from truncation_guard.diagnosis.finding import Finding
from truncation_guard.rendering import html, plain_lines

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from truncation_guard.diagnosis.diagnose import Diagnosis

_ORDER = ("problem", "warning", "unknown", "fine")
_SOURCES = {
    "record": "the guard's record: exact counts",
    "trainer_state": "trainer_state.json: means over log windows",
    "tables": "completions tables: text, rewards and advantages",
    "log": "a log: means over log windows, as printed",
}


def render(diagnosis: "Diagnosis") -> "Group":
    """The verdict, the findings as a table, and notes."""
    from rich.console import Group
    from rich.text import Text

    trace = diagnosis.trace
    counts = f"{len(trace.training)} of training, {len(trace.evaluation)} of evaluation"
    kind = "generation batches" if trace.source == "record" else "entries"
    return Group(
        Text(str(diagnosis.verdict), style="bold"),
        Text(f"{trace.path} ({_SOURCES[trace.source]}; {kind}: {counts})"),
        _table(diagnosis.findings),
        *(Text(f"Note: {note}") for note in trace.notes),
    )


def to_text(diagnosis: "Diagnosis") -> str:
    """The report as plain text, without a line break at the end; the verdict is one line."""
    from rich.text import Text

    verdict = str(diagnosis.verdict)
    below = plain_lines(render(diagnosis))[len(plain_lines(Text(verdict))) :]
    return "\n".join([verdict, *below])


def to_html(diagnosis: "Diagnosis") -> str:
    """The report as one `<pre>` element."""
    return html(render(diagnosis))


def _table(findings: tuple[Finding, ...]) -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    table.add_column("finding", no_wrap=True)
    table.add_column("evidence", ratio=3, overflow="fold")
    table.add_column("remedy", ratio=2, min_width=34, overflow="fold")
    for finding in sorted(findings, key=lambda finding: _ORDER.index(finding.severity)):
        cells = (finding.severity, finding.code, finding.fact, finding.remedy)
        table.add_row(*map(Text, cells))
    return table
