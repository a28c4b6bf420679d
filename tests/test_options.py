from __future__ import annotations

from dataclasses import FrozenInstanceError
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from truncation_guard.options import GuardOptions

NAN, INF = float("nan"), float("inf")


def options(**overrides: Any) -> GuardOptions:
    """The defaults of the callback."""
    defaults: dict[str, Any] = {
        "mode": "downweight",
        "truncated_weight": 0.0,
        "truncated_reward": 0.0,
        "warn_above": 0.05,
        "window": 512,
        "cooldown": 10,
        "coverage": 0.95,
        "histogram_every": None,
        "record": True,
    }
    return GuardOptions(**(defaults | overrides))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("mode", mode) for mode in ("observe", "downweight", "exclude", "penalize")],
        *[("truncated_weight", weight) for weight in (0, 0.0, 0.5, 1, 1.0)],
        *[("truncated_reward", reward) for reward in (-1e9, -1, 0, 2.5)],
        *[("warn_above", share) for share in (None, 0, 0.0, 0.999)],
        *[("window", size) for size in (64, 65, 10**6)],
        *[("cooldown", steps) for steps in (0, 1, 1000)],
        *[("coverage", share) for share in (1e-9, 0.5, 1, 1.0)],
        *[("histogram_every", steps) for steps in (None, 1, 100)],
        *[("record", switch) for switch in (True, False)],
    ],
)
def test_every_value_inside_its_range_is_kept(name: str, value: object) -> None:
    assert getattr(options(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        *[(name, np.int64(128), 128) for name in ("window", "cooldown", "histogram_every")],
        ("raise_limit_to", np.int32(128), 128),
        ("truncated_weight", Fraction(1, 2), 0.5),
        ("truncated_reward", np.int8(-1), -1.0),
        ("warn_above", np.float64(0.25), 0.25),
        ("coverage", Fraction(3, 4), 0.75),
    ],
)
def test_numbers_become_pythons_own_which_json_and_torch_take(
    name: str, value: Any, kept: float
) -> None:
    found = getattr(options(**{name: value}), name)
    assert (type(found), found) == (type(kept), kept)


MODES = "`mode` must be one of 'observe', 'downweight', 'exclude', 'penalize', got {}."
WEIGHT = (
    "`truncated_weight` must be in [0, 1], got {}. "
    "Pass 0.0 to ignore truncated completions, 1.0 to leave their advantages as they are."
)
REWARD = (
    "`truncated_reward` must be a finite number, got {}. "
    "Pass the highest reward that a truncated completion may keep, for example 0.0."
)
WARN_ABOVE = "`warn_above` must be in [0, 1), got {}. Pass 0.05 for 5 %, or None for no WARN lines."
WINDOW = "`window` must be an integer of at least 64 completions, got {}. Pass for example 512."
COOLDOWN = (
    "`cooldown` must be an integer of at least 0 optimizer steps, got {}. "
    "Pass 0 for a line on every generation batch."
)
COVERAGE = "`coverage` must be in (0, 1], got {}. Pass 0.95 for 95 %."
HISTOGRAM = (
    "`histogram_every` must be an integer of at least 1 optimizer step, got {}. "
    "Pass None for the histogram at the end of training alone."
)
RECORD = "`record` must be True or False, got {}."

NO_NUMBERS = (True, False, None, "0.5", "512", [], [0.5], {}, 1j)
"""True would otherwise be taken for 1, and a string would only fail once training has begun."""


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        *[("mode", mode, MODES) for mode in ("mask", "", "Observe", None, True, ["exclude"])],
        *[("truncated_weight", weight, WEIGHT) for weight in (-1, -1e-9, 1.0000001, 2, NAN, INF)],
        *[("truncated_weight", weight, WEIGHT) for weight in NO_NUMBERS],
        *[("truncated_reward", reward, REWARD) for reward in (NAN, INF, -INF)],
        *[("truncated_reward", reward, REWARD) for reward in NO_NUMBERS],
        *[("warn_above", share, WARN_ABOVE) for share in (5, 1, 1.0, -1e-9, NAN, INF)],
        *[("warn_above", share, WARN_ABOVE) for share in NO_NUMBERS if share is not None],
        *[("window", size, WINDOW) for size in (63, 0, -512, 64.0, INF, NAN)],
        *[("window", size, WINDOW) for size in NO_NUMBERS],
        *[("cooldown", steps, COOLDOWN) for steps in (-1, 10.0, INF, NAN)],
        *[("cooldown", steps, COOLDOWN) for steps in NO_NUMBERS],
        *[("coverage", share, COVERAGE) for share in (95, 1.0000001, 0, 0.0, -0.5, NAN, INF)],
        *[("coverage", share, COVERAGE) for share in NO_NUMBERS],
        *[("histogram_every", steps, HISTOGRAM) for steps in (0, -1, 2.0, INF, NAN)],
        *[("histogram_every", steps, HISTOGRAM) for steps in NO_NUMBERS if steps is not None],
        *[("record", switch, RECORD) for switch in (None, 0, 1, "", "yes", "False", [True])],
    ],
)
def test_a_value_outside_its_range_is_refused_with_name_value_and_remedy(
    name: str, value: object, message: str
) -> None:
    with pytest.raises(ValueError, match=r"^`") as refused:
        options(**{name: value})
    assert str(refused.value) == message.format(repr(value))


def test_a_number_too_large_for_a_float_is_refused_like_infinity() -> None:
    with pytest.raises(ValueError, match=r"^`truncated_reward` must be a finite number, got "):
        options(truncated_reward=10**400)


def test_options_cannot_be_changed_after_they_were_checked() -> None:
    with pytest.raises(FrozenInstanceError):
        options().coverage = 95  # type: ignore[misc]


def test_no_option_has_a_default_of_its_own() -> None:
    """The callback's signature is the one place that holds the defaults."""
    with pytest.raises(TypeError):
        GuardOptions()  # type: ignore[call-arg]
