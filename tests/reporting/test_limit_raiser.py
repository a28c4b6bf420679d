from __future__ import annotations

import json
from typing import Any

import pytest
from support.batches import batch

from truncation_guard.lengths.histogram import LengthHistogram
from truncation_guard.reporting.limit_raiser import LimitDecision, LimitRaiser


def raiser(ceiling: int = 4096, **options: Any) -> LimitRaiser:
    settings = {"warn_above": 0.05, "window": 64, "coverage": 0.95}
    return LimitRaiser(ceiling=ceiling, **(settings | options))


def feed(made: LimitRaiser, *shares: float, limit: int = 256, **counts: Any) -> list[Any]:
    """One full window of 64 for each truncated share; the decisions."""
    decisions = []
    for share in shares:
        cut = round(64 * share)
        lengths = {"ended": {100: 64 - cut} if cut < 64 else {}, "cut": {limit: cut} if cut else {}}
        decisions.append(made.update(batch(of=64, limit=limit, **(lengths | counts))))
    return decisions


# --- when ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shares", "raised"),
    [
        ([0.5], [False]),
        ([0.5, 0.5], [False, True]),
        ([0.5, 0.75], [False, True]),
        ([0.75, 0.5], [False, False]),
        ([0.75, 0.5, 0.5], [False, False, True]),
        ([0.5, 0.0, 0.5], [False, False, False]),
        ([0.5, 0.0, 0.5, 0.5], [False, False, False, True]),
        ([0.0, 0.0, 0.0], [False, False, False]),
        # 3 of 64 are below 5 %, 4 are above.
        ([3 / 64] * 4, [False] * 4),
        ([4 / 64] * 2, [False, True]),
    ],
)
def test_it_takes_two_bad_windows_the_second_no_better(
    shares: list[float], raised: list[bool]
) -> None:
    assert [decision is not None for decision in feed(raiser(), *shares)] == raised


def test_a_window_is_full_when_its_completions_are_there() -> None:
    made = raiser()
    decisions = [made.update(batch(16, of=32)) for _ in range(4)]
    assert [decision is not None for decision in decisions] == [False, False, False, True]


def test_what_was_seen_under_another_limit_does_not_count() -> None:
    made = raiser()
    assert feed(made, 0.5, limit=256) == [None]
    assert feed(made, 0.5, limit=512) == [None]
    assert feed(made, 0.5, limit=512)[0].before == 512


def test_nothing_is_decided_where_there_is_no_limit() -> None:
    made = raiser()
    assert [made.update(batch(64, of=64, limit=None)) for _ in range(4)] == [None] * 4


@pytest.mark.parametrize(
    "counts",
    [
        {"cut": {300: 64}, "ended": {}},
        {"end_of_turn": {"2 (<eot>)": 40}, "searched": 64},
        {"causes": {"limit": 24, "context": 40}},
        {"causes": {"limit": 24, "tool": 40}, "tool_iterations": 40},
    ],
    ids=["limit ignored", "stop tokens", "context", "tool iterations"],
)
def test_what_a_longer_limit_does_not_help_against_does_not_count(counts: dict[str, Any]) -> None:
    made = raiser()
    assert [made.update(batch(64, of=64, **counts)) for _ in range(4)] == [None] * 4
    assert feed(made, 0.5, 0.5)[1].after == 512


def test_after_a_decision_the_windows_start_afresh() -> None:
    made = raiser()
    decisions = feed(made, 0.5, 0.5, 0.5, 0.5)
    assert [decision is not None for decision in decisions] == [False, True, False, True]


# --- to what ------------------------------------------------------------------------------------


def test_the_limit_is_doubled_where_the_coverage_is_not_identified() -> None:
    window = LengthHistogram({100: 32}, {256: 32})
    assert feed(raiser(), 0.5, 0.5)[1] == LimitDecision(
        before=256,
        after=512,
        reason="doubled",
        earlier=window,
        newer=window,
        share_before_raise=None,
        ceiling=4096,
        longest_prompt=10,
    )


@pytest.mark.parametrize(
    ("limit", "coverage", "after"), [(256, 0.5, 320), (100, 0.5, 125), (65, 0.5, 82)]
)
def test_it_is_never_raised_by_less_than_a_quarter(limit: int, coverage: float, after: int) -> None:
    lengths = {"ended": {5: 48}, "cut": {limit: 16}}
    decision = feed(raiser(coverage=coverage), 0.5, 0.5, limit=limit, **lengths)[1]
    assert (decision.after, decision.reason) == (after, "observed")


