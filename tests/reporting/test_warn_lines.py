from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, get_args

import pytest
from support.batches import batch, groups

from truncation_guard.batch.counts import BatchCounts
from truncation_guard.lengths.histogram import LengthHistogram
from truncation_guard.lengths.recommendation import LimitAdvice
from truncation_guard.reporting.monitor import Code, TruncationFinding, TruncationMonitor
from truncation_guard.reporting.warn_lines import (
    histogram_text,
    plain_warn_line,
    summary_line,
    warn_line,
)

RAISE_TO_512 = (
    "raise max_completion_length (next try: 512), or size it with truncation_guard.profile_rollouts"
)
UNKNOWN = LimitAdvice(coverage=0.95, quantile=None, longest=256, recommended_limit=512)
KNOWN = LimitAdvice(coverage=0.95, quantile=300, longest=300, recommended_limit=320)
HELD = LimitAdvice(coverage=0.5, quantile=200, longest=200, recommended_limit=None)


def finding(code: Code, counts: BatchCounts, **overrides: Any) -> TruncationFinding:
    figures: dict[str, Any] = {
        "code": code,
        "share": counts.share,
        "counts": counts,
        "window": counts.lengths,
        "lowest_share": 0.07,
        "over_window": False,
        "obstacle": None,
        "advice": None if overrides.get("obstacle") else UNKNOWN,
    }
    return TruncationFinding(**(figures | overrides))


def line(
    of: TruncationFinding, mode: Any = "downweight", weight: float = 0.0, reward: float = 0.0
) -> str:
    return warn_line(of, mode, weight, reward)


def cut_24_of_32(**overrides: Any) -> BatchCounts:
    """The batch of the design's example."""
    counts = groups(4, size=8, truncated=3, worst=8, all_truncated=3)
    return batch(24, **({"step": 12, "groups": counts} | overrides))


# --- each code's whole line ---------------------------------------------------------------------


STOP_TOKENS = (
    "before the trainer is built, add the missing token to "
    "model.generation_config.eos_token_id (with vLLM also to generation_kwargs: stop_token_ids); "
    "a longer max_completion_length does not help"
)
CONTEXT = (
    "shorten the prompts, or use a longer window (with vLLM: vllm_max_model_length); "
    "a longer max_completion_length does not help"
)
TOOL_ITERATIONS = (
    "raise max_tool_calling_iterations: the rounds of tool calls ran out, and "
    "a longer max_completion_length does not help"
)


def test_the_line_of_limit_ignored() -> None:
    counts = batch(ended={100: 29, 300: 2}, cut={410: 1}, causes={"limit": 1}, step=3)
    assert line(finding("limit-ignored", counts, obstacle="limit-ignored")) == (
        "[truncation-guard] WARN limit-ignored step=3 mode=downweight share=0.03125 "
        "completions=1/32 groups=0/8 worst=0/4 limit=256 | "
        "max_completion_length=256 is not obeyed by what writes the completions: 3 of 32 are "
        "longer, up to 410 tokens -> "
        "make the rollout function, the environment or generation_kwargs use "
        "trainer.max_completion_length, or set the limit to what they use"
    )


def test_the_line_of_stop_tokens_that_a_row_holds() -> None:
    counts = batch(
        4,
        of=4,
        cut={8: 4},
        limit=8,
        end_of_turn={"2 (<eot>)": 4},
        groups=groups(1, truncated=1, all_truncated=1, worst=4),
    )
    assert line(finding("stop-tokens", counts, obstacle="stop-tokens")) == (
        "[truncation-guard] WARN stop-tokens step=0 mode=downweight share=1 completions=4/4 "
        "groups=1/1 worst=4/4 limit=8 | "
        "4 of the 4 unfinished completions that were searched hold token 2 (<eot>), which looks "
        "like an end of turn, but generation only stops at 1 -> "
        "before the trainer is built, add the missing token to "
        "model.generation_config.eos_token_id (with vLLM also to generation_kwargs: "
        "stop_token_ids); a longer max_completion_length does not help"
    )


