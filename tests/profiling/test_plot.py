from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from support.pictures import kept_figures

from truncation_guard import LengthProfile, LengthSample

ENDED = LengthProfile(LengthSample(range(1, 101)), "reference", column="answer")
CUT = LengthProfile(
    LengthSample([*range(20, 100), *[128] * 20], [True] * 80 + [False] * 20), "rollouts"
)


def drawn(profile: LengthProfile, path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The axes and the legend of the figure that was saved."""
    figures = kept_figures(monkeypatch)
    profile.plot(path)
    (figure,) = figures
    return figure.axes[0], [text.get_text() for text in figure.legends[0].get_texts()]


def test_the_picture_holds_every_completion_and_the_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    axes, legend = drawn(ENDED, tmp_path / "lengths.png", monkeypatch)
    assert sum(bar.get_height() for bar in axes.patches) == 100
    assert [line.get_xdata()[0] for line in axes.lines] == [50, 95, 128]
    assert set(legend) == {
        "ended",
        "p50 = 50",
        "p95 = 95",
        "max_completion_length = 128 (95%, observed)",
    }
    assert axes.get_xlabel() == "length of a completion (tokens)"
    assert axes.get_ylabel() == "completions"
    assert axes.get_title() == "100 reference answers (answer)"
    assert (tmp_path / "lengths.png").read_bytes().startswith(b"\x89PNG")


def test_truncated_completions_are_drawn_apart_and_what_is_not_known_is_not_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    axes, legend = drawn(CUT, tmp_path / "lengths.png", monkeypatch)
    hatched = [bar for bar in axes.patches if bar.get_hatch()]
    assert sum(bar.get_height() for bar in hatched) == 20
    assert sum(bar.get_height() for bar in axes.patches) == 100
    limit = CUT.recommend().max_completion_length
    assert [line.get_xdata()[0] for line in axes.lines] == [69, limit]
    assert set(legend) == {
        "ended",
        "truncated (would be longer)",
        "p50 = 69",
        f"max_completion_length = {limit} (95%, extrapolated)",
    }


def test_no_limit_is_drawn_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_ended = LengthProfile(LengthSample([64] * 8, [False] * 8), "rollouts")
    axes, legend = drawn(nothing_ended, tmp_path / "lengths.png", monkeypatch)
    assert not axes.lines
    assert set(legend) == {"ended", "truncated (would be longer)"}


def test_without_matplotlib_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError) as error:
        ENDED.plot(tmp_path / "lengths.png")
    assert str(error.value) == (
        "A plot needs matplotlib. Install it with: pip install 'truncation-guard[plot]'"
    )
