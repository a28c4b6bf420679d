"""The parts of a plain log that may matter: entries, settings, progress bars.

A log is mostly other text, with braces of its own (LaTeX, code, printed completions), so a line
costs a few searches for a word, and only what has the words of an entry costs more.
"""

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple, TextIO

_LONGEST_LINE = 1 << 16
"""Characters; longer lines are read in pieces, as lines without a line break."""
_LONGEST_ENTRY = 20_000
"""Characters; a brace that stands open for longer is none of an entry."""
_ENTRY = re.compile(r"\{\s*['\"][^{}]*\}")
_OPEN = re.compile(r"\{\s*(?:['\"][^{}]*)?$")
_QUOTE = re.compile(r"\s*['\"]")
_BAR = re.compile(r"\b(\d+)/(\d+) \[")
_STEP = re.compile(r"\b(?:global_?)?step['\"]?\s*[:= ]\s*(\d+)\b", re.IGNORECASE)
_PREFIX = 200
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class Piece(NamedTuple):
    """A piece of a log."""

    kind: Literal["entry", "setting", "bar"]
    text: str
    step: str | None = None
    """Written before an entry."""


def pieces(file: TextIO) -> Iterator[Piece]:
    """Everything in a log that may matter, in its order.

    An entry may be behind a prefix or a progress bar, over several lines, or cut at either end.
    """
    reader = _Reader()
    for line in iter(lambda: file.readline(_LONGEST_LINE), ""):
        if "max_completion_length" in line or "truncat" in line:
            yield Piece("setting", line)
        if reader.waiting or "{" in line or "}" in line:
            yield from reader.read(_COLOUR.sub("", line) if "\x1b" in line else line)
        elif reader.wants_bar:
            yield from reader.bar(line)
    if reader.waiting:
        yield from reader.take("".join(reader.waiting))


class _Reader:
    """Reads lines with braces, and those after a brace that stands open."""

    def __init__(self) -> None:
        self.waiting: list[str] = []
        """The lines of an entry that is not closed yet."""
        self.wants_bar = False
        """Whether the last entry still waits for the bar that is drawn again after it."""
        self._size = 0

    def read(self, line: str) -> Iterator[Piece]:
        """A line with a brace, or one after an open brace."""
        if self.waiting:
            rest = self._go_on(line)
            if rest is None:
                return
            text, line = rest
            yield from self.take(text)
        opens = line.find("{")
        if self.wants_bar and opens:
            yield from self.bar(line if opens < 0 else line[:opens])
        if opens < 0:
            if "}" in line:
                yield from self.take(line)  # the end of an entry whose beginning is gone
            return
        if _has_words(line):
            whole = [found for found in _ENTRY.finditer(line) if _has_words(found[0])]
            for found in whole:
                self.wants_bar = True
                yield Piece("entry", found[0], _step_before(line, found.start()))
            if not whole and "}" in line and ("reward_std" in line or "completions/" in line):
                yield from self.take(line)  # other text with braces stands within an entry
                return
        last = line.rfind("{")
        if last > line.rfind("}") and _OPEN.match(line, last):
            self.waiting, self._size = [line[last:].rstrip("\n")], len(line) - last

    def take(self, text: str, step: str | None = None) -> Iterator[Piece]:
        """The piece of an entry, if it has the words of one."""
        if _has_words(text):
            self.wants_bar = True
            yield Piece("entry", text, step)

    def bar(self, text: str) -> Iterator[Piece]:
        """The progress bar in a text."""
        if " [" in text and (found := _BAR.search(text)):
            self.wants_bar = False
            yield Piece("bar", found[0].removesuffix(" ["))

    def _go_on(self, line: str) -> tuple[str, str] | None:
        """The entry that waited and the rest of this line, once it closes or turns out cut."""
        opens, closes = line.find("{"), line.find("}")
        is_bare = len(self.waiting) == 1 and len(self.waiting[0]) < 2
        if not (is_bare and line.strip() and not _QUOTE.match(line)):
            if closes >= 0 and (opens < 0 or closes < opens):
                self.waiting.append(line[: closes + 1])
                return self._joined(), line[closes + 1 :]
            if opens < 0 and self._size < _LONGEST_ENTRY:
                self.waiting.append(line.rstrip("\n"))
                self._size += len(line)
                return None
        return self._joined(), line

    def _joined(self) -> str:
        text, self.waiting = "".join(self.waiting), []
        return text


def _has_words(text: str) -> bool:
    """Whether one of the words is there that are in every entry about rollouts."""
    return "reward" in text or "completion" in text or "truncation_guard" in text


def _step_before(line: str, start: int) -> str | None:
    """The step before an entry: outside of nested JSON, or in a prefix."""
    step = _STEP.search(line[max(start - _PREFIX, 0) : start]) if start else None
    return None if step is None else step[1]
