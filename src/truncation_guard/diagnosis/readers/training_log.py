"""Metric lines out of a plain training log.

Nothing is expected of a line: what reads as an entry of `Trainer` is one, and half of an entry is
better than none.
"""

import json
import re
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from truncation_guard.diagnosis.assumed_limit import doubtful_lengths
from truncation_guard.diagnosis.limit_history import settle_logged_limits
from truncation_guard.diagnosis.readers.log_scanner import Piece, pieces
from truncation_guard.diagnosis.readers.logged_restarts import drop_what_was_done_again
from truncation_guard.diagnosis.readers.trl_metrics import number, to_entry
from truncation_guard.diagnosis.run import LogEntry, RunTrace

_PAIR = re.compile(
    r"""['"]([^'"]+)['"]\s*:\s*(?:'([^']*)'|"([^"]*)"|([^,'"{}()]*(?:\([^()]*\))?))\s*(?=[,}])"""
)
_WARN = re.compile(r"\[truncation-guard\] WARN (\S+) step=\d+ mode=(\S+) ([^|]*)")
_OF_A_GUARD = re.compile(
    r"\[truncation-guard\] (?:WARN |ERROR |recording every |training ended |lengths of "
    r"|the record |the guard's )"
)
"""Lines of the callback; `profile_dataset` has the same prefix."""
_SWITCHED_OFF = re.compile(r"\[truncation-guard\] ERROR .*\bswitched off\b")
_LIMIT = re.compile(r"max_completion_length['\"]?\s*[=: ]\s*(\d{1,15})\b")
_WARNED_LIMIT = re.compile(r"\b(limit|raised_to)=(\d{1,15})\b")
_ROUNDING = 1e-3
"""Entries of training are printed with four digits, those that `evaluate` returns with all."""
_MASKED = re.compile(r"mask_truncated_completions['\"]?\s*[=: ]\s*(True|true|False|false)")
_PILE = 0.2
"""Share of the entries whose longest completion has one length, where a limit is near."""
_OF_TRL = re.compile(
    r"['\"](?:eval_(?:\w+_)?(?:loss|runtime)|(?:train/|eval[/_])?(?:\w+_)?"
    r"(?:completions/|completion_length|truncation_guard/|rewards/|reward_std|frac_reward_zero_std))"
)
"""Names that nothing else prints; TRL and `Trainer` log some with every reward."""
_OF_A_TRAINER = re.compile(
    r"['\"](?:train/\w+|eval[/_]\w+|loss|grad_norm|learning_rate|kl|num_tokens|entropy)['\"]"
)
"""Names that are left of an entry of `Trainer` that was cut, or of one of another trainer."""


@dataclass(slots=True, eq=False)
class _Line:
    training: bool
    entry: LogEntry
    of_trl: bool
    """Whether it has a name that nothing but TRL logs."""
    is_cut: bool
    tokens: float | None
    """That the training had seen."""
    number: int
    """Its place among all entries."""
    bar: tuple[int, int] | None = None
    """Steps done and to do, of the progress bar that is drawn again after the entry."""


@dataclass(slots=True)
class _Log:
    lines: list[_Line] = field(default_factory=list)
    warned: list[tuple[int, str]] = field(default_factory=list)
    """Number of entries before it, and the code."""
    limits: list[tuple[int, int]] = field(default_factory=list)
    """Number of entries before it, and a limit that is written there."""
    exact: set[int] = field(default_factory=set)
    """Limits that the guard's WARN lines name."""
    mode: str | None = None
    guarded: bool = False
    switched_off: list[int] = field(default_factory=list)
    """Number of entries before each line by which the guard switched itself off."""
    masked: bool | None = None
    with_tools: bool = False
    last: str = ""
    """The text of the last entry."""


