"""A training that was started anew, or resumed, within one log.

Progress only goes back when training was started again, so what an earlier start had logged past
that point was done again, and counts no more. Tokens seen tell a resume from another run: a
checkpoint holds their number, and a new run begins at 0.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

Entry = TypeVar("Entry")


def drop_what_was_done_again(
    entries: Iterable[Entry],
    progress: Callable[[Entry], float | None],
    tokens: Callable[[Entry], float | None] = lambda entry: None,
    *,
    rounding: float = 0.0,
) -> tuple[list[Entry], list[str]]:
    """The entries of the last run, its restarts from checkpoints joined.

    Args:
        entries: in the order of the log.
        progress: how far training was, in epochs or steps; None where an entry does not say.
        tokens: how many the run had seen; None where an entry does not say.
        rounding: relative error of what these give: going back by less is none.

    Returns:
        The entries that count, and notes on what was dropped.
    """
    kept: list[Entry] = []
    runs, resumed = 1, 0
    furthest: float | None = None
    most: float | None = None

    def is_back(now: float | None, before: float | None) -> bool:
        return now is not None and before is not None and now < before * (1 - rounding)

    for entry in entries:
        now, seen = progress(entry), tokens(entry)
        if is_back(now, furthest) or is_back(seen, most):
            while kept and _at_or_past(progress(kept[-1]), now):
                kept.pop()
            known = (tokens(other) for other in reversed(kept))
            if is_back(seen, next((number for number in known if number is not None), None)):
                kept.clear()
            runs, resumed = (runs, resumed + 1) if kept else (runs + 1, 0)
        furthest = furthest if now is None else now
        most = most if seen is None else seen
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


def _at_or_past(progress: float | None, now: float | None) -> bool:
    return progress is None or (now is not None and progress >= now)
