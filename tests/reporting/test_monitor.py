from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.batches import batch, groups

from truncation_guard.batch.counts import BatchCounts
from truncation_guard.lengths.histogram import LengthHistogram
from truncation_guard.lengths.recommendation import LimitAdvice
from truncation_guard.reporting.monitor import TruncationFinding, TruncationMonitor, keep_newest

IN_ORDER = [
    "limit-ignored",
    "stop-tokens",
    "context",
    "all-truncated",
    "truncated",
    "no-signal",
    "rising",
]
"""The codes of the issue, most urgent first."""


def monitor(**settings: Any) -> TruncationMonitor:
    defaults: dict[str, Any] = {
        "warn_above": 0.05,
        "window": 128,
        "cooldown": 10,
        "coverage": 0.95,
        "nothing_pushes_back": False,
    }
    return TruncationMonitor(**(defaults | settings))


def codes(of: TruncationMonitor, history: Iterable[BatchCounts]) -> list[str | None]:
    return [None if finding is None else finding.code for finding in map(of.update, history)]


def said(finding: TruncationFinding | None) -> TruncationFinding:
    assert finding is not None
    return finding


# --- when each code applies ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        (batch(ended={256: 31, 257: 1}), "limit-ignored"),
        (batch(ended={256: 32}), None),
        (batch(ended={100: 31}, cut={300: 1}), "limit-ignored"),
        (batch(ended={100: 31}, cut={256: 1}), None),
        (batch(ended={100: 31, 9999: 1}, limit=None), None),
    ],
)
def test_limit_ignored_applies_from_the_first_token_above_the_limit(
    counts: BatchCounts, expected: str | None
) -> None:
    assert codes(monitor(), [counts]) == [expected]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        # 1 of 20 is the 5 % of `warn_above`, not above it.
        (batch(of=20, stopped=1, stopped_unasked=1), None),
        (batch(of=20, stopped=2, stopped_unasked=2), "stop-tokens"),
        (batch(of=20, stopped=2, stopped_unasked=1), None),
        (batch(of=20, stopped=1, end_of_turn={"2 (<eot>)": 1}), None),
        (batch(of=20, stopped=2, end_of_turn={"2 (<eot>)": 2}), "stop-tokens"),
        (batch(1, of=20, stopped=1, end_of_turn={"2 (<eot>)": 2}), "stop-tokens"),
        (batch(1, of=20, stopped=1, end_of_turn={"2 (<e>)": 1, "3 (<f>)": 1}), "stop-tokens"),
        # Where a sample was searched, it stands for the rest: 1 of 4 times 8 of 40 is 5 %.
        (batch(7, of=40, stopped=1, searched=4, end_of_turn={"2 (<eot>)": 1}), None),
        (batch(7, of=40, stopped=2, searched=4, end_of_turn={"2 (<eot>)": 1}), "stop-tokens"),
        (batch(7, of=40, stopped=1, searched=0), None),
        # Stopped on a stop string or by an environment: asked for.
        (batch(of=20, stopped=20), None),
    ],
)
def test_stop_tokens_applies_above_warn_above_and_only_for_no_known_reason(
    counts: BatchCounts, expected: str | None
) -> None:
    assert codes(monitor(), [counts]) == [expected]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        # 1 of 20 is the 5 % of `warn_above`, not above it.
        (batch(1, of=20, causes={"limit": 0, "context": 1}), None),
        (batch(2, of=20, causes={"limit": 0, "context": 2}), "context"),
        (batch(6, of=40, causes={"limit": 3, "context": 3}), None),
        (batch(7, of=40, causes={"limit": 3, "context": 4}), "context"),
        (batch(7, of=40, causes={"limit": 4, "context": 3}), None),
        (batch(10, of=40, causes={"limit": 7, "context": 3}), "truncated"),
        (batch(6, of=40, causes={"limit": 0, "context": 3, "tool": 3}), None),
        # More than any other cause, but no more than half.
        (batch(8, of=40, causes={"limit": 2, "context": 4, "tool": 2}), None),
        (batch(9, of=40, causes={"limit": 2, "context": 5, "tool": 2}), "context"),
    ],
)
def test_context_applies_where_the_window_cuts_more_than_half_of_the_truncated(
    counts: BatchCounts, expected: str | None
) -> None:
    assert codes(monitor(), [counts]) == [expected]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        (batch(8, of=32, groups=groups(8, all_truncated=2)), "all-truncated"),
        (batch(8, of=36, groups=groups(9, all_truncated=2)), None),
        (batch(9, of=36, groups=groups(9, all_truncated=2)), "truncated"),
        (batch(2, of=8, groups=groups(4, size=2, all_truncated=1)), "all-truncated"),
    ],
)
def test_all_truncated_applies_from_a_quarter_of_the_groups_on(
    counts: BatchCounts, expected: str | None
) -> None:
    assert codes(monitor(), [counts]) == [expected]