def test_the_line_of_stop_tokens_for_rows_that_ended_for_no_known_reason() -> None:
    counts = batch(of=8, limit=8, ended={3: 8}, stopped=8, stopped_unasked=8, stop_tokens=(1, 106))
    assert line(finding("stop-tokens", counts, obstacle="stop-tokens")) == (
        "[truncation-guard] WARN stop-tokens step=0 mode=downweight share=0 completions=0/8 "
        "groups=0/8 worst=0/4 limit=8 | "
        "8 of 8 completions ended below every limit on none of the stop tokens (1, 106), and "
        "nothing was asked for that could stop them -> "
        "before the trainer is built, add the missing token to "
        "model.generation_config.eos_token_id (with vLLM also to generation_kwargs: "
        "stop_token_ids); a longer max_completion_length does not help"
    )


def test_the_line_of_stop_tokens_names_every_token_and_both_reasons() -> None:
    counts = batch(
        of=32,
        stopped=24,
        stopped_unasked=2,
        searched=12,
        end_of_turn={"2 (<eot>)": 7, "3 (<end>)": 3},
        stop_tokens=(1, 5),
    )
    fact = line(finding("stop-tokens", counts)).split(" | ")[1].split(" -> ")[0]
    assert fact == (
        "7 of the 12 unfinished completions that were searched hold token 2 (<eot>), which looks "
        "like an end of turn, but generation only stops at 1, 5; "
        "3 of the 12 unfinished completions that were searched hold token 3 (<end>), which looks "
        "like an end of turn, but generation only stops at 1, 5; "
        "2 of 32 completions ended below every limit on none of the stop tokens (1, 5), and "
        "nothing was asked for that could stop them"
    )


def test_the_line_of_context() -> None:
    counts = batch(6, of=24, causes={"limit": 1, "context": 5}, groups=groups(6, truncated=4))
    assert line(finding("context", counts, obstacle="context")) == (
        "[truncation-guard] WARN context step=0 mode=downweight share=0.25 completions=6/24 "
        "groups=4/6 worst=0/4 limit=256 causes=limit:1,context:5 | "
        "5 of 24 completions were cut off because prompt and completion fill the context window "
        "of 4096 tokens (their advantages are set to 0) -> "
        "shorten the prompts, or use a longer window (with vLLM: vllm_max_model_length); a longer "
        "max_completion_length does not help"
    )


def test_the_line_of_all_truncated() -> None:
    assert line(finding("all-truncated", cut_24_of_32())) == (
        "[truncation-guard] WARN all-truncated step=12 mode=downweight share=0.75 "
        "completions=24/32 groups=3/4 worst=8/8 limit=256 | "
        "all completions of 3 of 4 groups were cut off at max_completion_length=256 before they "
        "finished (their advantages are set to 0): such a group cannot show the model what a "
        "finished answer is worth; the 95th percentile of the length is above 256 and not "
        "identified -> "
        "raise max_completion_length (next try: 512), or size it with "
        "truncation_guard.profile_rollouts"
    )


def test_the_line_of_truncated_at_once() -> None:
    assert line(finding("truncated", cut_24_of_32())) == (
        "[truncation-guard] WARN truncated step=12 mode=downweight share=0.75 "
        "completions=24/32 groups=3/4 worst=8/8 limit=256 | "
        "75% of completions were cut off at max_completion_length=256 before they finished (their "
        "advantages are set to 0); the 95th percentile of the length is above 256 and not "
        "identified -> "
        "raise max_completion_length (next try: 512), or size it with "
        "truncation_guard.profile_rollouts"
    )


def test_the_line_of_truncated_over_the_window() -> None:
    of = finding(
        "truncated",
        batch(2, of=64, step=7),
        share=0.0625,
        window=LengthHistogram({100: 480}, {256: 32}),
        over_window=True,
    )
    assert line(of) == (
        "[truncation-guard] WARN truncated step=7 mode=downweight share=0.03125 completions=2/64 "
        "groups=0/8 worst=0/4 limit=256 window_share=0.0625 window_completions=32/512 | "
        "6.25% of the last 512 completions were cut off at max_completion_length=256 before they "
        "finished (their advantages are set to 0); the 95th percentile of the length is above 256 "
        "and not identified -> "
        "raise max_completion_length (next try: 512), or size it with "
        "truncation_guard.profile_rollouts"
    )