def read_log(path: Path, encoding: str) -> RunTrace:
    """The run that a plain log tells of; the last one where there are several.

    Metric lines are Python dicts or JSON, with numbers or text for values, alone in a line or
    behind a prefix or a progress bar, over one line or several. Of an entry that was cut what is
    left counts. The log is read once, line by line.

    Raises:
        OSError: if it cannot be read.
    """
    log = _Log()
    with path.open(encoding=encoding, errors="replace") as file:
        for piece in pieces(file):
            if piece.kind == "setting":
                _look_for_settings(piece.text, log)
            elif piece.kind == "entry":
                _take(piece, log)
            elif log.lines and log.lines[-1].bar is None:
                done, total = piece.text.split("/")
                log.lines[-1].bar = int(done), int(total)
    return _to_trace(log, path)


def _take(piece: Piece, log: _Log) -> None:
    text = piece.text
    is_cut = not (text.startswith("{") and text.endswith("}"))
    of_trl = "'reward_std'" in text or _OF_TRL.search(text) is not None
    of_trl |= is_cut and "epoch" in text
    if not of_trl and not _OF_A_TRAINER.search(text):
        return  # a reward that something else printed
    if text == log.last and "num_tokens" in text:
        return  # printed twice, by two callbacks or processes: the tokens seen had not grown
    metrics = _parse(text)
    if piece.step is not None:
        metrics.setdefault("step", piece.step)
    printed = any(isinstance(value, str) for value in metrics.values())
    found = to_entry(metrics, printed=printed)
    if found is None:
        return
    log.last = text
    training, entry, called = found
    log.with_tools |= called
    tokens = number(metrics.get("num_tokens", metrics.get("train/num_tokens")))
    log.lines.append(_Line(training, entry, of_trl, is_cut, tokens, len(log.lines)))


def _parse(text: str) -> dict[str, Any]:
    """The pairs of an entry; of one that is cut those that are whole."""
    try:
        parsed = json.loads(text.replace("'", '"'))
    except (ValueError, RecursionError):
        pass
    else:
        return parsed if isinstance(parsed, dict) else {}
    pairs = _PAIR.findall(text)
    return {name: single or double or bare.strip() for name, single, double, bare in pairs}


def _look_for_settings(line: str, log: _Log) -> None:
    if "[truncation-guard]" in line:
        log.guarded |= _OF_A_GUARD.search(line) is not None
        if _SWITCHED_OFF.search(line):
            log.switched_off.append(len(log.lines))
        warn = _WARN.search(line)
        if warn:
            log.warned.append((len(log.lines), warn[1]))
            log.mode = warn[2]
            for _, tokens in _WARNED_LIMIT.findall(warn[3]):
                log.limits.append((len(log.lines), int(tokens)))
                log.exact.add(int(tokens))
        return
    if limit := _LIMIT.search(line):
        log.limits.append((len(log.lines), int(limit[1])))
    if masked := _MASKED.search(line):
        log.masked = masked[1].lower() == "true"


def _to_trace(log: _Log, path: Path) -> RunTrace:
    # Where TRL's entries are, what else speaks of a reward is none of them.
    has_trls = any(line.of_trl and not line.is_cut for line in log.lines)
    lines = [e for e in log.lines if e.of_trl or e.is_cut or not has_trls]
    kept, notes = drop_what_was_done_again(
        lines,
        lambda line: line.entry.epoch,
        lambda line: line.tokens,
        rounding=_ROUNDING,
    )
    cut = sum(line.is_cut for line in lines)
    if cut:
        notes.append(f"Of {cut} entries that are cut only a part could be read.")
    first = kept[0].number if kept else len(log.lines)
    steps_known = _set_steps(kept)
    if not steps_known:
        notes.append("The log does not tell its steps: its entries are numbered instead.")
    training = [line.entry for line in kept if line.training]
    guarded = log.guarded or any(line.entry.truncated is not None for line in kept)
    _set_limits(kept, log)
    limits = [entry.limit for entry in training if entry.limit is not None]
    return RunTrace(
        source="log",
        path=str(path),
        training=training,
        evaluation=[line.entry for line in kept if not line.training],
        steps_known=steps_known,
        limit=limits[-1] if limits else _only_limit(log, kept),
        mode=log.mode,
        guarded=guarded,
        switched_off=_switched_off(kept, log),
        masked=log.masked,
        warned=Counter(code for position, code in log.warned if position >= first),
        with_tools=log.with_tools,
        notes=notes,
    )


