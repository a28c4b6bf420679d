"""Figures -> the answers of the checklist, both sides of every boundary, and their texts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.log_entries import FLAT, LIMIT, RISES, answer, entries, found, trace, verdict

from truncation_guard import LengthSample
from truncation_guard.diagnosis.measurements import measure
from truncation_guard.diagnosis.run import LogEntry, RunTrace
from truncation_guard.shares import percent


def test_the_checklist_is_answered_in_its_order() -> None:
    assert list(found(trace(entries([0.5] * 10, reward=FLAT)))) == [
        "pile-up",
        "default-limit",
        "limit-needed",
        "truncated",
        "warned",
        "no-signal",
        "reward",
        "guarded",
        "evaluation",
        "limit-unknown",
    ]


# --- 1. do lengths pile up? -----------------------------------------------------------------------


def test_a_pile_up_at_a_recorded_limit() -> None:
    assert answer(trace(entries([0.5] * 10), limit=LIMIT), "pile-up") == (
        "warning",
        "lengths pile up at 100 tokens: 50% of the completions were cut there at the end, and the "
        "longest has that length in 10 of 10 entries",
        "raise max_completion_length (how far: see limit-needed)",
    )


def test_a_pile_up_at_an_assumed_limit_says_so() -> None:
    assert answer(trace(entries([0.5] * 10)), "pile-up")[1] == (
        "lengths pile up at 100 tokens, which is assumed to be the limit: 50% of the completions "
        "were cut there at the end, and the longest has that length in 10 of 10 entries"
    )


@pytest.mark.parametrize(("ratio", "severity"), [(0.05, "fine"), (0.06, "warning")])
def test_a_pile_up_of_five_in_a_hundred_is_none(ratio: float, severity: str) -> None:
    assert answer(trace(entries([ratio] * 10)), "pile-up")[0] == severity


def test_no_pile_up() -> None:
    assert answer(trace(entries([0.0] * 10)), "pile-up") == (
        "fine",
        "lengths do not pile up at one value; the longest are 60 tokens long",
        "",
    )


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("log", "the log"),
        ("trainer_state", "the log_history"),
        ("tables", "a completions table"),
        ("record", "the record"),
    ],
)
def test_lengths_that_are_not_there_are_unknown(source: str, name: str) -> None:
    run = trace(entries([None] * 3, reward=0.5), source=source)
    assert answer(run, "pile-up") == (
        "unknown",
        f"the lengths of the completions are not in {name}",
        "add a TruncationGuardCallback: it records them",
    )


# --- 2. was the limit a default? ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "ratio", "expected"),
    [
        (
            256,
            0.5,
            (
                "warning",
                "the limit of 256 tokens is TRL's default (before TRL 1.12): it was chosen for no "
                "task",
                "set max_completion_length to what the task needs",
            ),
        ),
        (
            512,
            0.5,
            (
                "warning",
                "the limit of 512 tokens is TRL's default (since TRL 1.12): it was chosen for no "
                "task",
                "set max_completion_length to what the task needs",
            ),
        ),
        (
            512,
            0.05,
            (
                "fine",
                "the limit of 512 tokens is TRL's default (since TRL 1.12), and holds what was "
                "written",
                "",
            ),
        ),
        (500, 0.5, ("fine", "the limit of 500 tokens is no default of TRL", "")),
    ],
)
def test_a_default_that_cuts(limit: int, ratio: float, expected: tuple[str, str, str]) -> None:
    run = trace([LogEntry(ratio=ratio, max_length=limit, mean_length=limit)] * 5, limit=limit)
    assert answer(run, "default-limit") == expected


def test_a_limit_that_nothing_hints_at() -> None:
    run = trace(entries([0.0] * 5))
    assert answer(run, "default-limit") == (
        "unknown",
        "whether the limit was a default is not known, nor is the limit",
        "",
    )
    assert answer(run, "limit-unknown") == (
        "unknown",
        "the limit is recorded nowhere, and nothing hints at it (the longest completion has 60 "
        "tokens)",
        "compare with max_completion_length in the run's configuration",
    )


def test_a_limit_without_any_share() -> None:
    run = trace(entries([None] * 5, reward=0.5), limit=256)
    assert answer(run, "default-limit")[0] == "unknown"


def test_an_assumed_limit_says_what_it_rests_on() -> None:
    remedy = "compare with max_completion_length in the run's configuration"
    assert answer(trace(entries([0.5] * 4 + [0.0])), "limit-unknown") == (
        "unknown",
        "the limit is recorded nowhere: 100 tokens are assumed, the length of the longest "
        "completion in 4 of 5 entries",
        remedy,
    )
    assert answer(trace(entries([0.5])), "limit-unknown")[1] == (
        "the limit is recorded nowhere: 100 tokens are assumed, the length of the longest "
        "completion"
    )
    evaluated = trace(entries([0.0] * 5), evaluation=entries([0.5, 0.5]))
    assert answer(evaluated, "limit-unknown")[1] == (
        "the limit is recorded nowhere: 100 tokens are assumed, the length of the longest "
        "completion in evaluation"
    )
    assert "limit-unknown" not in found(trace(entries([0.5]), limit=LIMIT))


# --- 3. which limit would hold 95 %? --------------------------------------------------------------


def recorded(ended: dict[int, int], cut: dict[int, int], **details: Any) -> RunTrace:
    """A record whose last part has these lengths."""
    sample = LengthSample.from_histograms(ended, cut)
    share = sample.truncated / len(sample)
    batch = LogEntry(step=1.0, completions=len(sample), truncated=share, elsewhere=0.0, stopped=0.0)
    batch.mean_length, batch.max_length, batch.limit = 50.0, float(LIMIT), LIMIT
    return trace(
        [batch] * 5,
        **({"source": "record", "guarded": True, "mode": "downweight", "limit": LIMIT} | details),
        sample=sample,
    )


def test_a_limit_that_holds_enough() -> None:
    run = recorded({40: 60, 90: 36}, {LIMIT: 4})
    assert answer(run, "limit-needed") == (
        "fine",
        "95% of 100 completions are at most 90 tokens long",
        "",
    )


def test_the_limit_that_would_hold_enough_is_the_samples_own() -> None:
    run = recorded(dict.fromkeys(range(40, 100, 4), 4), {LIMIT: 40})
    assert run.sample is not None
    advice = run.sample.recommend(0.95)
    finding = found(run)["limit-needed"]
    assert finding.severity == "warning"
    assert finding.fact == advice.reason
    assert finding.evidence["recommended"] == advice.max_completion_length is not None
    assert finding.remedy == (
        f"set max_completion_length={advice.max_completion_length}, and check it with "
        "truncation_guard.profile_rollouts at a generous limit"
    )


def test_no_limit_is_made_up_where_none_is_identified() -> None:
    finding = found(recorded({40: 4}, {LIMIT: 96}))["limit-needed"]
    assert (finding.severity, finding.evidence["recommended"]) == ("warning", None)
    assert finding.remedy == (
        "measure with truncation_guard.profile_rollouts at a generous limit, and look at stop "
        "tokens and repetition first"
    )


def test_means_alone_tell_only_what_the_limit_held() -> None:
    assert answer(trace(entries([0.05] * 5), limit=LIMIT), "limit-needed") == (
        "fine",
        "the limit of 100 tokens held 95% of the completions at the end",
        "",
    )
    assert answer(trace(entries([0.0] * 5)), "limit-needed")[1] == (
        "the limit held 100% of the completions at the end"
    )
    assert answer(trace(entries([0.06] * 5), limit=LIMIT), "limit-needed") == (
        "unknown",
        "the limit of 100 tokens held 94% of the completions at the end; what would hold 95% "
        "cannot "
        "be known from means, for the lengths behind the cuts are in none of them",
        "measure it with truncation_guard.profile_rollouts at a generous limit",
    )


def test_without_shares_no_limit_can_be_told() -> None:
    run = trace(entries([None] * 3, reward=0.5))
    assert answer(run, "limit-needed") == (
        "unknown",
        "what limit would hold 95% of the completions cannot be known from the log",
        "measure it with truncation_guard.profile_rollouts at a generous limit",
    )
    run.source = "tables"
    assert answer(run, "limit-needed") == (
        "unknown",
        "what limit would hold 95% of the completions cannot be known from a completions table",
        "measure it with truncation_guard.profile_rollouts at a generous limit",
    )


# --- 4. the share over time, and was it warned about? ---------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "severity"),
    [(0.05, "fine"), (0.051, "warning"), (0.25, "warning"), (0.26, "problem")],
)
def test_the_share_at_the_end_counts(ratio: float, severity: str) -> None:
    assert answer(trace(entries([0.0] * 8 + [ratio] * 2)), "truncated")[0] == severity


def test_the_share_is_told_over_time() -> None:
    run = trace(entries([0.8, 0.6] + [0.5] * 6 + [0.4, 0.2]), limit=LIMIT)
    assert answer(run, "truncated") == (
        "problem",
        "50% of the completions were cut off from step 1 to 10: 70% at first, 30% at the end, 80% "
        "at most (step 1)",
        "raise max_completion_length (how far: see limit-needed)",
    )
    run.steps_known = False
    assert answer(run, "truncated")[1].endswith(
        "from entry 1 to 10: 70% at first, 30% at the end, 80% at most (entry 1)"
    )


def test_a_single_entry_and_none_at_all() -> None:
    assert answer(trace(entries([0.5])), "truncated")[1] == (
        "50% of the completions were cut off at step 1"
    )
    nameless = trace([LogEntry(ratio=0.5, mean_length=100, max_length=100)], limit=LIMIT)
    assert answer(nameless, "truncated")[1] == "50% of the completions were cut off"
    assert answer(trace(entries([0.0] * 3)), "truncated")[1:] == (
        "no completion was cut off from step 1 to 3",
        "",
    )
    assert answer(trace(entries([None], reward=0.5)), "truncated") == (
        "unknown",
        "how many completions were cut off is not in the log",
        "add a TruncationGuardCallback: it records them",
    )


OF_THE_SET_UP = ["config", "limit-ignored", "loss-scale", "measured-only"]
OF_TRUNCATION = ["all-truncated", "context", "limit-raised", "no-signal", "not-length", "rising"]
OF_TRUNCATION += ["stop-tokens", "truncated"]
FOLLOW = "follow the first of the lines"


@pytest.mark.parametrize(
    ("details", "expected"),
    [
        (
            {"warned": {}},
            (
                "warning",
                "nothing ever warned about it: TRL itself only logs a ratio",
                "add a TruncationGuardCallback",
            ),
        ),
        (
            {"warned": {}, "guarded": True},
            (
                "warning",
                "a guard was on, and no WARN line of it is in the log",
                "log stderr as well (2>&1), and leave warn_above at its default",
            ),
        ),
        (
            {"warned": {"truncated": 2, "rising": 1}, "guarded": True},
            (
                "fine",
                "the guard warned of it in 3 WARN lines (rising, truncated)",
                "follow the first of the lines",
            ),
        ),
        (
            {"warned": {"truncated": 1}, "guarded": True, "source": "trainer_state"},
            ("fine", "the guard warned of it (truncated)", "follow the first of the lines"),
        ),
        (
            {"warned": {"config": 2, "truncated": 1}, "guarded": True},
            ("fine", "the guard warned of it in 1 WARN lines (truncated)", FOLLOW),
        ),
        *(
            (
                {"warned": {code: 1}, "guarded": True},
                (
                    "warning",
                    f"a guard was on, and no WARN line of it but of the set-up ({code}) is in the "
                    "log",
                    "log stderr as well (2>&1), and leave warn_above at its default",
                ),
            )
            for code in OF_THE_SET_UP
        ),
        *(
            (
                {"warned": {code: 1}},
                ("fine", f"the guard warned of it in 1 WARN lines ({code})", FOLLOW),
            )
            for code in OF_TRUNCATION
        ),
        (
            {"warned": {}, "guarded": True, "switched_off": 2.0},
            (
                "warning",
                "a guard was on, and switched itself off before it warned",
                "look up its ERROR line in the log",
            ),
        ),
        (
            {"warned": None, "guarded": True},
            (
                "unknown",
                "a guard was on; its WARN lines are in the log of the run, which was not read",
                "",
            ),
        ),
    ],
)
def test_was_it_warned_about(details: dict[str, Any], expected: tuple[str, str, str]) -> None:
    assert answer(trace(entries([0.5] * 5), **details), "warned") == expected


def test_every_code_of_the_guard_is_of_truncation_or_of_the_set_up() -> None:
    """The codes of the README's table; a new one has to be put on one side."""
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    table = readme.split("## WARN codes")[1].split("\n## ")[0]
    codes = set(re.findall(r"^\| `([a-z-]+)` \|", table, flags=re.MULTILINE))
    assert codes == {*OF_TRUNCATION, *OF_THE_SET_UP}


