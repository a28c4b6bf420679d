"""Figures -> caveats, both sides of every boundary, and their texts."""

from __future__ import annotations

from typing import Any

import pytest
from support.log_entries import LIMIT, answer, entries, found, trace, verdict

from truncation_guard.diagnosis.run import LogEntry

LOOK_AT_SOME = (
    "before raising the limit look at some completions: if they go on after their answer, add the "
    "end-of-turn token to model.generation_config.eos_token_id"
)


def test_nothing_ever_ends() -> None:
    assert answer(trace(entries([1.0] * 5), limit=LIMIT), "stop-tokens") == (
        "warning",
        "no completion ever ended before 100 tokens: either all need more, or no stop token fires",
        LOOK_AT_SOME,
    )


@pytest.mark.parametrize(("ended", "is_found"), [(20.0, True), (20.4, False)])
def test_what_ends_does_so_long_before_the_limit(ended: float, is_found: bool) -> None:
    means = 0.5 * LIMIT + 0.5 * ended
    run = trace(entries([0.5] * 5, mean_length=means), limit=LIMIT)
    assert ("two-lengths" in found(run)) is is_found
    assert "stop-tokens" not in found(run)  # those of the others do fire
    if is_found:
        assert answer(run, "two-lengths") == (
            "warning",
            "50% of the completions ran into 100 tokens while the others ended after 20 on "
            "average: stop tokens do fire, and the rest either need far more or never end",
            "before raising the limit look at some that were cut: do they repeat themselves, go on "
            "after their answer, or belong to harder prompts?",
        )


def test_nothing_ends_under_the_last_limit_though_much_did_before() -> None:
    run = trace(entries([0.5] * 5, limit=200) + entries([1.0] * 5, limit=LIMIT), limit=LIMIT)
    assert answer(run, "stop-tokens")[1].startswith("no completion ever ended before 100 tokens")
    other = trace(entries([1.0] * 5, limit=50) + entries([0.9] * 5, limit=LIMIT), limit=LIMIT)
    assert "stop-tokens" not in found(other)


@pytest.mark.parametrize("details", [{"ratio": 0.25}, {"limit": None, "max_length": None}])
def test_stop_tokens_are_not_suspected_without_reason(details: dict[str, Any]) -> None:
    training = entries([0.5] * 5, mean_length=30.0)
    for entry in training:
        for name, value in details.items():
            setattr(entry, name, value)
    assert not {"stop-tokens", "two-lengths"} & found(trace(training)).keys()


def guarded(share: float, **figures: Any) -> list[LogEntry]:
    given = {"truncated": share, "stopped": 0.0, "elsewhere": 0.0, "mean_length": 50.0} | figures
    return [LogEntry(step=float(n), max_length=100.0, limit=LIMIT, **given) for n in range(5)]


@pytest.mark.parametrize(("elsewhere", "is_found"), [(0.2, False), (0.21, True)])
def test_completions_cut_by_something_else(elsewhere: float, is_found: bool) -> None:
    run = trace(guarded(0.4, elsewhere=elsewhere), guarded=True, limit=LIMIT)
    assert ("cut-elsewhere" in found(run)) is is_found
    if is_found:
        assert answer(run, "cut-elsewhere") == (
            "warning",
            "21% of the completions were cut by the context window or in the tool loop, out of 40% "
            "that were cut at all",
            "shorten the prompts, use a longer window, or raise max_tool_calling_iterations; a "
            "longer max_completion_length does not help",
        )
        assert verdict(run) == (
            "truncation may be what holds this run back: 40% of the completions were cut off by "
            "the "
            "context window or in the tool loop at the end"
        )


CLIMB = [0.1] * 5 + [0.3] * 5


@pytest.mark.parametrize(
    ("details", "how"),
    [
        ({"masked": True}, "while mask_truncated_completions took"),
        (
            {"guarded": True, "mode": "downweight", "truncated_weight": 0.0},
            "while mode=downweight took",
        ),
        (
            {"guarded": True, "mode": "downweight"},
            "while mode=downweight, by its truncated_weight, may have taken",
        ),
        ({"guarded": True, "mode": "exclude"}, "while mode=exclude took"),
        ({"guarded": True}, "while the guard, by its mode, may have taken"),
    ],
)
def test_truncation_that_rises_while_masked(details: dict[str, Any], how: str) -> None:
    assert answer(trace(entries(CLIMB), **details), "rising") == (
        "warning",
        f"the truncated share rose from 10% to 30% {how} the pressure to finish away",
        "raise the limit, or use a TruncationGuardCallback with mode='penalize' or a "
        "truncated_weight above 0",
    )