@pytest.mark.parametrize(
    ("truncated", "of", "expected"),
    [
        (4, 16, "truncated"),
        (4, 17, None),  # below a quarter
        (3, 12, None),  # a quarter, but fewer than 4
        (3, 3, None),
        (4, 4, "truncated"),
        (8, 32, "truncated"),
        (7, 32, None),
    ],
)
def test_truncated_applies_at_once_from_a_quarter_and_4_completions_on(
    truncated: int, of: int, expected: str | None
) -> None:
    finding = monitor().update(batch(truncated, of))
    assert (finding and finding.code) == expected
    assert finding is None or not finding.over_window


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([(4, 63)], [None]),
        ([(4, 64)], ["truncated"]),
        ([(4, 32), (0, 31)], [None, None]),
        ([(4, 32), (0, 32)], [None, "truncated"]),
        ([(4, 80)], [None]),  # exactly 5 %
        ([(5, 80)], ["truncated"]),
        ([(0, 80), (7, 80)], [None, None]),  # 7 of 160 are 4.4 %
        ([(0, 80), (9, 80)], [None, "truncated"]),  # 9 of 160 are 5.6 %
    ],
)
def test_truncated_applies_over_a_window_of_64_above_warn_above(
    history: list[tuple[int, int]], expected: list[str | None]
) -> None:
    findings = [monitor_.update(batch(*b)) for monitor_ in [monitor(window=512)] for b in history]
    assert [finding and finding.code for finding in findings] == expected
    assert all(finding.over_window for finding in findings if finding)


@pytest.mark.parametrize(
    ("of_groups", "silent", "expected"),
    [(8, 2, "no-signal"), (9, 2, None), (8, 1, None), (4, 1, "no-signal"), (1, None, None)],
)
def test_no_signal_applies_from_a_quarter_of_the_groups_on(
    of_groups: int, silent: int | None, expected: str | None
) -> None:
    counts = batch(2, of=40, groups=groups(of_groups, truncated_without_signal=silent))
    assert codes(monitor(), [counts]) == [expected]


def test_a_silent_group_without_truncation_is_no_reason_for_a_line() -> None:
    counts = batch(groups=groups(8, without_signal=8, truncated_without_signal=0))
    assert codes(monitor(), [counts]) == [None]


def test_a_batch_without_anything_wrong_gets_no_line() -> None:
    assert codes(monitor(), [batch(0, 64) for _ in range(20)]) == [None] * 20


@pytest.mark.parametrize(
    ("percentages", "expected"),
    [
        # `truncated` comes first in the order; cooling down, it leaves the word to `rising`.
        ([10, 15], ["truncated", "rising"]),
        ([10, 14], ["truncated", None]),
        ([20, 10, 14], ["truncated", None, None]),
        ([20, 10, 15], ["truncated", None, "rising"]),  # the lowest, not the newest
        ([10, 12, 15], ["truncated", None, "rising"]),
        ([10, 15, 15], ["truncated", "rising", None]),
        ([0, 5], [None, None]),  # not above `warn_above`
        ([0, 6, 6], [None, "truncated", "rising"]),
        ([16], ["truncated"]),  # no earlier window
    ],
)
def test_rising_applies_5_points_above_the_lowest_earlier_full_window(
    percentages: list[int], expected: list[str | None]
) -> None:
    watch = monitor(window=100, nothing_pushes_back=True)
    assert codes(watch, [batch(n, of=100) for n in percentages]) == expected


def test_rising_does_not_compare_with_a_window_that_was_not_full() -> None:
    history = [batch(0, 64), batch(13, 64), batch(5, 64), batch(7, 64)]
    # Windows of 128: 0/64 (not full), 13/128 = 10 %, 18/128 = 14 %, 12/128 = 9 %.
    watch = monitor(nothing_pushes_back=True)
    assert codes(watch, history) == [None, "truncated", None, None]
    # 11/128 = 8.6 % is the lowest; 17/128 is 4.7 points above it, 18/128 is 5.5.
    assert codes(watch, [batch(4, 64), batch(13, 64)]) == [None, None]
    assert codes(watch, [batch(5, 64)]) == ["rising"]


