from __future__ import annotations

import copy
import json
import pickle
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from truncation_guard import LengthProfile, LengthSample, LimitCost

ANSWERS = LengthProfile(LengthSample(range(1, 101)), "reference", column="answer")
CUT = LengthProfile(
    LengthSample([40] * 60 + [100] * 36 + [128] * 4, [True] * 96 + [False] * 4),
    "rollouts",
    limit=64,
    longest_prompt=30,
    notes=("One note.", "Another note."),
)
UNFINISHED = LengthProfile(LengthSample([40, 64, 64], [True, False, False]), "completions")


# --- figures ------------------------------------------------------------------------------------


def test_percentiles_are_nearest_ranks() -> None:
    assert ANSWERS.percentiles == {
        "p50": 50,
        "p75": 75,
        "p90": 90,
        "p95": 95,
        "p99": 99,
        "max": 100,
    }


def test_percentiles_behind_the_cuts_are_none() -> None:
    assert CUT.percentiles == {
        "p50": 40,
        "p75": 100,
        "p90": 100,
        "p95": 100,
        "p99": None,
        "max": None,
    }
    assert CUT.share_truncated == 0.04
    assert ANSWERS.share_truncated == 0.0


def test_a_row_of_the_table_says_what_a_limit_holds_and_costs() -> None:
    # Under 64 tokens: 60 of 40 and 40 of 64; under 128: 60 of 40, 36 of 100, 4 of 128.
    assert CUT.table([128, 64]) == [
        LimitCost(64, pytest.approx(0.6), pytest.approx(49.6), pytest.approx(1.0)),
        LimitCost(128, pytest.approx(0.96), pytest.approx(65.12), pytest.approx(65.12 / 49.6)),
    ]
    assert CUT.table([256]) == [LimitCost(256, None, None, None)]
    assert ANSWERS.table([50]) == [LimitCost(50, pytest.approx(0.5), pytest.approx(37.75), None)]
    assert CUT.table([64], relative_to=128)[0].cost == pytest.approx(49.6 / 65.12)


def test_the_table_shows_powers_of_two_the_current_limit_and_those_that_hold_a_coverage() -> None:
    assert [row.limit for row in CUT.table()] == [8, 16, 32, 64, 128]
    assert [row.limit for row in ANSWERS.table()] == [8, 16, 32, 64, 100, 128]
    assert [row.limit for row in replace(ANSWERS, limit=48).table()] == [
        8,
        16,
        32,
        48,
        64,
        100,
        128,
    ]
    assert [row.limit for row in UNFINISHED.table()] == [8, 16, 32, 64]


@pytest.mark.parametrize("limit", [0, -1, 1.5])
def test_limits_that_are_none_are_refused(limit: Any) -> None:
    for name, arguments in (
        ("limit", {"limits": [limit]}),
        ("relative_to", {"relative_to": limit}),
    ):
        with pytest.raises(ValueError, match=name) as error:
            CUT.table(**arguments)
        assert str(error.value) == (
            f"`{name}` must be an integer of at least 1, got {limit!r}. Pass a number of tokens."
        )


def test_completions_without_a_token_need_no_limit_of_their_own() -> None:
    nothing = LengthProfile(LengthSample([0, 0]), "rollouts", limit=0)
    assert nothing.table() == []
    assert "max_completion_length=64" in str(nothing)
    assert [row.limit for row in replace(nothing, sample=LengthSample([0, 5])).table()] == [5, 64]


@pytest.mark.parametrize("number", [0, -1])
def test_a_histogram_has_a_bin(number: int) -> None:
    with pytest.raises(ValueError, match="`number` must be an integer of at least 1"):
        CUT.bins(number)


def test_a_share_that_is_not_all_does_not_look_like_all() -> None:
    nearly = LengthProfile(LengthSample.from_histograms({10: 99_999, 500: 1}, {}), "rollouts")
    rows = [line.split() for line in str(nearly).splitlines()]
    assert ["256", "more", "than", "99.9%", "10"] in rows
    assert ["500", "100%", "10"] in rows


def test_a_limit_that_is_capped_does_not_claim_the_coverage() -> None:
    text = " ".join(str(in_a_window(LengthSample([50] * 9), 60, 20)).split())
    assert (
        "max_completion_length=40 is the most that is allowed, and short of a coverage of 95% "
        "(observed): 95% of 9 completions are at most 50 tokens long, which is the longest of so "
        "few; capped at 40 tokens, which holds 0% (the context window" in text
    )


def test_the_dict_is_json_and_holds_everything() -> None:
    found = json.loads(json.dumps(CUT.to_dict(0.5, 1)))
    assert set(found) == {
        "source",
        "column",
        "completions",
        "truncated",
        "share_truncated",
        "skipped",
        "limit",
        "longest",
        "longest_prompt",
        "context_window",
        "percentiles",
        "histogram",
        "table",
        "recommendation",
        "notes",
    }
    assert (found["completions"], found["truncated"], found["longest"]) == (100, 4, 128)
    assert found["percentiles"] == CUT.percentiles
    assert sum(part["ended"] for part in found["histogram"]) == 96
    assert [row["limit"] for row in found["table"]] == [8, 16, 32, 64, 128]
    assert found["recommendation"]["max_completion_length"] == 40
    assert found["notes"] == ["One note.", "Another note."]
    assert UNFINISHED.to_dict()["recommendation"]["max_completion_length"] is None


def test_a_profile_is_a_value() -> None:
    with pytest.raises(FrozenInstanceError):
        CUT.limit = 8  # type: ignore[misc]
    assert str(pickle.loads(pickle.dumps(CUT))) == str(copy.deepcopy(CUT)) == str(CUT)