@pytest.mark.parametrize(
    ("ratios", "details"),
    [
        (CLIMB, {}),
        (CLIMB, {"masked": False}),
        (CLIMB, {"guarded": True, "mode": "penalize"}),
        (CLIMB, {"guarded": True, "mode": "downweight", "truncated_weight": 0.5}),
        (CLIMB[::-1], {"masked": True}),
        ([0.1] * 5 + [0.14] * 5, {"masked": True}),
        ([0.0] * 8 + [0.05] * 2, {"masked": True}),
        ([0.1, 0.5] * 5 + [0.5], {"masked": True}),  # noise
        ([None] * 5, {"masked": True}),
    ],
)
def test_truncation_that_does_not_rise_while_masked(
    ratios: list[float | None], details: dict[str, Any]
) -> None:
    assert "rising" not in found(trace(entries(ratios, reward=0.5), **details))


def test_a_share_that_another_limit_raised_is_no_rise() -> None:
    run = trace(entries([0.1] * 5, limit=200) + entries([0.3] * 5, limit=LIMIT), masked=True)
    assert "rising" not in found(run)


def test_completions_of_one_short_length_say_both_readings() -> None:
    run = trace(
        [LogEntry(step=float(n), ratio=1.0, mean_length=20, max_length=20.0) for n in range(9)]
    )
    assert verdict(run) == (
        "truncation may be what holds this run back: all completions are 20 tokens long and count "
        "as clipped, which is either the limit, or no matter of length"
    )
    assert answer(run, "short-unfinished") == (
        "warning",
        "all completions are 20 tokens long and count as clipped: either that is the limit, or "
        "they are short and TRL does not know what ends them",
        "compare with max_completion_length in the run's configuration: if that is higher, look "
        "for a stop token that tokenizer and generation config do not name",
    )
    assert answer(run, "pile-up")[:2] == (
        "unknown",
        "all completions are 20 tokens long: whether that is the limit is not known",
    )
    assert answer(run, "truncated")[:2] == (
        "unknown",
        "all completions were cut off, or none: see short-unfinished",
    )
    assert "limit-unknown" not in found(run)
    run.limit = 512
    assert verdict(run).startswith("truncation is not what holds this run back: 100% of the")


def test_short_completions_that_count_as_clipped() -> None:
    short = [
        LogEntry(step=float(n), ratio=1.0, mean_length=20.0, max_length=30.0 + n) for n in range(5)
    ]
    remedy = (
        "a longer limit does not help, unless an environment's tokens, which TRL leaves out of the "
        "lengths, filled it: look for a stop token that tokenizer and generation config do not "
        "name, for stop strings, tools, or an environment that ends them"
    )
    assert answer(trace(short, limit=LIMIT), "short-unfinished") == (
        "warning",
        "100% of the completions count as clipped and yet are short (the longest has 34 tokens, "
        "the "
        "limit is 100): TRL counts what does not end on a stop token that it knows",
        remedy,
    )
    assert verdict(trace(short)) == (
        "truncation is not what holds this run back: 100% of the completions ended without a known "
        "stop token, but below the limit: no matter of length, unless an environment's tokens, "
        "which TRL leaves out of the lengths, filled it"
    )
    assert answer(trace(short, limit=LIMIT), "truncated")[1] == (
        "by their lengths no completion was cut off from step 0 to 4"
    )
    some = [LogEntry(step=1.0, ratio=0.4, mean_length=11.0, max_length=101.0)] * 5
    assert answer(trace(some, limit=101), "short-unfinished")[1] == (
        "at least 30% of the completions count as clipped and yet are short (the longest has 101 "
        "tokens, the limit is 101): TRL counts what does not end on a stop token that it knows"
    )
    assert answer(trace(some, limit=101), "truncated")[1].startswith("at most 10% of")
    assert answer(trace(some, limit=101), "limit-needed")[1].startswith(
        "the limit of 101 tokens held at least 90% of"
    )


def test_short_completions_do_not_hide_many_that_may_be_cut() -> None:
    run = trace([LogEntry(step=1.0, ratio=0.7, mean_length=31.0, max_length=101.0)] * 5, limit=101)
    assert "short-unfinished" in found(run)
    assert verdict(run) == (
        "truncation may be what holds this run back: at most 30% of the completions were cut off "
        "at 101 tokens at the end"
    )