@pytest.mark.parametrize(
    ("ceiling", "after", "reason"),
    [
        (512, 512, "doubled"),
        (511, 511, "doubled"),
        (320, 320, "doubled"),
        (319, None, "no-room"),
    ],
)
def test_it_is_never_raised_past_the_ceiling(ceiling: int, after: int | None, reason: str) -> None:
    decision = feed(raiser(ceiling), 0.5, 0.5)[1]
    assert (decision.after, decision.reason) == (after, reason)


@pytest.mark.parametrize(
    ("window", "after", "reason"), [(500, 470, "doubled"), (349, None, "no-room")]
)
def test_the_longest_prompt_keeps_its_room_in_the_context_window(
    window: int, after: int | None, reason: str
) -> None:
    made = raiser()
    feed(made, 0.5, context_window=window, longest_prompt=30)
    decision = feed(made, 0.5, context_window=window, longest_prompt=20)[0]
    assert (decision.after, decision.reason) == (after, reason)


# --- when length is not the cause ---------------------------------------------------------------


@pytest.mark.parametrize(("share", "reason"), [(0.5, "no-effect"), (29 / 64, "no-effect")])
def test_a_raise_that_leaves_nine_tenths_of_the_share_was_no_use(share: float, reason: str) -> None:
    made = raiser()
    feed(made, 0.5, 0.5)
    decision = feed(made, share, share, limit=512)[1]
    assert (decision.reason, decision.share_before_raise) == (reason, 0.5)
    assert (decision.after is None) == (reason == "no-effect")


def test_a_raise_that_worked_is_forgotten_when_lengths_grow_again() -> None:
    made = raiser()
    feed(made, 0.5, 0.5)
    decision = feed(made, 0.0, 0.5, 0.5, limit=512)[2]
    assert (decision.after, decision.reason, decision.share_before_raise) == (1024, "doubled", None)


def test_of_a_small_step_it_is_not_said_that_it_should_have_helped() -> None:
    made = raiser(400)
    feed(made, 0.5, 0.5)
    assert feed(made, 0.5, 0.5, limit=400)[1].reason == "no-room"


def test_a_larger_ceiling_is_another_chance() -> None:
    done = raiser(300)
    feed(done, 0.5, 0.5)
    for ceiling, raised in ((300, None), (600, 512)):
        resumed = raiser(ceiling)
        resumed.load_state(json.loads(json.dumps(done.state())))
        decision = feed(resumed, 0.5, 0.5)[1]
        assert (None if decision is None else decision.after) == raised


def test_where_hardly_anything_ends_the_next_raise_may_still_help() -> None:
    made = raiser()
    feed(made, 1.0, 1.0, limit=16)
    decision = feed(made, 1.0, 1.0, limit=32)[1]
    assert (decision.after, decision.reason) == (64, "doubled")


def test_a_model_that_never_stops_is_given_all_the_room_and_then_no_more() -> None:
    made, limit, raised = raiser(128), 16, []
    for _ in range(10):
        decision = feed(made, 1.0, 1.0, limit=limit)[1]
        if decision is not None:
            raised.append((decision.after, decision.reason))
            limit = decision.after or limit
    assert raised == [(32, "doubled"), (64, "doubled"), (128, "doubled"), (None, "no-room")]


# --- checkpoints --------------------------------------------------------------------------------


def test_it_goes_on_where_its_state_left_off() -> None:
    for windows in range(1, 6):
        alone, before = raiser(), raiser()
        feed(alone, *[0.5] * windows)
        feed(before, *[0.5] * windows)
        resumed = raiser()
        resumed.load_state(json.loads(json.dumps(before.state())))
        assert resumed.raised_to == alone.raised_to
        assert feed(resumed, 0.5, 0.5, 0.5) == feed(alone, 0.5, 0.5, 0.5)
        assert resumed.state() == alone.state()


@pytest.mark.parametrize(
    "damage",
    [
        {"window": None},
        {"window": [[[8, -1]], []]},
        {"limit": "many"},
        {"bad_window": 3},
        {"raised_to": []},
    ],
)
def test_a_damaged_state_changes_nothing(damage: dict[str, Any]) -> None:
    made = raiser()
    feed(made, 0.5)
    before = made.state()
    with pytest.raises((TypeError, ValueError)):
        made.load_state(raiser().state() | damage)
    assert made.state() == before