def test_the_line_of_truncated_in_an_evaluation() -> None:
    counts = batch(16, of=64, training=False, groups=groups(64, truncated=16, worst=1, size=1))
    assert line(finding("truncated", counts, advice=KNOWN), mode="exclude") == (
        "[truncation-guard] WARN truncated step=0 mode=exclude split=eval share=0.25 "
        "completions=16/64 groups=16/64 worst=1/1 limit=256 | "
        "25% of completions were cut off at max_completion_length=256 before they finished "
        "(evaluation is only measured); the 95th percentile of the length is 300 -> "
        "raise max_completion_length to 320"
    )


def test_the_line_of_context_in_an_evaluation() -> None:
    counts = batch(8, of=64, training=False, causes={"limit": 0, "context": 8})
    assert line(finding("context", counts, obstacle="context"), mode="exclude") == (
        "[truncation-guard] WARN context step=0 mode=exclude split=eval share=0.125 "
        "completions=8/64 groups=0/8 worst=0/4 limit=256 causes=context:8 | "
        "8 of 64 completions were cut off because prompt and completion fill the context window "
        "of 4096 tokens (evaluation is only measured) -> "
        "shorten the prompts, or use a longer window (with vLLM: vllm_max_model_length); a longer "
        "max_completion_length does not help"
    )


def test_the_line_of_truncated_in_the_tool_loop() -> None:
    counts = batch(
        8,
        of=32,
        cut={60: 8},
        causes={"limit": 1, "tool": 7},
        tool_iterations=7,
        groups=groups(8, truncated=8, worst=1),
    )
    assert line(finding("truncated", counts, obstacle="tool-iterations"), mode="observe") == (
        "[truncation-guard] WARN truncated step=0 mode=observe share=0.25 completions=8/32 "
        "groups=8/8 worst=1/4 limit=256 causes=limit:1,tool:7 | "
        "25% of completions were cut off in the tool loop before they finished (nothing is changed "
        "about them) -> "
        "raise max_tool_calling_iterations: the rounds of tool calls ran out, and a longer "
        "max_completion_length does not help"
    )


def test_the_line_of_truncated_without_a_limit() -> None:
    counts = batch(8, of=32, limit=None, causes={"limit": 0, "context": 4, "tool": 4})
    assert line(finding("truncated", counts, advice=None)) == (
        "[truncation-guard] WARN truncated step=0 mode=downweight share=0.25 completions=8/32 "
        "groups=0/8 worst=0/4 limit=None causes=context:4,tool:4 | "
        "25% of completions were cut off before they finished (their "
        "advantages are set to 0) -> "
        "set max_completion_length"
    )


def test_the_line_of_no_signal() -> None:
    counts = batch(10, of=40, groups=groups(10, truncated=4, truncated_without_signal=3, worst=4))
    assert line(finding("no-signal", counts), mode="exclude") == (
        "[truncation-guard] WARN no-signal step=0 mode=exclude share=0.25 completions=10/40 "
        "groups=4/10 worst=4/4 limit=256 | "
        "3 of 10 groups have truncated completions (they are left out of the baseline and of the "
        "loss) and no advantage left, so that these groups teach nothing; the 95th percentile of "
        "the length is above 256 and not identified -> "
        "raise max_completion_length (next try: 512), or size it with "
        "truncation_guard.profile_rollouts; where rewards differ at all, a larger "
        "num_generations leaves more survivors"
    )


def test_the_line_of_rising() -> None:
    of = finding(
        "rising",
        batch(8, of=32, step=90, reward=0.123456),
        share=0.2,
        window=LengthHistogram({100: 408}, {256: 102}),
        over_window=True,
    )
    assert line(of) == (
        "[truncation-guard] WARN rising step=90 mode=downweight share=0.25 completions=8/32 "
        "groups=0/8 worst=0/4 limit=256 window_share=0.2 window_completions=102/510 | "
        "the share of truncated completions has risen from 7% to 20% while their advantages are "
        "set to 0: nothing pushes back any more (truncation_guard/reward is 0.1235); the 95th "
        "percentile of the length is above 256 and not identified -> "
        "raise max_completion_length (next try: 512), or size it with "
        "truncation_guard.profile_rollouts; or use mode='penalize', or mode='downweight' "
        "with a truncated_weight above 0"
    )


