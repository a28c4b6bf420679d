"""The figures that matplotlib saves, for the tests of pictures."""

from __future__ import annotations

from typing import Any

import pytest


def kept_figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list that every figure goes into when it is saved; skips without matplotlib."""
    figure_module = pytest.importorskip("matplotlib.figure")
    figures: list[Any] = []
    save = figure_module.Figure.savefig

    def keep(self: Any, *args: Any, **kwargs: Any) -> None:
        figures.append(self)
        save(self, *args, **kwargs)

    monkeypatch.setattr(figure_module.Figure, "savefig", keep)
    return figures
