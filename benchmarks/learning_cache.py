"""Results that outlive a kill, and cells that two processes never do twice.

The operating system takes a lock back when its process dies, so no claim is ever stale. A result is
one appended line, so no file is ever half-written.
"""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Cache:
    """The results in a folder: `results.jsonl`, one line each, found by their key.

    Args:
        folder: made where it is missing. POSIX only: claims are `flock`s in it.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._file = folder / "results.jsonl"

    def results(self) -> dict[str, dict[str, Any]]:
        """All results by their key; a line that a kill cut short is left out."""
        found = {}
        for line in self._file.read_text().splitlines() if self._file.exists() else []:
            try:
                result = json.loads(line)
            except json.JSONDecodeError:
                continue
            found[result["key"]] = result
        return found

    def add(self, key: str, result: dict[str, Any]) -> None:
        """Append a result."""
        # The line break goes first, too: the line before may have been cut short.
        cut_short = self._file.exists() and not self._file.read_bytes().endswith(b"\n")
        with self._file.open("a") as file:
            file.write("\n" * cut_short + json.dumps({"key": key, **result}) + "\n")

    @contextmanager
    def claim(self, key: str) -> Iterator[bool]:
        """Hold a cell while it is worked on.

        Args:
            key: the cell's.

        Yields:
            Whether it is to be done: neither done nor held by another process.
        """
        path = self._folder / f"{key}.lock"
        with path.open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            # Looked up under the lock: until then another process may have done it.
            yield key not in self.results()
            path.unlink(missing_ok=True)