def test_the_line_of_rising_without_a_reward() -> None:
    """Every reward function abstained, or gave infinity."""
    of = finding("rising", batch(8, of=32, reward=None), advice=KNOWN)
    assert line(of, mode="exclude") == (
        "[truncation-guard] WARN rising step=0 mode=exclude share=0.25 completions=8/32 "
        "groups=0/8 worst=0/4 limit=256 | "
        "the share of truncated completions has risen from 7% to 25% while they are left out "
        "of the baseline and of the loss: nothing pushes back any more; the 95th percentile of the "
        "length is 300 -> "
        "raise max_completion_length to 320; or use mode='penalize', or mode='downweight' with a "
        "truncated_weight above 0"
    )


@pytest.mark.parametrize("code", get_args(Code))
def test_every_code_has_a_line(code: Code) -> None:
    counts = batch(8, ended={100: 23, 300: 1}, end_of_turn={"2 (<eot>)": 1})
    assert line(finding(code, counts)).startswith(f"[truncation-guard] WARN {code} step=0 ")


# --- what is done about the truncated completions -----------------------------------------------


@pytest.mark.parametrize(
    ("mode", "weight", "reward", "effect"),
    [
        ("observe", 0.0, 0.0, "nothing is changed about them"),
        ("downweight", 0.0, 0.0, "their advantages are set to 0"),
        ("downweight", 0.5, 0.0, "their advantages are multiplied by 0.5"),
        ("downweight", 1.0, 0.0, "their advantages are multiplied by 1"),
        ("exclude", 0.0, 0.0, "they are left out of the baseline and of the loss"),
        ("penalize", 0.0, 0.0, "each of their rewards is at most 0"),
        ("penalize", 0.0, -0.25, "each of their rewards is at most -0.25"),
    ],
)
@pytest.mark.parametrize("code", ["truncated", "all-truncated", "context", "no-signal"])
def test_the_effect_of_the_mode_is_said(
    code: Code, mode: str, weight: float, reward: float, effect: str
) -> None:
    counts = cut_24_of_32(causes={"limit": 12, "context": 12})
    text = line(finding(code, counts), mode, weight, reward)
    assert f" mode={mode} " in text
    assert f"({effect})" in text


# --- the advice about the limit -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("advice", "end"),
    [
        (
            UNKNOWN,
            "; the 95th percentile of the length is above 256 and not identified -> "
            "raise max_completion_length (next try: 512), or size it with "
            "truncation_guard.profile_rollouts",
        ),
        (
            LimitAdvice(coverage=0.75, quantile=None, longest=40, recommended_limit=512),
            "; the 75th percentile of the length is above 40 and not identified -> "
            "raise max_completion_length (next try: 512), or size it with "
            "truncation_guard.profile_rollouts",
        ),
        (
            KNOWN,
            "; the 95th percentile of the length is 300 -> raise max_completion_length to 320",
        ),
        (
            HELD,
            "; the 50th percentile of the length is 200 -> "
            "max_completion_length=256 holds the coverage of 0.5 that was asked for: raise it all "
            "the same, or raise warn_above",
        ),
        (None, " -> set max_completion_length"),
    ],
)
@pytest.mark.parametrize(
    ("code", "before"),
    [
        ("truncated", "(their advantages are set to 0)"),
        ("all-truncated", "what a finished answer is worth"),
    ],
)
def test_fact_and_remedy_follow_from_the_lengths(
    code: Code, before: str, advice: LimitAdvice | None, end: str
) -> None:
    assert line(finding(code, cut_24_of_32(), advice=advice)).endswith(before + end)