def test_rising_needs_a_mode_that_takes_the_pressure_away() -> None:
    history = [batch(10, 100), batch(24, 100)]
    assert codes(monitor(window=100, nothing_pushes_back=False), history)[1] != "rising"
    assert (
        codes(monitor(window=100, nothing_pushes_back=False, cooldown=99), history * 3)[2:]
        == [None] * 4
    )


def test_rising_looks_at_the_share_above_warn_above() -> None:
    watch = monitor(window=100, nothing_pushes_back=True, warn_above=0.2)
    assert codes(watch, [batch(10, 100), batch(20, 100)]) == [None, None]
    assert codes(watch, [batch(21, 100), batch(21, 100)]) == ["truncated", "rising"]


# --- order and cool-down ------------------------------------------------------------------------


def everything_wrong() -> BatchCounts:
    """Every code applies to it, `rising` after a window without truncation."""
    return batch(
        64,
        of=128,
        ended={100: 63, 257: 1},
        stopped=8,
        stopped_unasked=8,
        causes={"limit": 31, "context": 33},
        groups=groups(32, all_truncated=8, truncated_without_signal=8),
    )


def test_of_all_codes_that_apply_the_first_that_is_not_cooling_down_is_said() -> None:
    watch = monitor(nothing_pushes_back=True)
    assert codes(watch, [batch(0, 128)]) == [None]
    assert codes(watch, [everything_wrong()] * 8) == [*IN_ORDER, None]


def test_each_code_has_a_cool_down_of_its_own() -> None:
    watch = monitor(cooldown=10)
    cut, ignored = batch(16), batch(ended={300: 32})
    history = [cut, replace(ignored, step=5), replace(cut, step=9), replace(cut, step=10)]
    history += [replace(ignored, step=14), replace(ignored, step=15)]
    assert codes(watch, history) == [
        "truncated",
        "limit-ignored",
        None,
        "truncated",
        None,
        "limit-ignored",
    ]


@pytest.mark.parametrize(
    ("cooldown", "steps"),
    [
        (3, [0, 3, 9, 21, 45, 93]),  # 3, 6, 12, 24, 48 steps apart
        (10, [0, 10, 30, 70]),
        (1, [0, 1, 3, 7, 15, 31, 63]),
        (0, list(range(100))),
    ],
)
def test_a_code_repeats_after_twice_as_many_steps_each_time(
    cooldown: int, steps: list[int]
) -> None:
    watch = monitor(cooldown=cooldown)
    assert [step for step in range(100) if watch.update(batch(16, step=step))] == steps


def test_a_code_that_was_absent_for_long_still_waits_twice_as_long_afterwards() -> None:
    watch = monitor(cooldown=10)
    steps = [0, 500, 519, 520]
    assert codes(watch, [batch(16, step=step) for step in steps]) == [
        "truncated",
        "truncated",
        None,
        "truncated",
    ]


@pytest.mark.parametrize(
    ("truncated_of_100", "expected"),
    [
        ([25, 34], [True, False]),
        ([25, 35], [True, True]),  # 0.35 - 0.25 is a little below 0.1
        ([30, 40], [True, True]),
        # Against the share of the newest line, not of the newest batch.
        ([30, 39, 39, 40], [True, False, False, True]),
        ([50, 30, 45, 59], [True, False, False, False]),
        ([30, 40, 45, 50], [True, True, False, True]),
    ],
)
def test_a_code_repeats_at_once_when_its_share_is_10_points_worse(
    truncated_of_100: list[int], expected: list[bool]
) -> None:
    watch = monitor()
    findings = [watch.update(batch(n, of=100)) for n in truncated_of_100]
    assert [finding is not None for finding in findings] == expected


def test_a_line_because_it_got_worse_starts_the_wait_anew_and_does_not_lengthen_it() -> None:
    watch = monitor(cooldown=10)
    assert watch.update(batch(30, of=100, step=0))
    assert watch.update(batch(40, of=100, step=4))
    assert [step for step in range(5, 50) if watch.update(batch(40, of=100, step=step))] == [14, 34]