def test_a_run_that_recovered_need_not_have_been_warned_about() -> None:
    run = trace(entries([0.9] * 4 + [0.0] * 6), warned={}, limit=LIMIT)
    assert answer(run, "warned")[0] == "fine"
    assert "warned" not in found(trace(entries([0.05] * 10), warned={}))


# --- 5. groups without signal, and the reward -----------------------------------------------------


@pytest.mark.parametrize(("share", "severity"), [(0.49, "fine"), (0.5, "warning")])
def test_groups_without_signal(share: float, severity: str) -> None:
    run = trace(entries([0.0] * 10, silent_groups=share, reward=FLAT))
    assert answer(run, "no-signal") == (
        severity,
        f"{percent(share, 3)} of the groups taught nothing at the end: all their advantages are 0",
        "end truncation first, where there is some; then make the problems easier or harder, or "
        "raise num_generations"
        if severity == "warning"
        else "",
    )


def test_the_signal_at_the_end_counts() -> None:
    def severity(before: float, at_the_end: float) -> str:
        run = trace(entries([0.0] * 10, silent_groups=[before] * 8 + [at_the_end] * 2, reward=FLAT))
        return answer(run, "no-signal")[0]

    assert severity(0.9, 0.1) == "fine"
    assert severity(0.1, 0.9) == "warning"