@pytest.mark.parametrize(
    ("obstacle", "remedy"),
    [
        ("stop-tokens", STOP_TOKENS),
        ("context", CONTEXT),
        ("tool-iterations", TOOL_ITERATIONS),
    ],
)
@pytest.mark.parametrize(
    ("code", "after"),
    [
        ("stop-tokens", ""),
        ("context", ""),
        ("truncated", ""),
        ("all-truncated", ""),
        (
            "no-signal",
            "; where rewards differ at all, a larger num_generations leaves more survivors",
        ),
        (
            "rising",
            "; or use mode='penalize', or mode='downweight' with a truncated_weight above 0",
        ),
    ],
)
def test_an_obstacle_has_the_same_remedy_in_every_line(
    code: Code, after: str, obstacle: str, remedy: str
) -> None:
    counts = cut_24_of_32(end_of_turn={"2 (<eot>)": 24})
    fact, found = line(finding(code, counts, obstacle=obstacle)).split(" -> ")
    assert found == remedy + after
    assert "percentile" not in fact


@pytest.mark.parametrize(
    ("coverage", "ordinal"),
    [
        (0.95, "95th"),
        (0.5, "50th"),
        (0.91, "91st"),
        (0.92, "92nd"),
        (0.93, "93rd"),
        (0.99, "99th"),
        (0.11, "11th"),
        (0.12, "12th"),
        (0.13, "13th"),
        (0.29, "29th"),  # 28.999999999999996 in floating point
        (0.01, "1st"),
        (0.999, "99.9th"),
        (0.991, "99.1th"),
        (1.0, "100th"),
        (0.21, "21st"),
        (0.03, "3rd"),
        (0.115, "11.5th"),
    ],
)
def test_the_percentile_is_named_as_an_ordinal(coverage: float, ordinal: str) -> None:
    advice = LimitAdvice(coverage=coverage, quantile=None, longest=256, recommended_limit=512)
    assert f"; the {ordinal} percentile of" in line(finding("truncated", batch(8), advice=advice))


# --- what cut them ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("causes", "figure", "where"),
    [
        ({"limit": 24}, None, "at max_completion_length=256"),
        (
            {"limit": 14, "context": 7, "tool": 3},
            "limit:14,context:7,tool:3",
            "at max_completion_length=256",
        ),
        ({"limit": 3, "context": 7, "tool": 14}, "limit:3,context:7,tool:14", "in the tool loop"),
        ({"limit": 4, "context": 20}, "limit:4,context:20", "by the context window"),
        ({"limit": 0, "context": 24}, "context:24", "by the context window"),
        ({"limit": 0, "tool": 24}, "tool:24", "in the tool loop"),
    ],
)
def test_the_causes_are_listed_where_the_limit_was_not_the_only_one(
    causes: Mapping[str, int], figure: str | None, where: str
) -> None:
    for code, subject in (
        ("truncated", "75% of completions"),
        ("all-truncated", "all completions of 3 of 4 groups"),
    ):
        text = line(finding(code, cut_24_of_32(causes=causes)))
        assert re.findall(r" causes=(\S+) ", text) == ([] if figure is None else [figure])
        assert f" | {subject} were cut off {where} before they finished" in text


@pytest.mark.parametrize(
    ("truncated", "of", "number", "percent"),
    [
        (1, 3, "0.3333", "33.33"),
        (2, 32, "0.0625", "6.25"),
        (4, 8, "0.5", "50"),
        (8, 8, "1", "100"),
        (5, 512, "0.009766", "0.9766"),
        (4099, 4100, "0.9998", "99.98"),
    ],
)
def test_shares_have_four_digits(truncated: int, of: int, number: str, percent: str) -> None:
    window = batch(truncated, of).lengths
    text = line(finding("truncated", batch(8), share=window.share, window=window, over_window=True))
    assert f" window_share={number} window_completions={truncated}/{of} " in text
    assert f" | {percent}% of the last {of} completions were cut off" in text


# --- from counts to lines: the monitor and the wording together ---------------------------------


def lines_on(counts: BatchCounts, **settings: Any) -> dict[str, str]:
    """Every line that a batch gets, the next one while those before it are cooling down."""
    defaults: dict[str, Any] = {
        "warn_above": 0.05,
        "window": 512,
        "cooldown": 10,
        "coverage": 0.95,
        "nothing_pushes_back": False,
    }
    watch = TruncationMonitor(**(defaults | settings))
    lines: dict[str, str] = {}
    while (found := watch.update(counts)) is not None:
        lines[found.code] = line(found)
    return lines