# --- what a finding says ------------------------------------------------------------------------


def test_a_line_at_once_is_advised_from_its_batch_and_one_over_the_window_from_the_window() -> None:
    short = batch(0, of=60, ended={10: 60})
    watch = monitor(window=512, coverage=0.9)
    assert watch.update(short) is None
    at_once = said(watch.update(batch(4, of=16, ended={200: 12}, cut={256: 3, 128: 1})))
    assert (at_once.over_window, at_once.share) == (False, 0.25)
    # 12 of 16 ended, so rank 15 is one of the cut, and in 256 tokens at the earliest.
    assert at_once.advice == LimitAdvice(
        coverage=0.9, quantile=None, longest=256, recommended_limit=512
    )
    assert (at_once.window.truncated, at_once.window.completions) == (4, 76)
    assert at_once.window.share == 4 / 76

    watch = monitor(window=512, coverage=0.9)
    watch.update(batch(0, of=60, ended={10: 60}, limit=272))
    over_window = said(watch.update(batch(4, of=17, ended={270: 13}, limit=272, cut={272: 4})))
    assert (over_window.over_window, over_window.share) == (True, 4 / 77)
    # 60 rows of 10 tokens, 13 of 270, 4 cut: rank 70 of 77 is 270, whose next multiple is 320.
    assert over_window.advice == LimitAdvice(
        coverage=0.9, quantile=270, longest=272, recommended_limit=320
    )
    assert (over_window.window.truncated, over_window.window.completions) == (4, 77)
    assert over_window.window.share == 4 / 77


def test_a_line_over_the_window_is_advised_from_where_the_window_was_cut() -> None:
    watch = monitor(window=512, warn_above=0.1)
    assert watch.update(batch(5, of=32, ended={20: 27}, cut={50: 5})) is None
    finding = said(watch.update(batch(5, of=32, ended={20: 27}, cut={256: 5})))
    # Rank 61 of 64: 54 ended at 20, 5 were cut at 50, 5 at the limit.
    assert finding.advice == LimitAdvice(
        coverage=0.95, quantile=None, longest=256, recommended_limit=512
    )
    watch = monitor(window=512, coverage=0.85, warn_above=0.1)
    watch.update(batch(5, of=32, ended={20: 27}, cut={50: 5}))
    finding = said(watch.update(batch(5, of=32, ended={20: 27}, cut={256: 5})))
    # 54 of 64 ended at 20, fewer than 85 %, and nothing ended behind.
    assert finding.advice == LimitAdvice(
        coverage=0.85, quantile=None, longest=256, recommended_limit=512
    )


def test_an_evaluation_is_advised_from_its_own_lengths() -> None:
    watch = monitor()
    watch.update(batch(0, of=512, ended={10: 512}))
    evaluation = batch(8, of=200, training=False, ended={240: 192}, cut={256: 8}, limit=128)
    assert said(watch.evaluate(evaluation)).code == "limit-ignored"
    finding = said(monitor(warn_above=0.03).evaluate(replace(evaluation, limit=256)))
    assert (finding.code, finding.over_window) == ("truncated", False)
    assert (finding.share, finding.window.share) == (0.04, 0.04)
    assert finding.advice == LimitAdvice(
        coverage=0.95, quantile=240, longest=256, recommended_limit=None
    )


def test_rising_is_about_the_window() -> None:
    watch = monitor(window=100, nothing_pushes_back=True)
    watch.update(batch(10, 100))
    finding = said(watch.update(batch(16, 100)))
    assert (finding.code, finding.over_window, finding.share) == ("rising", True, 0.16)
    assert finding.lowest_share == 0.10


@pytest.mark.parametrize(
    ("counts", "share"),
    [
        (batch(ended={100: 24, 300: 8}), 0.25),
        (batch(stopped=8, stopped_unasked=8), 0.25),
        (batch(stopped=16, searched=4, end_of_turn={"2 (<eot>)": 2}), 0.25),
        (batch(6, of=24, causes={"limit": 0, "context": 6}), 0.25),
        (batch(16, groups=groups(8, all_truncated=3)), 0.375),
        (batch(24), 0.75),
        (batch(1, groups=groups(8, truncated_without_signal=5)), 0.625),
    ],
)
def test_the_share_of_a_finding_is_that_of_what_is_wrong(counts: BatchCounts, share: float) -> None:
    finding = said(monitor().update(counts))
    assert finding.share == share
    assert finding.counts is counts
    assert not finding.over_window


