"""Whether a picture can be drawn, for the extra `plot`: found out before the long work."""

from pathlib import Path
from typing import Any


def check_picture(path: Path) -> None:
    """Refuse what no picture can be drawn into.

    Raises:
        ValueError: for a name that is no PNG file's, or a folder that is not there.
        ImportError: without matplotlib.
    """
    if path.suffix.lower() != ".png" or not path.parent.is_dir() or path.is_dir():
        raise ValueError(
            f"`--plot` must be a .png file in a folder that exists, got {str(path)!r}. Pass for "
            "example lengths.png."
        )
    import_figure()


def import_figure() -> Any:
    """Matplotlib's `Figure`, which draws without a window and without a global state.

    Raises:
        ImportError: without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "A plot needs matplotlib. Install it with: pip install 'truncation-guard[plot]'"
        ) from error
    return Figure