@pytest.mark.parametrize(
    ("all_truncated", "codes"),
    [(0, ["context", "truncated"]), (8, ["context", "all-truncated", "truncated"])],
)
def test_where_the_context_window_cuts_no_line_advises_to_raise_the_limit(
    all_truncated: int, codes: list[str]
) -> None:
    """The line before it has just said that this does not help."""
    counts = batch(
        32,
        cut={50: 32},
        causes={"limit": 0, "context": 32},
        groups=groups(8, truncated=8, all_truncated=all_truncated, worst=4),
    )
    lines = lines_on(counts)
    assert list(lines) == codes
    assert {text.split(" -> ")[1] for text in lines.values()} == {CONTEXT}
    assert "were cut off by the context window before they finished" in lines["truncated"]


def test_where_a_stop_token_is_missing_no_line_advises_to_raise_the_limit() -> None:
    """Case 2: all rows hold an end of turn and run on to the limit."""
    counts = batch(
        32,
        end_of_turn={"2 (<eot>)": 32},
        groups=groups(8, truncated=8, all_truncated=8, worst=4),
    )
    lines = lines_on(counts)
    assert list(lines) == ["stop-tokens", "all-truncated", "truncated"]
    assert {text.split(" -> ")[1] for text in lines.values()} == {STOP_TOKENS}


@pytest.mark.parametrize(
    ("iterations", "remedy"),
    [
        (0, RAISE_TO_512),
        (12, RAISE_TO_512),
        (13, TOOL_ITERATIONS),
        (24, TOOL_ITERATIONS),
    ],
)
def test_rounds_of_tool_calls_that_ran_out_are_not_cured_by_the_limit(
    iterations: int, remedy: str
) -> None:
    counts = cut_24_of_32(causes={"limit": 0, "tool": 24}, tool_iterations=iterations)
    lines = lines_on(counts)
    assert list(lines) == ["all-truncated", "truncated"]
    assert {text.split(" -> ")[1] for text in lines.values()} == {remedy}


@pytest.mark.parametrize(
    ("cut", "causes", "bound"),
    [
        ({256: 24}, {"limit": 24}, "above 256"),
        ({50: 12, 256: 12}, {"limit": 12, "tool": 12}, "above 256"),
    ],
)
def test_a_percentile_is_only_called_above_the_limit_where_the_limit_cut(
    cut: dict[int, int], causes: Mapping[str, int], bound: str
) -> None:
    lines = lines_on(cut_24_of_32(causes=causes, cut=cut))
    assert f"; the 95th percentile of the length is {bound} and not" in lines["truncated"]


def test_a_line_over_the_window_does_not_blame_the_limit_for_what_the_tool_loop_cut() -> None:
    watch = TruncationMonitor(
        warn_above=0.05, window=512, cooldown=10, coverage=0.95, nothing_pushes_back=False
    )
    assert not watch.update(batch(5, cut={50: 5}, causes={"limit": 0, "tool": 5}))
    over_window = watch.update(batch(0))
    assert over_window is not None
    assert "at max_completion_length" not in line(over_window)


@pytest.mark.parametrize("code", ["context", "truncated"])
@pytest.mark.parametrize("mode", ["observe", "downweight", "exclude", "penalize"])
def test_an_evaluation_does_not_say_that_anything_was_changed(code: Code, mode: str) -> None:
    counts = batch(8, training=False, causes={"limit": 0, "context": 8})
    text = line(finding(code, counts), mode)
    assert re.findall(r"\(([^()]+)\)(?:;| ->)", text) == ["evaluation is only measured"]


