"""What rich shows as plain text: one width and no colours, so that it reads the same everywhere."""

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

_WIDTH = 100


def plain_lines(shown: "RenderableType") -> list[str]:
    """The lines of text, without the spaces at their ends."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=_WIDTH, record=True, force_jupyter=False)
    console.print(shown)
    return [line.rstrip() for line in console.export_text().splitlines()]