def test_there_is_no_advice_and_no_obstacle_without_a_limit() -> None:
    finding = said(monitor().update(batch(16, limit=None)))
    assert (finding.code, finding.obstacle, finding.advice) == ("truncated", None, None)


# --- what a longer limit does not help against --------------------------------------------------


def every_code(counts: BatchCounts, **settings: Any) -> dict[str, TruncationFinding]:
    """Every finding on a batch: the next code comes while those before it are cooling down."""
    watch = monitor(**settings)
    watch.update(batch(0, 128))
    findings: dict[str, TruncationFinding] = {}
    while (finding := watch.update(counts)) is not None:
        findings[finding.code] = finding
    return findings


@pytest.mark.parametrize(
    ("changes", "obstacle"),
    [
        ({"causes": {"limit": 16}}, None),
        ({"causes": {"limit": 8, "context": 8}}, None),
        ({"causes": {"limit": 7, "context": 9}}, "context"),
        ({"causes": {"limit": 0, "context": 16}}, "context"),
        ({"causes": {"limit": 8, "tool": 8}, "tool_iterations": 8}, None),
        ({"causes": {"limit": 7, "tool": 9}, "tool_iterations": 9}, "tool-iterations"),
        # A result that does not fit is the limit's doing.
        ({"causes": {"limit": 0, "tool": 16}, "tool_iterations": 8}, None),
        ({"causes": {"limit": 0, "tool": 16}, "tool_iterations": 0}, None),
        # A few, and more than half, of the 16 that were searched.
        ({"end_of_turn": {"2 (<eot>)": 3}}, None),
        ({"end_of_turn": {"2 (<eot>)": 9}}, "stop-tokens"),
        # A missing stop token is why the window or the tool loop cuts.
        (
            {"end_of_turn": {"2 (<eot>)": 9}, "causes": {"limit": 0, "context": 16}},
            "stop-tokens",
        ),
        (
            {
                "end_of_turn": {"2 (<eot>)": 9},
                "causes": {"limit": 0, "tool": 16},
                "tool_iterations": 16,
            },
            "stop-tokens",
        ),
    ],
)
def test_with_an_obstacle_no_line_on_the_batch_has_advice_on_the_limit(
    changes: dict[str, Any], obstacle: str | None
) -> None:
    affected = groups(8, all_truncated=4, truncated_without_signal=4)
    counts = batch(16, of=32, groups=affected, **changes)
    findings = every_code(counts, nothing_pushes_back=True)
    assert list(findings)[-4:] == ["all-truncated", "truncated", "no-signal", "rising"]
    assert {finding.obstacle for finding in findings.values()} == {obstacle}
    for finding in findings.values():
        assert (finding.advice is None) == (obstacle is not None)


@pytest.mark.parametrize(
    ("held", "said_so", "obstacle"),
    [(2, False, None), (3, True, None), (5, True, None), (6, True, "stop-tokens")],
)
def test_a_quarter_that_hold_an_end_of_turn_are_said_and_more_than_half_are_an_obstacle(
    held: int, said_so: bool, obstacle: str | None
) -> None:
    counts = batch(10, of=40, end_of_turn={"2 (<eot>)": held})
    findings = every_code(counts)
    assert ("stop-tokens" in findings) == said_so
    assert findings["truncated"].obstacle == obstacle


@pytest.mark.parametrize(("of", "said_so"), [(160, False), (152, True)])
def test_a_missing_stop_token_is_only_said_above_warn_above(of: int, said_so: bool) -> None:
    # 8 of the 8 that were searched, of 160 is exactly 5 %.
    counts = batch(8, of=of, end_of_turn={"2 (<eot>)": 8})
    assert ("stop-tokens" in every_code(counts)) == said_so


def test_a_stray_end_of_turn_does_not_stand_before_the_truncated() -> None:
    """A model that samples such a token now and then is no wrong set-up."""
    findings = every_code(batch(16, of=16, end_of_turn={"2 (<eot>)": 1}), warn_above=0.0)
    assert "stop-tokens" not in findings
    assert findings["truncated"].obstacle is None