def test_solved_problems_are_no_alarm() -> None:
    run = trace(entries([0.0] * 10, silent_groups=0.9, reward=RISES, reward_std=0.0))
    assert answer(run, "no-signal")[0] == answer(run, "reward")[0] == "fine"
    assert "no-signal" in found(trace(entries([0.0])))
    assert answer(trace(entries([0.0])), "no-signal")[1] == (
        "how many groups had no signal is not in the log"
    )


NEAR_1 = ": near 1, the most that a reward function usually gives"
IF_THE_MOST = ", and most rewards are equal: fine, if that is the most that can be had"


@pytest.mark.parametrize(
    ("reward", "figures", "severity", "ending"),
    [
        (0.95, {}, "fine", NEAR_1),
        (0.89, {}, "warning", ": it is flat"),
        (1.0, {"reward_std": 0.0}, "fine", NEAR_1),
        (
            0.0,
            {"reward_std": 0.0},
            "warning",
            ": it is flat; all rewards are equal in 100% of the ",
        ),
        (2.0, {"function_means": (1.0, 1.0)}, "fine", NEAR_1),
        (1.0, {"function_means": (0.0, 1.0)}, "warning", ": it is flat"),  # the format alone
        (8.0, {"reward_std": 0.0}, "unknown", IF_THE_MOST),
        (8.0, {"silent_groups": 0.9}, "unknown", IF_THE_MOST),
        (8.0, {"reward_std": 1.0}, "warning", ": it is flat"),
        (
            -1.0,
            {"reward_std": 0.0},
            "warning",
            ": it is flat; all rewards are equal in 100% of the ",
        ),
    ],
)
def test_a_reward_that_stands_at_its_top_is_no_alarm(
    reward: float, figures: dict[str, Any], severity: str, ending: str
) -> None:
    run = trace(entries([0.0] * 10, reward=reward, **figures))
    found_severity, fact, _ = answer(run, "reward")
    assert found_severity == severity
    if severity != "unknown":
        assert f"from step 1 to 10{ending}" in fact
    else:
        assert fact.endswith(IF_THE_MOST)
    is_solved = "is not what holds this run back: no completion was cut off"
    assert verdict(run).endswith(is_solved) is (severity != "warning")


