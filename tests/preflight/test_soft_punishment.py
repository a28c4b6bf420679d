"""TRL's soft overlong punishment: how it is recognised, and which limits it fits."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest
from support import tiny
from support.versions import since
from trl.rewards import get_soft_overlong_punishment

from truncation_guard.preflight.soft_punishment import SoftPunishment, misfit, soft_punishments


def plain(completion_ids, max_completion_len, soft_punish_cache, **kwargs):
    return [0.0 for _ in completion_ids]


def wrapped(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


AS_AN_OBJECT = since("1.16.0", "a soft overlong punishment that is an object")
NUMBERS = {"max_completion_len": 1280, "soft_punish_cache": 256}


@pytest.mark.parametrize(
    "function",
    [
        get_soft_overlong_punishment(1280, 256),
        functools.partial(plain, **NUMBERS),
        functools.partial(
            functools.partial(plain, max_completion_len=7, soft_punish_cache=256),
            max_completion_len=1280,
        ),
        functools.partial(get_soft_overlong_punishment(1280, 256)),
        functools.partial(get_soft_overlong_punishment(1280, 7), soft_punish_cache=256),
        wrapped(get_soft_overlong_punishment(1280, 256)),
    ],
    ids=[
        "object",
        "partial",
        "partial twice",
        "partial of the object",
        "partial over the object",
        "wrapped object",
    ],
)
@AS_AN_OBJECT
def test_the_numbers_are_found_wherever_they_are_held(function):
    found = soft_punishments([plain, function])
    assert found == [SoftPunishment(max_completion_len=1280, soft_punish_cache=256)]
    assert found[0].begins_above == 1024


@pytest.mark.parametrize(
    "function",
    [
        plain,
        len,
        tiny.scripted([1.0]),
        tiny.model(),
        functools.partial(plain, max_completion_len=1280),
        SimpleNamespace(max_completion_len="1280", soft_punish_cache=None),
    ],
    ids=["function", "builtin", "scripted", "reward model", "one number", "no numbers"],
)
def test_other_reward_functions_are_none(function):
    assert soft_punishments([function]) == []


NEVER = (
    "get_soft_overlong_punishment(1280, 256) begins above 1024 tokens: under "
    "max_completion_length={} never"
)
EARLY = (
    "get_soft_overlong_punishment(1280, 256) is at its full -1 above 1280 tokens, below "
    "max_completion_length={}: a completion that needs more and finishes is punished like one "
    "that is cut off"
)
ALWAYS = (
    "get_soft_overlong_punishment(256, {}) punishes every completion, however short: its "
    "soft_punish_cache is larger than its max_completion_len"
)


@pytest.mark.parametrize(
    ("numbers", "limit", "expected"),
    [
        ((1280, 256), 512, NEVER.format(512)),
        ((1280, 256), 1024, NEVER.format(1024)),
        ((1280, 256), 1025, None),
        ((1280, 256), 1280, None),
        ((1280, 256), 1281, EARLY.format(1281)),
        ((256, 256), 256, None),
        ((256, 257), 256, ALWAYS.format(257)),
        ((256, 257), 512, ALWAYS.format(257)),
    ],
)
def test_a_limit_and_what_is_wrong_under_it(numbers, limit, expected):
    assert misfit(SoftPunishment(*numbers), limit, "max_completion_length") == expected


@pytest.mark.parametrize("limit", [512, 1024, 1025, 1280, 1281])
def test_what_is_said_is_what_trls_function_does(limit):
    reward = get_soft_overlong_punishment(1280, 256)
    below, at = reward(completion_ids=[[5] * (limit - 1), [5] * limit])
    said = misfit(SoftPunishment(1280, 256), limit, "max_completion_length")
    assert (said == NEVER.format(limit)) == (at == 0.0)
    assert (said == EARLY.format(limit)) == (below == at == -1.0)
