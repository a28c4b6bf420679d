from __future__ import annotations

import random
from collections import Counter

import pytest
from rich.console import Console
from support import chats
from support.chats import units

from truncation_guard.profiling.dataset import totals
from truncation_guard.profiling.dataset.rows import open_rows
from truncation_guard.profiling.dataset.tokens import AnswerCounter, AnswerCounts
from truncation_guard.profiling.dataset.totals import count_rows

CHANCE = random.Random(0)
TEXTS = ["x" * CHANCE.randrange(40) for _ in range(101)]


def expected(texts: list[str]) -> Counter[int]:
    return Counter(units(text) + 1 for text in texts if text)


@pytest.mark.parametrize("batch_size", [1, 7, 101, 1000])
@pytest.mark.parametrize("progress", [True, False])
def test_all_batches_are_added_up(batch_size: int, progress: bool) -> None:
    counts = count_rows(open_rows(TEXTS, None), ["text"], text_counter(), batch_size, progress)
    assert counts == AnswerCounts(expected(TEXTS), 101, TEXTS.count(""), None)


def text_counter() -> AnswerCounter:
    return AnswerCounter("text", chats.tokenizer())


# --- the bar ------------------------------------------------------------------------------------


def bar_output(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    seconds: float,
    is_terminal: bool = True,
) -> str:
    monkeypatch.setattr(Console, "is_terminal", is_terminal)
    monkeypatch.setattr(Console, "is_dumb_terminal", False)
    monkeypatch.setattr(totals, "_SECONDS_WITHOUT_A_BAR", seconds)
    count_rows(open_rows(TEXTS, None), ["text"], text_counter(), 50, True)
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_long_work_shows_a_bar_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "counting tokens" in bar_output(monkeypatch, capsys, seconds=0.0)


def test_short_work_shows_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bar_output(monkeypatch, capsys, seconds=60.0) == ""


def test_a_log_file_gets_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bar_output(monkeypatch, capsys, seconds=0.0, is_terminal=False) == ""


def test_an_error_takes_the_bar_down(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(totals, "_SECONDS_WITHOUT_A_BAR", 0.0)
    rows = open_rows([{"a": "x"}, {"a": "y"}, {"a": 3}], None)
    with pytest.raises(TypeError, match=r"^Column `a` must hold text, but row 2 holds 3"):
        count_rows(rows, ["a"], AnswerCounter("a", chats.tokenizer()), 1, True)