@pytest.mark.parametrize(
    ("reward", "severity"), [(1.0, "fine"), (0.0, "warning"), (3.0, "unknown"), (0.5, "warning")]
)
def test_groups_that_are_solved_need_no_signal(reward: float, severity: str) -> None:
    run = trace(entries([0.0] * 10, silent_groups=0.9, reward=reward))
    assert answer(run, "no-signal")[0] == severity


def test_a_reward_that_falls_from_its_top_is_an_alarm() -> None:
    falling = [1.0] * 5 + [0.92] * 5
    assert answer(trace(entries([0.0] * 10, reward=falling)), "reward")[0] == "warning"


def test_a_reward_at_its_top_is_not_held_back() -> None:
    run = trace(entries([0.8] * 10, reward=0.95), limit=LIMIT)
    assert verdict(run) == (
        "truncation may be what holds this run back: 80% of the completions were cut off at 100 "
        "tokens at the end, but the reward is near 1"
    )


LOOK = "end truncation first, where there is some; then look at the reward functions"


@pytest.mark.parametrize(
    ("rewards", "stds", "expected"),
    [
        (RISES, 0.1, ("fine", "the reward went from 0.15 to 0.95 from step 1 to 10", "")),
        (
            RISES[::-1],
            0.1,
            ("warning", "the reward went from 0.95 to 0.15 from step 1 to 10: it falls", LOOK),
        ),
        (
            FLAT,
            0.1,
            ("warning", "the reward went from 0.5 to 0.5 from step 1 to 10: it is flat", LOOK),
        ),
        (
            [0.0] * 10,
            0.0,
            (
                "warning",
                "the reward went from 0 to 0 from step 1 to 10: it is flat; all rewards are equal "
                "in 100% of the entries",
                LOOK,
            ),
        ),
        (
            [0.1, 0.9] * 5,
            0.1,
            ("warning", "the reward went from 0.5 to 0.5 from step 1 to 10: it is flat", LOOK),
        ),
        (
            RISES[:4],
            0.1,
            (
                "unknown",
                "the reward went from 0.1 to 0.4 from step 1 to 4; 4 entries are too few to tell "
                "a change from noise",
                "",
            ),
        ),
        (
            [0.0],
            0.0,
            (
                "warning",
                "the reward is 0 at step 1; all rewards are equal in 100% of the entries",
                LOOK,
            ),
        ),
    ],
)
def test_the_reward(rewards: list[float], stds: float, expected: tuple[str, str, str]) -> None:
    run = trace(entries([0.0] * len(rewards), reward=rewards, reward_std=stds))
    assert answer(run, "reward") == expected