@pytest.mark.parametrize(
    ("advice", "remedy"),
    [
        (
            UNKNOWN,
            "raise generation_kwargs['max_new_tokens'] (next try: 512), or size it with "
            "truncation_guard.profile_rollouts",
        ),
        (KNOWN, "raise generation_kwargs['max_new_tokens'] to 320"),
        (
            HELD,
            "generation_kwargs['max_new_tokens']=256 holds the coverage of 0.5 that was asked for: "
            "raise it all the same, or raise warn_above",
        ),
        (None, "set generation_kwargs['max_new_tokens']"),
    ],
)
def test_the_limit_has_the_name_of_the_setting_that_holds_it(
    advice: LimitAdvice | None, remedy: str
) -> None:
    name = "generation_kwargs['max_new_tokens']"
    counts = cut_24_of_32(limit_name=name)
    fact, found = line(finding("truncated", counts, advice=advice)).split(" -> ")
    assert f" | 75% of completions were cut off at {name}=256 before they finished" in fact
    assert found == remedy
    ignored = batch(ended={300: 32}, limit_name=name)
    text = line(finding("limit-ignored", ignored, obstacle="limit-ignored"))
    assert f" | {name}=256 is not obeyed by what writes the completions: 32 of 32" in text


def test_where_the_limit_is_ignored_no_line_says_that_it_cut() -> None:
    counts = batch(8, ended={100: 20}, cut={256: 4, 300: 8}, causes={"limit": 12})
    lines = lines_on(counts)
    assert list(lines) == ["limit-ignored", "truncated"]
    assert lines["truncated"] == (
        "[truncation-guard] WARN truncated step=0 mode=downweight share=0.375 completions=12/32 "
        "groups=0/8 worst=0/4 limit=256 | "
        "37.5% of completions were cut off before they finished (their advantages are set to 0) -> "
        "make the rollout function, the environment or generation_kwargs use "
        "trainer.max_completion_length, or set the limit to what they use"
    )


def test_no_line_speaks_of_a_limit_of_none() -> None:
    """Over a window, the newest batch may hold no truncated completion at all."""
    counts = batch(0, limit=None)
    text = line(finding("truncated", counts, share=0.2, over_window=True, advice=None))
    assert " | 20% of the last 32 completions were cut off before they finished (" in text
    assert "max_completion_length=None" not in text


# --- grammar ------------------------------------------------------------------------------------

GRAMMAR = re.compile(
    r"\[truncation-guard\] WARN (?P<code>[a-z-]+) step=\d+ mode=\w+"
    r"(?: [a-z_]+=[^\s|]+)* \| (?P<fact>.+) -> (?P<remedy>.+)"
)


@pytest.mark.parametrize("code", get_args(Code))
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("over_window", [True, False])
@pytest.mark.parametrize(
    "why",
    [
        {"advice": UNKNOWN},
        {"advice": KNOWN},
        {"advice": HELD},
        {"advice": None},
        {"obstacle": "stop-tokens"},
        {"obstacle": "context"},
        {"obstacle": "tool-iterations"},
    ],
    ids=str,
)
def test_every_line_follows_the_grammar(
    code: Code, training: bool, over_window: bool, why: dict[str, Any]
) -> None:
    counts = batch(
        8,
        ended={100: 23, 300: 1},
        training=training,
        causes={"limit": 4, "context": 2, "tool": 2},
        end_of_turn={"2 (<eot>)": 1},
        reward=0.5,
    )
    text = line(finding(code, counts, over_window=over_window, **why), mode="exclude")
    match = GRAMMAR.fullmatch(text)
    assert match is not None
    assert match["code"] == code
    assert text.count(" -> ") == 1
    assert ("split=eval" in text) == (not training)
    assert ("window_share=" in text) == ("window_completions=" in text) == over_window


def test_a_line_break_in_the_name_of_a_token_does_not_break_the_line() -> None:
    name = "2 (<\n\r\x0b\x0c\x1c\x85\u2028\u2029end>)"
    text = line(finding("stop-tokens", batch(8, end_of_turn={name: 8})))
    assert len(text.splitlines()) == 1
    assert "token 2 (< end>), which" in text


def test_a_plain_line_takes_any_figures_and_none() -> None:
    assert plain_warn_line("measured-only", 3, "observe", {}, "a\nfact", "a  remedy") == (
        "[truncation-guard] WARN measured-only step=3 mode=observe | a fact -> a remedy"
    )
    assert plain_warn_line("x", 3, "observe", {"a": 1, "b": "2/3"}, "fact", "remedy") == (
        "[truncation-guard] WARN x step=3 mode=observe a=1 b=2/3 | fact -> remedy"
    )


