"""The tables of completions that TRL writes with `log_completions=True`: find them, read them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FOLDER = "completions"
"""The folder, within the output folder, that TRL writes to (1.16)."""


def find_tables(path: Path) -> list[Path]:
    """The tables of an output folder, or of its `completions` folder, in the order of steps."""
    for folder in (path / _FOLDER, path):
        # Steps above 99999 have one digit more.
        tables = sorted(folder.glob("*.parquet"), key=lambda file: (len(file.name), file.name))
        if tables:
            return tables
    return []


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Name the file in what reading it raises; pyarrow does not.

    Raises:
        ValueError: for what is no parquet table.
    """
    import pyarrow

    try:
        yield
    except (OSError, pyarrow.ArrowException) as error:
        raise ValueError(
            f"{file} cannot be read as a parquet table ({error}). Take it out of the folder, or "
            "write it again."
        ) from error
