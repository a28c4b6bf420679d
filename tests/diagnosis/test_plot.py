from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from support import trl_logs
from support.pictures import kept_figures

from truncation_guard.diagnosis.diagnose import diagnose

LOGS = Path(__file__).parents[1] / "data" / "logs"


def drawn(source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The axes of the figure that was saved."""
    figures = kept_figures(monkeypatch)
    diagnose(source).plot(folder / "run.png")
    assert (folder / "run.png").read_bytes().startswith(b"\x89PNG")
    (figure,) = figures
    return list(figure.axes)


def lines(axes: Any) -> dict[str, Any]:
    return {line.get_label(): line for line in axes.lines}


def test_three_axes_share_the_steps_and_name_their_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top, middle, bottom = drawn(
        LOGS / "recovered_ten_entries" / "trainer_state.json", tmp_path, monkeypatch
    )
    assert top.get_ylabel() == "truncated completions (%)"
    assert middle.get_ylabel() == "length (tokens)"
    assert bottom.get_ylabel() == "mean reward"
    assert bottom.get_xlabel() == "optimizer step"
    assert top.get_xlim() == middle.get_xlim() == bottom.get_xlim()
    for axes in (top, middle, bottom):
        for line in axes.lines:
            if len(line.get_xdata()) == 10:
                assert list(line.get_xdata()) == list(range(10, 101, 10))
    assert top.figure.get_suptitle().startswith("truncation is not what holds this run back\n")


def test_shares_lengths_and_rewards_are_those_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = trl_logs.Task(0, 64, 60, 20)
    entries = [(step, trl_logs.entry(step, 8, [task.batch()])) for step in range(1, 9)]
    evaluation = trl_logs.entry(8, 8, [task.batch()], evaluation=True)
    path = trl_logs.write(
        tmp_path / "trainer_state.json", trl_logs.state([*entries, (8, evaluation)], 8)
    )
    top, middle, bottom = drawn(path, tmp_path, monkeypatch)

    def of(name: str) -> list[float]:
        return [metrics[name] for _, metrics in entries]

    shares = [100 * ratio for ratio in of("completions/clipped_ratio")]
    assert list(lines(top)["training"].get_ydata()) == shares
    assert list(lines(middle)["mean"].get_ydata()) == of("completions/mean_length")
    assert list(lines(middle)["longest"].get_ydata()) == of("completions/max_length")
    ended = lines(middle)["mean of those\nthat ended"].get_ydata()
    assert list(ended) == pytest.approx(of("completions/mean_terminated_length"))
    assert list(lines(middle)["limit, assumed"].get_ydata()) == [64, 64]
    evaluated = list(lines(middle)["evaluation, mean"].get_ydata())
    assert evaluated == [evaluation["eval_completions/mean_length"]]
    assert list(lines(bottom)["training"].get_ydata()) == of("reward")
    assert list(lines(bottom)["evaluation"].get_ydata()) == [evaluation["eval_reward"]]
    assert list(lines(top)["evaluation"].get_xdata()) == [8]
    greys = {line.get_color() for axes in (top, middle, bottom) for line in axes.lines}
    assert all(grey == "black" or 0 < float(grey) < 1 for grey in greys)


@pytest.mark.slow
def test_a_recorded_limit_is_drawn_as_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = "{{'reward': 1, 'truncation_guard/truncated_share': 0.5, 'truncation_guard/limit': {}, 'completions/mean_length': 9}}\n"  # noqa: E501
    path = trl_logs.write(tmp_path / "train.log", 2 * metrics.format(16) + 2 * metrics.format(32))
    _, middle, bottom = drawn(path, tmp_path, monkeypatch)
    assert list(lines(middle)["limit"].get_ydata()) == [16, 16, 32, 32]
    assert bottom.get_xlabel() == "log entry (steps are not known)"


@pytest.mark.slow
def test_an_upper_bound_is_named_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = "{'completions/clipped_ratio': 0.4, 'completions/mean_length': 31, 'completions/max_length': 101}\n"  # noqa: E501
    path = trl_logs.write(tmp_path / "train.log", "max_completion_length: 101\n" + 3 * metrics)
    top, middle, _ = drawn(path, tmp_path, monkeypatch)
    assert list(lines(top)["training, at most"].get_ydata()) == [30, 30, 30]
    assert list(lines(middle)["limit"].get_ydata()) == [101, 101]


def test_what_was_not_recorded_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = trl_logs.write(
        tmp_path / "train.log", "{'loss': 0, 'reward': 0.5}\n{'loss': 0, 'reward': 0.6}\n"
    )
    top, middle, bottom = drawn(path, tmp_path, monkeypatch)
    for axes in (top, middle):
        assert not axes.lines
        assert [text.get_text() for text in axes.texts] == ["not recorded"]
    assert list(lines(bottom)["training"].get_ydata()) == [0.5, 0.6]


@pytest.mark.slow
def test_many_entries_are_averaged_to_what_a_picture_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [(step, {"reward": float(step % 3)}) for step in range(1, 3001)]
    path = trl_logs.write(tmp_path / "trainer_state.json", trl_logs.state(entries, 3000))
    *_, bottom = drawn(path, tmp_path, monkeypatch)
    assert list(lines(bottom)["training"].get_ydata()) == [1.0] * 1000
    assert list(lines(bottom)["training"].get_xdata()) == list(range(2, 3001, 3))


def test_without_matplotlib_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError) as error:
        diagnose(LOGS / "healthy.jsonl").plot(tmp_path / "run.png")
    assert str(error.value) == (
        "A plot needs matplotlib. Install it with: pip install 'truncation-guard[plot]'"
    )