def test_what_was_seen_under_another_limit_says_nothing_of_this_one() -> None:
    watch = monitor(window=512, nothing_pushes_back=True)
    for step in range(8):
        watch.update(batch(48, 64, step=step))
    resumed = monitor(window=512, nothing_pushes_back=True)
    resumed.load_state(through_json(watch.state()))
    assert codes(resumed, [batch(0, 64, step=9, limit=512, ended={300: 64})] * 3) == [None] * 3
    assert codes(resumed, [batch(16, 64, step=9, limit=512, cut={512: 16})]) == ["truncated"]


def test_a_share_that_jumps_up_and_down_is_not_worse_each_time() -> None:
    watch = monitor(cooldown=10)
    shares = [16, 8, 16, 8, 16]
    said_at = [batch(n, 32, step=10 * i) for i, n in enumerate(shares)]
    # Due at steps 0, 10 and 30; at 20 and 40 the cool-down holds, though 8 was the last one said.
    assert codes(watch, said_at) == ["truncated", "truncated", None, "truncated", None]


def test_a_row_that_stopped_for_no_known_reason_is_no_obstacle_to_the_others() -> None:
    findings = every_code(batch(8, stopped=4, stopped_unasked=4))
    assert {code: finding.obstacle for code, finding in findings.items()} == {
        "stop-tokens": "stop-tokens",
        "truncated": None,
    }


def test_where_the_limit_is_not_obeyed_no_line_advises_to_raise_it() -> None:
    """Also while its own line cools down: twice the limit may be less than what is written."""
    findings = every_code(batch(32, cut={300: 32}, groups=groups(8, all_truncated=8)))
    assert list(findings) == ["limit-ignored", "all-truncated", "truncated"]
    assert {finding.obstacle for finding in findings.values()} == {"limit-ignored"}
    assert {finding.advice for finding in findings.values()} == {None}


def test_an_evaluation_has_its_obstacles_too() -> None:
    counts = batch(8, training=False, causes={"limit": 0, "context": 8})
    watch = monitor()
    first, second = said(watch.evaluate(counts)), said(watch.evaluate(counts))
    assert (first.code, first.obstacle, first.advice) == ("context", "context", None)
    assert (second.code, second.obstacle, second.advice) == ("truncated", "context", None)


# --- switched off, evaluation -------------------------------------------------------------------


def test_no_code_is_said_with_warn_above_none() -> None:
    watch = monitor(warn_above=None, nothing_pushes_back=True)
    history = [batch(0, 128), *[everything_wrong()] * 7]
    assert codes(watch, history) == [None] * 8
    assert watch.evaluate(replace(everything_wrong(), training=False)) is None
    assert watch.state()["said"] == {}


def test_warn_above_0_takes_the_first_truncated_completion() -> None:
    assert codes(monitor(warn_above=0.0), [batch(0, 64)]) == [None]
    assert codes(monitor(warn_above=0.0), [batch(1, 64)]) == ["truncated"]


def test_an_evaluation_is_judged_by_the_codes_that_do_not_speak_of_advantages() -> None:
    watch = monitor(nothing_pushes_back=True)
    codes(watch, [batch(0, 128)])
    evaluation = replace(everything_wrong(), training=False)
    findings = [watch.evaluate(evaluation) for _ in range(5)]
    assert [finding and finding.code for finding in findings] == [
        "limit-ignored",
        "stop-tokens",
        "context",
        "truncated",
        None,
    ]
    assert not any(finding.over_window for finding in findings if finding)


def test_training_and_evaluation_cool_down_apart() -> None:
    watch = monitor()
    evaluation = batch(16, training=False)
    assert watch.update(batch(16)) is not None
    assert watch.evaluate(evaluation) is not None
    assert watch.update(batch(16)) is None
    assert watch.evaluate(evaluation) is None
    assert watch.evaluate(replace(evaluation, step=10)) is not None


def test_an_evaluation_before_the_first_batch_cools_down_as_well() -> None:
    watch = monitor()
    evaluation = batch(16, training=False)
    assert watch.evaluate(evaluation) is not None
    watch.update(batch(0, 64))
    assert watch.evaluate(replace(evaluation, step=1)) is None


def test_an_evaluation_does_not_enter_the_window() -> None:
    watch = monitor()
    watch.update(batch(2, 60))
    before = watch.state()["window"]
    watch.evaluate(batch(32, training=False))
    assert watch.state()["window"] == before
    assert watch.state()["lowest_share"] is None


