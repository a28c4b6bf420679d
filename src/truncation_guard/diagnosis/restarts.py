"""A training that was started anew, or resumed, within one log.

The one idea: progress only goes back when training was started again, so what an earlier start had
logged past that point was done again, and counts no more.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

Entry = TypeVar("Entry")


def drop_what_was_done_again(
    entries: Iterable[Entry],
    progress: Callable[[Entry], float | None],
    *,
    rounding: float = 0.0,
) -> tuple[list[Entry], list[str]]:
    """The entries of the last run, its restarts from checkpoints joined.

    Args:
        entries: in the order of the log.
        progress: how far training was, in epochs or steps; None where an entry does not say.
        rounding: relative error of what `progress` gives: going back by less is none.

    Returns:
        The entries that count, and notes on what was dropped.
    """
    kept: list[Entry] = []
    runs, resumed = 1, 0
    furthest: float | None = None
    for entry in entries:
        now = progress(entry)
        if now is not None and furthest is not None and now < furthest * (1 - rounding):
            while kept and _at_or_past(progress(kept[-1]), now):
                kept.pop()
            runs, resumed = (runs, resumed + 1) if kept else (runs + 1, 0)
        furthest = furthest if now is None else now
        kept.append(entry)
    notes = []
    if runs > 1:
        notes.append(f"The log holds {runs} runs; this is the last one.")
    if resumed:
        notes.append(
            f"Training was resumed {resumed} times; what was done again counts once."
            if resumed > 1
            else "Training was resumed once; what was done again counts once."
        )
    return kept, notes


def _at_or_past(progress: float | None, now: float) -> bool:
    return progress is None or progress >= now
