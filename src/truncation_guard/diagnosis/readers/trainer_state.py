"""`trainer_state.json`: the log of a run as `Trainer` saves it with each checkpoint.

`log_history` can be hundreds of megabytes, so its entries are decoded one by one, and only what a
check looks at is kept of them. What comes before a break is read.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from truncation_guard.diagnosis.limit_history import settle_logged_limits
from truncation_guard.diagnosis.readers.logged_restarts import drop_what_was_done_again
from truncation_guard.diagnosis.readers.trl_metrics import to_entry
from truncation_guard.diagnosis.run import LogEntry, RunTrace

_HISTORY = re.compile(r'"log_history"\s*:\s*\[')
_NEXT = re.compile(r"[^\s,]")


class _State:
    """Iterates over `log_history`; then `others` has the other items, or `broken` what is wrong."""

    def __init__(self, text: str) -> None:
        self.others: dict[str, Any] = {}
        self.broken: str | None = None
        self._text = text

    def __iter__(self) -> Iterator[Any]:
        start = _HISTORY.search(self._text)
        if start is None:
            self.broken = "it has no log_history"
            return
        decode = json.JSONDecoder().raw_decode
        position = start.end()
        while True:
            follows = _NEXT.search(self._text, position)
            position = len(self._text) if follows is None else follows.start()
            if self._text.startswith("]", position):
                break
            try:
                entry, position = decode(self._text, position)
            except RecursionError:
                self.broken = "an entry of its log_history is nested too deeply"
                return
            except ValueError as error:
                self.broken = f"its log_history breaks off ({error})"
                return
            yield entry
        try:
            self.others = json.loads(self._text[: start.end()] + self._text[position:])
        except RecursionError:
            self.broken = "what follows its log_history is nested too deeply"
        except ValueError as error:
            self.broken = f"it breaks off after its log_history ({error})"


def read_trainer_state(path: Path) -> RunTrace:
    """The run that a `trainer_state.json` tells of.

    Of a file that is broken the entries before the break count, and a note says so.

    Raises:
        OSError: if it cannot be read.
        ValueError: without an entry about rollouts.
    """
    entries: list[tuple[bool, LogEntry]] = []
    with_tools = False
    number = 0
    state = _State(path.read_text(encoding="utf-8", errors="replace"))
    for number, metrics in enumerate(state, start=1):  # noqa: B007  # counted past the loop
        found = to_entry(metrics) if isinstance(metrics, dict) else None
        if found is not None:
            entries.append(found[:2])
            with_tools |= found[2]
    if not entries:
        raise ValueError(_why_nothing(path, state.broken, number))
    kept, notes = drop_what_was_done_again(entries, lambda entry: entry[1].step)
    if state.broken is not None:
        notes.append(f"{path} is broken: {state.broken}. What comes before was read.")
    training = [entry for is_training, entry in kept if is_training]
    evaluation = [entry for is_training, entry in kept if not is_training]
    for of_split in (training, evaluation):
        settle_logged_limits(of_split)
    recorded = [entry.limit for entry in training if entry.limit is not None]
    guarded = any(entry.truncated is not None for _, entry in kept)
    return RunTrace(
        source="trainer_state",
        path=str(path),
        training=training,
        evaluation=evaluation,
        limit=recorded[-1] if recorded else None,
        guarded=guarded,
        warned=codes_said(state.others) or (None if guarded else {}),
        with_tools=with_tools,
        broken=state.broken is not None,
        notes=notes,
    )


def codes_said(state: Mapping[str, Any]) -> dict[str, int]:
    """The codes of the guard's WARN lines, from its saved state."""
    callbacks = state.get("stateful_callbacks")
    codes: dict[str, int] = {}
    for saved in callbacks.values() if isinstance(callbacks, dict) else ():
        for one in saved if isinstance(saved, list) else [saved]:
            said = _inside(one, "attributes", "restored_state", "monitor", "said")
            codes |= {str(code).removeprefix("eval/"): 1 for code in said}
    return codes


def _inside(value: Any, *names: str) -> dict[str, Any]:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _why_nothing(path: Path, broken: str | None, entries: int) -> str:
    remedy = (
        "Pass the trainer_state.json of a run of GRPOTrainer or RLOOTrainer that logged at least "
        "once, or its output folder."
    )
    if broken is not None and not entries:
        return f"{path} cannot be read as a trainer_state.json: {broken}. {remedy}"
    return (
        f"{path} has {entries} log entries, and none of them has a reward or completions/*. "
        f"{remedy}"
    )
