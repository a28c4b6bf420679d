"""What rich shows, as plain text and as HTML.

The one idea: one width and no colours, so that a printed result reads the same everywhere.
"""

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_WIDTH = 100


def plain_lines(shown: "RenderableType") -> list[str]:
    """The lines of text, without the spaces at their ends."""
    return [line.rstrip() for line in _record(shown).export_text().splitlines()]


def html(shown: "RenderableType") -> str:
    """One `<pre>` element."""
    return _record(shown).export_html(inline_styles=True, code_format="<pre>{code}</pre>")


def _record(shown: "RenderableType") -> "Console":
    from rich.console import Console

    console = Console(file=io.StringIO(), width=_WIDTH, record=True, force_jupyter=False)
    console.print(shown)
    return console