@pytest.mark.parametrize(
    ("truncated", "of", "expected"),
    [(4, 63, None), (4, 64, "truncated"), (4, 80, None), (4, 16, "truncated"), (3, 12, None)],
)
def test_an_evaluation_is_a_window_of_its_own(
    truncated: int, of: int, expected: str | None
) -> None:
    watch = monitor()
    watch.update(batch(0, 128))
    finding = watch.evaluate(batch(truncated, of, training=False))
    assert (finding and finding.code) == expected
    if finding is not None:
        assert (finding.window.truncated, finding.window.completions) == (truncated, of)
        assert finding.window.share == finding.share == truncated / of
        assert not finding.over_window  # its figures are those of the evaluation


# --- the window ---------------------------------------------------------------------------------


def test_the_window_keeps_the_fewest_newest_batches_that_fill_it() -> None:
    window: deque[LengthHistogram] = deque()
    held = []
    for counts in [batch(1, 32), batch(2, 32), batch(3, 32), batch(4, 24), batch(5, 100)]:
        window.append(counts.lengths)
        keep_newest(window, 64)
        lengths = LengthHistogram.sum_of(window)
        held.append((lengths.truncated, lengths.completions))
    assert held == [
        (1, 32),
        (3, 64),
        (5, 64),
        (9, 88),  # 32 + 32 + 24: without the oldest it would be 56
        (5, 100),
    ]
    assert lengths == LengthHistogram({100: 95}, {256: 5})
    assert lengths.share == 0.05


def test_the_lengths_of_the_window_are_those_of_its_batches() -> None:
    watch = monitor(window=96, cooldown=0, warn_above=0.01)
    histograms = [({9: 40}, {}), ({7: 30}, {256: 2}), ({7: 1, 8: 60}, {50: 2, 256: 1})]
    for ended, cut in histograms:
        finding = watch.update(batch(ended=ended, cut=cut))
    assert watch.state()["window"][0] == ([(7, 30)], [(256, 2)])
    assert said(finding).window == LengthHistogram({7: 31, 8: 60}, {50: 2, 256: 3})


@settings(deadline=None)
@given(
    size=st.integers(1, 200),
    sizes=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), min_size=1, max_size=20),
)
def test_the_window_is_the_shortest_end_of_the_history_that_fills_it(
    size: int, sizes: list[tuple[int, int]]
) -> None:
    window: deque[LengthHistogram] = deque()
    for cut, ended in sizes:
        window.append(LengthHistogram({7: ended}, {9: cut}))
        keep_newest(window, size)
    totals = [cut + ended for cut, ended in sizes]
    long_enough = [k for k in range(1, len(totals) + 1) if sum(totals[-k:]) >= size]
    kept = long_enough[0] if long_enough else len(totals)
    assert LengthHistogram.sum_of(window) == LengthHistogram(
        {7: sum(ended for _, ended in sizes[-kept:])}, {9: sum(cut for cut, _ in sizes[-kept:])}
    )


def test_a_shrunken_share_over_the_window_ends_the_lines() -> None:
    watch = monitor(window=64, cooldown=0)
    history = [batch(0, 32), batch(5, 32), batch(0, 32), batch(0, 32), batch(0, 32)]
    assert codes(watch, history) == [None, "truncated", "truncated", None, None]


# --- state --------------------------------------------------------------------------------------


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    restored: dict[str, Any] = json.loads(json.dumps(state, allow_nan=False))
    return restored


@settings(deadline=None)
@given(
    history=st.lists(
        st.tuples(st.integers(0, 32), st.integers(0, 8), st.integers(0, 12), st.booleans()),
        min_size=1,
        max_size=25,
    ),
    data=st.data(),
)
def test_a_monitor_that_goes_on_from_a_saved_state_says_what_the_first_would_have(
    history: list[tuple[int, int, int, bool]], data: st.DataObject
) -> None:
    step, batches = 0, []
    for truncated, all_truncated, passed, training in history:
        step += passed
        counts = batch(truncated, step=step, groups=groups(8, all_truncated=all_truncated))
        batches.append(replace(counts, training=training))
    at = data.draw(st.integers(0, len(batches)))

    def judge(watch: TruncationMonitor, counts: BatchCounts) -> TruncationFinding | None:
        return watch.update(counts) if counts.training else watch.evaluate(counts)

    settings_ = {"window": 96, "cooldown": 3, "nothing_pushes_back": True}
    first, second = monitor(**settings_), monitor(**settings_)
    for counts in batches[:at]:
        judge(first, counts)
    second.load_state(through_json(first.state()))
    assert second.state() == first.state()
    for counts in batches[at:]:
        assert judge(second, counts) == judge(first, counts)
    assert second.state() == first.state()


