"""The report on a run, as text and for rich.

The verdict comes first, then the findings, worst first, then the notes.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from truncation_guard.diagnosis.finding import Finding
from truncation_guard.diagnosis.run import RunTrace
from truncation_guard.diagnosis.verdict import RunVerdict
from truncation_guard.rich_text import plain_lines

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

_ORDER = ("problem", "warning", "unknown", "fine")
_SOURCES = {
    "record": "the guard's record: exact counts",
    "trainer_state": "trainer_state.json: means over log windows",
    "tables": "completions tables: text, rewards and advantages",
    "log": "a log: means over log windows, as printed",
}


def render(verdict: RunVerdict, findings: Sequence[Finding], trace: RunTrace) -> "Group":
    """The verdict, the findings as a table, and notes."""
    from rich.console import Group
    from rich.text import Text

    counts = f"{len(trace.training)} of training, {len(trace.evaluation)} of evaluation"
    kind = "generation batches" if trace.source == "record" else "entries"
    return Group(
        Text(str(verdict), style="bold"),
        Text(f"{trace.path} ({_SOURCES[trace.source]}; {kind}: {counts})"),
        _table(findings),
        *(Text(f"Note: {note}") for note in trace.notes),
    )


def to_text(verdict: RunVerdict, findings: Sequence[Finding], trace: RunTrace) -> str:
    """The report as plain text, without a line break at the end; the verdict is one line."""
    shown = render(verdict, findings, trace)
    below = shown.renderables[1:]
    return "\n".join([str(verdict), *(line for part in below for line in plain_lines(part))])


def _table(findings: Sequence[Finding]) -> "Table":
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