def test_stopped_completions_do_not_hide_truncated_ones() -> None:
    run = trace(guarded(0.2, stopped=0.5), guarded=True, limit=LIMIT)
    assert verdict(run) == (
        "truncation may be what holds this run back: 20% of the completions were cut off at 100 "
        "tokens at the end"
    )
    assert verdict(trace(guarded(0.0, stopped=0.5), guarded=True, limit=LIMIT)) == (
        "truncation is not what holds this run back: no completion was cut off"
    )


@pytest.mark.parametrize(
    ("warned", "severity", "ending"),
    [
        ({"stop-tokens": 1}, "warning", ""),
        ({}, "fine", ": fine, where stop strings or an environment end them"),
        (None, "unknown", ": fine, where stop strings or an environment end them"),
    ],
)
def test_stopped_completions_are_an_alarm_only_where_the_guard_says_so(
    warned: dict[str, int] | None, severity: str, ending: str
) -> None:
    run = trace(guarded(0.0, stopped=0.3), guarded=True, warned=warned, limit=LIMIT)
    assert answer(run, "short-unfinished")[:2] == (
        severity,
        f"30% of the completions ended below every limit without a stop token{ending}",
    )


def test_a_limit_that_changed() -> None:
    run = trace(entries([0.0] * 6, limit=[16, 16, 32, 32, 32, 64]), limit=64)
    assert answer(run, "limit-changed") == (
        "fine",
        "the limit changed during the run: 16 tokens up to step 2, then 32 tokens from step 3 to "
        "5, then 64 tokens from step 6 on",
        "",
    )
    assert "limit-changed" not in found(trace(entries([0.0] * 6, limit=16), limit=16))


@pytest.mark.parametrize(
    ("limits", "means", "expected"),
    [
        (
            [16, 16, None, 32, 32],
            [16.0, 16.0, 24.0, 32.0, 32.0],
            "16 tokens up to step 2, then 32 tokens from step 4 on (in 1 of 5 entries only a mean "
            "of limits is logged)",
        ),
        (
            [16, 16, None],
            [16.0, 16.0, 24.0],
            "16 tokens up to step 2 (in 1 of 3 entries only a mean of limits is logged)",
        ),
        ([None] * 2, [16.0, 32.0], "in 2 of 2 entries only a mean of limits is logged"),
    ],
)
def test_a_mean_of_limits_is_never_named(
    limits: list[int | None], means: list[float], expected: str
) -> None:
    training = guarded(0.3)[: len(limits)]
    for number, entry in enumerate(training):
        entry.limit, entry.logged_limit = limits[number], means[number]
        entry.step = number + 1.0
    run = trace(training, guarded=True)
    assert answer(run, "limit-changed")[1] == f"the limit changed during the run: {expected}"
    assert not any("24" in finding.fact for finding in found(run).values())
    if set(limits) == {None}:
        assert answer(run, "pile-up") == (
            "unknown",
            "the limit changed within the entries: where lengths pile up is not known",
            "",
        )
        assert "limit-unknown" not in found(run)


def test_a_limit_that_changed_to_one_that_cuts_nothing() -> None:
    run = trace(entries([1.0] * 5, mean_length=100.0) + entries([0.0] * 5, max_length=180.0))
    for number, entry in enumerate(run.training):
        entry.step = number + 1.0
        entry.max_length = entry.max_length if number < 5 else 180.0
    assert answer(run, "limit-changed")[1] == (
        "the limit changed during the run, as the longest completions show: 100 tokens up to step "
        "5, then at least 180 tokens from step 6 on"
    )


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        (
            entries([0.0, None, 0.0], reward=0.5),
            (
                "fine",
                "1 of 3 entries have no completions/clipped_ratio: nothing was generated in them, "
                "or they are cut",
                "",
            ),
        ),
        (
            entries([None] * 2, reward=0.5),
            (
                "unknown",
                "completions/clipped_ratio is in none of 2 entries, and there is no completions/* "
                "at all: TRL logs it from 0.17 on",
                "update TRL, or add a TruncationGuardCallback",
            ),
        ),
        (
            entries([None] * 2, mean_length=5.0),
            (
                "unknown",
                "completions/clipped_ratio is in none of 2 entries, and there is only a mean "
                "length: TRL logs it from 0.17 on",
                "update TRL, or add a TruncationGuardCallback",
            ),
        ),
    ],
)
def test_metrics_that_are_missing(training: list[LogEntry], expected: tuple[str, str, str]) -> None:
    assert answer(trace(training), "metrics-missing") == expected
    assert "metrics-missing" not in found(trace(training, source="record"))