def test_a_change_within_the_noise_is_none() -> None:
    noise = [0.5, 0.1, 0.9, 0.3, 0.7, 0.2, 0.8, 0.4, 0.6, 0.9]
    assert measure(trace(entries([0.0] * 10, reward=noise))).reward_change == "flat"
    sure = [0.5 + 0.0001 * n for n in range(10)] + [1.0] + [0.5 + 0.0001 * n for n in range(10, 20)]
    assert measure(trace(entries([0.0] * 21, reward=sure))).reward_change == "flat"


def test_a_reward_that_is_not_there() -> None:
    assert answer(trace(entries([0.0])), "reward") == (
        "unknown",
        "the reward is not in the log",
        "",
    )


# --- 6. were advantages guarded? ------------------------------------------------------------------

GUARD = "add a TruncationGuardCallback"


@pytest.mark.parametrize(
    ("details", "expected"),
    [
        (
            {},
            (
                "warning",
                "no guard: truncated completions were scored like wrong answers (whether "
                "mask_truncated_completions was set is not recorded)",
                GUARD,
            ),
        ),
        (
            {"masked": False},
            (
                "warning",
                "no guard and no mask: truncated completions were scored like wrong answers",
                GUARD,
            ),
        ),
        (
            {"masked": True},
            (
                "warning",
                "mask_truncated_completions kept truncated completions from the loss, but their "
                "rewards stayed in the baseline of their groups",
                f"{GUARD} instead",
            ),
        ),
        (
            {"guarded": True, "mode": "exclude"},
            (
                "fine",
                "the guard in mode=exclude left truncated completions out of the baseline and of "
                "the loss",
                "",
            ),
        ),
        (
            {"guarded": True, "mode": "penalize"},
            (
                "fine",
                "the guard in mode=penalize let no reward of a truncated completion be above "
                "truncated_reward; they stayed in the baseline and in the loss",
                "",
            ),
        ),
        *(
            (
                {"guarded": True, "mode": "downweight", "truncated_weight": weight},
                (
                    "fine",
                    "the guard in mode=downweight multiplied the advantages of truncated "
                    f"completions by {by}",
                    "",
                ),
            )
            for weight, by in [
                (0.0, "0"),
                (0.25, "0.25"),
                (None, "its truncated_weight, which is not recorded"),
            ]
        ),
        (
            {"guarded": True, "mode": "downweight", "truncated_weight": 1.0},
            (
                "warning",
                "the guard was on and changed nothing (mode=downweight with a truncated_weight of "
                "1)",
                "use a truncated_weight below 1",
            ),
        ),
        (
            {"guarded": True, "mode": "observe"},
            (
                "warning",
                "the guard was on and changed nothing (mode=observe)",
                "use its default mode",
            ),
        ),
        (
            {"guarded": True, "mode": "exclude", "switched_off": 2.0},
            (
                "warning",
                "the guard switched itself off after step 2 and did nothing from then on",
                "look up its ERROR line in the log",
            ),
        ),
        ({"guarded": True}, ("unknown", "a guard was on; in which mode is not recorded", "")),
    ],
)
def test_were_advantages_guarded(details: dict[str, Any], expected: tuple[str, str, str]) -> None:
    assert answer(trace(entries([0.5] * 5), **details), "guarded") == expected