# --- recommendations ----------------------------------------------------------------------------


def in_a_window(lengths: LengthSample, window: int, prompt: int | None) -> LengthProfile:
    return LengthProfile(lengths, "rollouts", longest_prompt=prompt, context_window=window)


def test_the_longest_prompt_finds_its_room_in_the_window_as_in_case_9() -> None:
    profile = in_a_window(LengthSample([3500] * 100), 4096, 1024)
    recommendation = profile.recommend(0.95)
    assert recommendation.max_completion_length == 3072
    assert recommendation.reason == (
        "95% of 100 completions are at most 3500 tokens long; capped at 3072 tokens, which "
        "holds 0% (the context window of 4096 tokens leaves 3072 beside the longest prompt of 1024)"
    )


def test_a_prompt_that_fills_the_window_is_an_error() -> None:
    profile = in_a_window(LengthSample([100]), 2560, 3353)
    with pytest.raises(ValueError, match="fills") as error:
        profile.recommend()
    assert str(error.value) == (
        "The longest prompt of 3353 tokens fills the context window of 2560. Leave out or shorten "
        "such prompts."
    )


@pytest.mark.parametrize(
    ("max_length", "limit", "end"),
    [
        (None, 128, "at most 95 tokens long"),
        (1000, 128, "at most 95 tokens long"),
        (100, 100, "; capped at max_length=100"),
    ],
)
def test_a_window_with_room_enough_changes_nothing(
    max_length: int | None, limit: int, end: str
) -> None:
    profile = in_a_window(LengthSample(range(1, 101)), 4096, 1024)
    recommendation = profile.recommend(max_length=max_length)
    assert recommendation.max_completion_length == limit
    assert recommendation.reason.endswith(end)


def test_the_tighter_of_two_bounds_counts() -> None:
    profile = in_a_window(LengthSample([500] * 9), 300, 100)
    assert profile.recommend(max_length=250).max_completion_length == 200
    assert profile.recommend(max_length=150).max_completion_length == 150


@pytest.mark.parametrize(("window", "prompt"), [(None, 1024), (4096, None)])
def test_a_window_needs_a_prompt_to_bound_anything(window: Any, prompt: Any) -> None:
    profile = in_a_window(LengthSample([5000]), window, prompt)
    assert profile.recommend().max_completion_length == 5056


def test_what_is_not_identified_is_not_capped_either() -> None:
    unfinished = replace(UNFINISHED, longest_prompt=10, context_window=50)
    assert unfinished.recommend().max_completion_length is None


# --- what a reader sees -------------------------------------------------------------------------


def test_the_repr_is_short() -> None:
    assert repr(CUT) == (
        "LengthProfile(source='rollouts', column=None, completions=100, truncated=4, p50=40, "
        "p95=100)"
    )


def test_print_shows_percentiles_histogram_limits_and_the_conclusion() -> None:
    assert str(CUT).splitlines() == [
        "100 rollouts of the model, lengths in tokens, 4% truncated, longest prompt 30",
        "",
        " p50   p75   p90   p95     p99     max",
        " ─────────────────────────────────────",
        "  40   100   100   100   > 128   > 128",
        "",
        "     33-40          ######################################## 60",
        "     97-104         ######################## 36",
        "    121-128     cut ### 4",
        "",
        " limit   completions covered   tokens per completion   cost relative to 64",
        " ─────────────────────────────────────────────────────────────────────────",
        "     8                    0%                       8                  0.16",
        "    16                    0%                      16                  0.32",
        "    32                    0%                      32                  0.65",
        "    64                   60%                      50                  1.00",
        "   128                   96%                      65                  1.31",
        "",
        "max_completion_length=128 for a coverage of 95% (observed): 95% of 100 completions are at "
        "most 100",
        "tokens long.",
        "Note: One note.",
        "Note: Another note.",
    ]


def test_print_leaves_out_what_there_is_not() -> None:
    lines = str(replace(ANSWERS, skipped=3)).splitlines()
    assert (
        lines[0]
        == "100 reference answers (answer), lengths in tokens, 3 rows without an answer skipped"
    )
    assert " limit   completions covered   tokens per completion" in lines


def test_print_says_what_is_unknown_and_that_there_is_no_limit() -> None:
    text = str(replace(UNFINISHED, limit=128))
    assert "3 completions of a run, lengths in tokens, 66.67% truncated" in text
    assert ["128", "unknown", "unknown", "unknown"] in [line.split() for line in text.splitlines()]
    assert " ".join(text.split()).endswith(
        "no max_completion_length for a coverage of 95% (not identified): the length that holds "
        "95% of 3 completions is above 64 tokens and not identified: 1 of them ended; sample more "
        "of them, at a larger limit."
    )


def test_a_note_in_brackets_is_no_markup() -> None:
    assert "Note: see [red]here" in str(replace(ANSWERS, notes=("see [red]here",)))


def test_a_notebook_gets_html_and_text() -> None:
    bundle = CUT._repr_mimebundle_(include=None, exclude=None)
    assert bundle["text/plain"] == str(CUT)
    assert bundle["text/html"].startswith("<pre ")
    assert ">100 rollouts of the model" in bundle["text/html"]
    assert bundle["text/html"].rstrip().endswith("</pre>")
    assert "One note." in bundle["text/html"]


def test_rich_prints_it_as_tables() -> None:
    from rich.console import Console

    console = Console(width=100, color_system=None)
    with console.capture() as captured:
        console.print(CUT)
    assert "p95" in captured.get()
    assert "Note: One note." in captured.get()