# --- the end of a training ----------------------------------------------------------------------


def test_the_summary_of_a_training() -> None:
    total = batch(
        24, of=96, stopped=2, groups=groups(24, truncated=9, all_truncated=4, without_signal=5)
    )
    assert summary_line(total, 40, UNKNOWN) == (
        "[truncation-guard] training ended at step 40: 24 of 96 completions were truncated (25%), "
        "2 stopped without a stop token, 4 of 24 groups were truncated as a whole, groups without "
        "signal: 5, the 95th percentile of the length is above 256 and not identified"
    )


def test_the_summary_leaves_out_what_is_not_known() -> None:
    total = batch(0, of=96, limit=None, groups=groups(24, without_signal=None))
    assert summary_line(total, 1, None) == (
        "[truncation-guard] training ended at step 1: 0 of 96 completions were truncated (0%), "
        "0 stopped without a stop token, 0 of 24 groups were truncated as a whole"
    )


@pytest.mark.parametrize(
    ("advice", "end"),
    [
        (KNOWN, ", the 95th percentile of the length is 300"),
        (HELD, ", the 50th percentile of the length is 200"),
        (
            LimitAdvice(coverage=0.9, quantile=None, longest=40, recommended_limit=512),
            ", the 90th percentile of the length is above 40 and not identified",
        ),
    ],
)
def test_the_summary_quotes_what_is_known_of_the_percentile(advice: LimitAdvice, end: str) -> None:
    assert summary_line(batch(7, of=96), 1, advice) == (
        "[truncation-guard] training ended at step 1: 7 of 96 completions were truncated (7.292%), "
        "0 stopped without a stop token, 0 of 8 groups were truncated as a whole, groups without "
        f"signal: 0{end}"
    )


# --- the histogram ------------------------------------------------------------------------------


def test_the_histogram_tells_the_cut_from_the_others() -> None:
    counts = batch(ended={1: 1, 20: 4, 21: 4, 240: 8}, cut={240: 16, 7: 2})
    assert histogram_text(counts.lengths).splitlines() == [
        "[truncation-guard] lengths of 35 completions in tokens",
        "      1-20          ############# 5",
        "      1-20      cut ##### 2",
        "     21-40          ########## 4",
        "    221-240         #################### 8",
        "    221-240     cut ######################################## 16",
    ]


def parsed(text: str) -> list[tuple[int, int, bool, int, int]]:
    """First and last length, whether cut, length of the bar, number: of each line."""
    rows = re.findall(r"(?m)^ *(\d+)-(\d+) +(cut)? *(#+) (\d+)$", text)
    return [(int(a), int(b), bool(cut), len(bar), int(n)) for a, b, cut, bar, n in rows]


@pytest.mark.parametrize("longest", [1, 8, 12, 13, 256, 257, 4096, 100_000])
def test_the_histogram_holds_every_completion_in_at_most_12_bins(longest: int) -> None:
    ended = {1 + (longest - 1) * i // 37: 1 + i % 3 for i in range(38)}
    counts = batch(ended=ended, cut={longest: 5})
    rows = parsed(histogram_text(counts.lengths))
    assert len(rows) == len(histogram_text(counts.lengths).splitlines()) - 1
    assert len({first for first, *_ in rows}) <= 12
    for first, last, is_cut, _, number in rows:
        lengths = counts.lengths
        within = lengths.truncated_at if is_cut else lengths.finished_at
        assert number == sum(n for length, n in within.items() if first <= length <= last)
    assert sum(number for *_, number in rows) == counts.completions
    assert max(bar for *_, bar, _ in rows) == 40


def test_a_completion_without_a_token_is_in_the_first_bin() -> None:
    rows = parsed(histogram_text(LengthHistogram({0: 3, 1: 1, 24: 1})))
    assert rows[0] == (1, 2, False, 40, 4)


def test_the_smallest_bin_still_shows_a_bar() -> None:
    rows = parsed(histogram_text(LengthHistogram({1: 1, 24: 100_000})))
    assert [(bar, number) for *_, bar, number in rows] == [(1, 1), (40, 100_000)]