def _switched_off(kept: list[_Line], log: _Log) -> float | None:
    """The last step before the guard switched itself off for the rest of the training."""
    training = [line for line in kept if line.training]
    measured = [line.number for line in training if line.entry.truncated is not None]
    first, newest = (training[0].number, training[-1].number) if training else (0, -1)
    for position in log.switched_off:
        # The entry after the line may have figures from before it; later ones are of a new start.
        is_on_again = bool(measured) and (measured[-1] > position or measured[-1] == newest)
        if first <= position <= newest and not is_on_again:
            before = [line.entry.step or 0.0 for line in training if line.number < position]
            return before[-1] if before else 0.0
    return None


def _only_limit(log: _Log, kept: list[_Line]) -> int | None:
    """The limit that is written in a log without entries of a training."""
    limits = {tokens for _, tokens in log.limits}
    is_training = any(line.training for line in kept)
    return limits.pop() if len(limits) == 1 and not is_training else None


def _set_limits(kept: list[_Line], log: _Log) -> None:
    """By the guard's metrics, else by the text before an entry, or before the first."""
    for is_training in (True, False):
        of_split = [line.entry for line in kept if line.training is is_training]
        settle_logged_limits(of_split, log.exact)
    if any(line.entry.logged_limit is not None for line in kept):
        return
    written = dict(log.limits)  # of several at one place the last counts
    places = sorted(written)

    def limit_of(line: _Line) -> int | None:
        before = bisect_right(places, line.number)
        return written[places[max(before - 1, 0)]] if places else None

    for limit, group in groupby((line for line in kept if line.training), key=limit_of):
        of_it = [line.entry for line in group]
        limit = _possible(limit, of_it)
        for entry in of_it:
            entry.limit = limit


def _possible(limit: int | None, training: list[LogEntry]) -> int | None:
    """A limit that is written somewhere in the log, unless the lengths speak against it.

    Completions may be longer, or unfinished ones pile up at another length: then what the log
    mentions is not the limit of this run.
    """
    lengths = [entry.max_length for entry in training if entry.max_length is not None]
    longest = max(lengths, default=0)
    if limit is None or longest > limit:
        return None
    at_longest = [entry for entry in training if entry.max_length == longest]
    piles_up = len(at_longest) >= max(2, _PILE * len(lengths)) and all(
        entry.ratio for entry in at_longest
    )
    is_doubtful = longest in doubtful_lengths(training)
    return None if longest < limit and piles_up and not is_doubtful else limit


def _set_steps(lines: list[_Line]) -> bool:
    """Number the entries by steps where all of them tell theirs, else from 1 on."""
    trained = any(line.training for line in lines)
    totals = Counter(
        line.bar[1] for line in lines if line.bar is not None and line.training is trained
    )
    total = max(totals, key=lambda n: totals[n], default=0)
    steps: list[float | None] = []
    for line in lines:
        by_bar = line.bar[0] if line.bar is not None and line.bar[1] == total else None
        step = by_bar if line.entry.step is None else line.entry.step
        if step is None and trained and not line.training:
            step = steps[-1] if steps else 0.0  # its bar is that of the evaluation
        steps.append(step)
    known = [step for step in steps if step is not None]
    steps_known = len(known) == len(steps) and known == sorted(known)
    number = 0
    for line, step in zip(lines, steps, strict=True):
        number += line.training or not trained
        line.entry.step = step if steps_known else float(max(number, 1))
    return steps_known