def test_the_state_holds_the_lengths_of_each_batch_the_lowest_share_and_what_was_said() -> None:
    watch = monitor(window=64, cooldown=10)
    watch.update(batch(8, step=3, ended={100: 20, 7: 4}))
    watch.update(batch(0, step=4))
    watch.evaluate(batch(16, step=4, training=False))
    assert through_json(watch.state()) == {
        "window": [[[[7, 4], [100, 20]], [[256, 8]]], [[[100, 32]], []]],
        "limit": 256,
        "lowest_share": 0.125,
        "said": {"truncated": [3, 10, 0.25], "eval/truncated": [4, 10, 0.5]},
    }


def test_the_state_of_a_new_monitor_can_be_loaded() -> None:
    watch = monitor()
    watch.load_state(through_json(watch.state()))
    assert codes(watch, [batch(16)]) == ["truncated"]


def test_the_window_of_the_new_script_wins_over_that_of_the_state() -> None:
    long, short = monitor(window=512), monitor(window=64)
    codes(long, [batch(0, 64) for _ in range(8)])
    short.load_state(through_json(long.state()))
    assert said(short.update(batch(8, 64))).window.completions == 64


def test_the_cool_down_of_the_new_script_counts_for_codes_that_were_not_said_yet() -> None:
    first, second = monitor(cooldown=10), monitor(cooldown=2)
    first.update(batch(16))
    second.load_state(through_json(first.state()))
    assert codes(second, [batch(16, step=9), batch(16, step=10)]) == [None, "truncated"]


def changed(**entries: Any) -> dict[str, Any]:
    whole = {
        "window": [[[[100, 31]], [[256, 1]]]],
        "limit": 256,
        "lowest_share": 0.1,
        "said": {"truncated": [1, 10, 0.3]},
    }
    return {key: value for key, value in (whole | entries).items() if value != "missing"}


def test_the_state_that_the_damaged_ones_are_made_from_is_whole() -> None:
    # Also with a completion that was cut before its first token, and a count of nothing.
    zeros = changed(window=[[[], [[0, 2]]], [[[0, 0]], []]], lowest_share=None, said={})
    for whole in (zeros, changed()):
        watch = monitor()
        watch.load_state(whole)
        assert through_json(watch.state()) == whole
    assert said(watch.update(batch(8, 32, step=11))).window.completions == 64


@pytest.mark.parametrize(
    "damaged",
    [
        None,
        [],
        "state",
        {},
        changed(window="missing"),
        changed(lowest_share="missing"),
        changed(said="missing"),
        changed(window=None),
        changed(window=5),
        changed(window=[[1, [[100, 31]]]]),  # without the lengths of the cut
        changed(window=[[[[100, 31]]]]),
        changed(window=[[[[100, 31]], [[256, 1]], []]]),
        changed(window=[[[[100, 31]], None]]),
        changed(window=[[[[100, "many"]], []]]),
        changed(window=[[[], [[100]]]]),
        changed(window=[[[[100, 31, 1]], []]]),
        changed(window=[[[[100, float("inf")]], []]]),
        changed(window=[[[[100, float("nan")]], []]]),
        changed(window=[[[[100, -1]], []]]),
        changed(window=[[[[-100, 31]], []]]),
        changed(window=[[[[100, 31]], [[256, -1]]]]),
        changed(window=[[[[100, 31]], [[-1, 1]]]]),
        changed(lowest_share="low"),
        changed(lowest_share=[]),
        changed(said=[]),
        changed(said={"truncated": [1, 10]}),
        changed(said={"truncated": [1, 10, None]}),
        changed(said={"truncated": 3}),
    ],
    ids=repr,
)
def test_a_damaged_state_is_refused_and_leaves_the_monitor_as_it_was(damaged: Any) -> None:
    watch = monitor(window=64, nothing_pushes_back=True)
    codes(watch, [batch(4, 64), batch(20, 64)])
    before = watch.state()
    with pytest.raises((AttributeError, KeyError, TypeError, ValueError, OverflowError)):
        watch.load_state(damaged)
    assert watch.state() == before