def test_little_truncation_needs_no_guard() -> None:
    assert answer(trace(entries([0.05] * 5)), "guarded") == (
        "fine",
        "there was hardly anything to guard the advantages against",
        "",
    )
    assert answer(trace(entries([None], reward=0.5)), "guarded") == (
        "unknown",
        "whether advantages had to be guarded is not known",
        "",
    )


# --- 7. evaluation --------------------------------------------------------------------------------


@pytest.mark.parametrize(("ratio", "severity"), [(0.05, "fine"), (0.06, "warning")])
def test_the_last_evaluation_counts(ratio: float, severity: str) -> None:
    evaluation = [*entries([0.9]), *entries([ratio, ratio])[1:]]
    finding = found(trace(entries([0.0] * 5), evaluation=evaluation, limit=LIMIT))["evaluation"]
    assert finding.severity == severity


def test_a_truncated_evaluation() -> None:
    run = trace(entries([0.0] * 5), evaluation=entries([0.5]), limit=LIMIT)
    assert answer(run, "evaluation") == (
        "warning",
        "50% of the answers were cut off in the evaluation at step 1 (0% in training at its end)",
        "eval_reward is that of cut answers: raise max_completion_length",
    )
    run.evaluation[0].step = None
    run.training = []
    assert answer(run, "evaluation")[1] == "50% of the answers were cut off in the evaluation"


def test_no_evaluation() -> None:
    assert answer(trace(entries([0.0])), "evaluation") == ("unknown", "there was no evaluation", "")
    mute = trace(entries([0.0]), evaluation=entries([None], reward=0.5))
    assert answer(mute, "evaluation")[1] == "evaluations do not say whether answers finish"
