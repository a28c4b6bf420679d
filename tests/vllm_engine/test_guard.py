"""The guard on what a real vLLM engine sampled, counted again from what the reward function got.

The engine's window is 24 and the limit 10: prompts of 2 tokens are cut by the limit, those of 18 by
the window, which leaves 6.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.vllm_engine import EOS, GENERATIONS, WINDOW, launch, words

pytestmark = pytest.mark.vllm

LIMIT = 10
OTHER_STOP = 7
COLOCATED = [words(2), words(2, 1), words(18), words(18, 1), words(2, 2), words(18, 2)]
SERVED = [words(2 + n % 4, n) for n in range(6)]  # a longer one would end the training
RUNS = {
    "downweight": {"mode": "downweight", "prompts": COLOCATED},
    "exclude": {"mode": "exclude", "prompts": COLOCATED},
    "downweight, server": {"mode": "downweight", "prompts": SERVED},
    "exclude, server": {"mode": "exclude", "prompts": SERVED},
}


@pytest.fixture(scope="module", params=RUNS.values(), ids=RUNS.keys())
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    is_served = request.param["prompts"] is SERVED
    address = request.getfixturevalue("server") if is_served else ""
    settings = request.param | {"limit": LIMIT}
    left = launch("guard.py", tmp_path_factory.mktemp("guard"), address, json.dumps(settings))
    return settings | {"is_served": is_served} | left


def outcome(prompt_length: int, ids: Sequence[int]) -> str:
    """How a completion ended, by the lengths alone."""
    if ids[-1] == EOS:
        return "terminated"
    if len(ids) == LIMIT:
        return "limit"
    assert prompt_length + len(ids) == WINDOW
    return "context"


def outcomes(batch: Any) -> list[str]:
    return list(map(outcome, batch["prompt_lengths"], batch["completion_ids"]))


def group_advantages(mode: str, rewards: Sequence[float], ends: Sequence[str]) -> list[float]:
    """(reward - mean) / (deviation + 1e-4) by hand, over those that the mode takes for it."""
    kept = [r for r, end in zip(rewards, ends, strict=True) if end == "terminated"]
    base = kept if mode == "exclude" else rewards
    if len(base) < 2:
        return [0.0] * len(rewards)
    mean, deviation = statistics.fmean(base), statistics.stdev(base)
    return [
        (reward - mean) / (deviation + 1e-4) if end == "terminated" else 0.0
        for reward, end in zip(rewards, ends, strict=True)
    ]


def test_outcomes_and_causes_are_those_of_the_sampled_tokens(run: Any) -> None:
    seen = set()
    for batch, entry in zip(run["batches"], run["record"], strict=True):
        ends = outcomes(batch)
        seen |= set(ends)
        assert entry["terminated"] == ends.count("terminated")
        assert entry["stopped"] == 0
        assert entry["truncated"] == len(ends) - ends.count("terminated")
        assert entry["causes"] == {
            "limit": ends.count("limit"),
            "context": ends.count("context"),
            "tool": 0,
        }
        groups = [ends[i : i + GENERATIONS] for i in range(0, len(ends), GENERATIONS)]
        assert entry["groups_truncated"] == sum(set(g) != {"terminated"} for g in groups)
        assert entry["groups_all_truncated"] == sum("terminated" not in g for g in groups)
    assert seen == {"terminated", "limit"} | (set() if run["is_served"] else {"context"})


def test_what_a_prompt_of_eighteen_leaves_is_six(run: Any) -> None:
    rows = [
        (prompt_length, len(ids))
        for batch in run["batches"]
        for prompt_length, ids in zip(batch["prompt_lengths"], batch["completion_ids"], strict=True)
    ]
    assert max(n for prompt, n in rows if prompt < 14) == LIMIT
    if not run["is_served"]:
        assert max(n for prompt, n in rows if prompt == 18) == WINDOW - 18


def test_the_metrics_show_the_share_of_each_cause(run: Any) -> None:
    for batch, logged in zip(run["batches"], run["log"], strict=False):
        ends = outcomes(batch)
        for cause in ("limit", "context"):
            share = ends.count(cause) / len(ends)
            assert logged[f"truncation_guard/cause/{cause}"] == pytest.approx(share)
        assert logged["truncation_guard/limit"] == LIMIT


def test_the_lines_tell_the_limit_from_the_window(run: Any) -> None:
    effect = {
        "downweight": "their advantages are set to 0",
        "exclude": "they are left out of the baseline and of the loss",
    }[run["mode"]]
    first = outcomes(run["batches"][0])
    cut = first.count("limit")
    share = cut / len(first)
    setup, of_batches = (
        [line for line in run["lines"] if (" WARN config " in line) == is_setup]
        for is_setup in (True, False)
    )
    # The preflight knows a colocated engine's window, and a served one's where it fits.
    assert ["check=context" in line for line in setup] == [True] * (not run["is_served"])
    assert of_batches[0].startswith(
        f"[truncation-guard] WARN truncated step=0 mode={run['mode']} share={share:g} "
        f"completions={cut}/32 groups=2/2 "
    )
    assert (
        f" limit=10 | {100 * share:.4g}% of completions were cut off at max_completion_length=10 "
        f"before they finished ({effect}); " in of_batches[0]
    )
    context = [line for line in run["lines"] if " WARN context " in line]
    if run["is_served"]:
        assert context == []
        return
    cut = outcomes(run["batches"][1]).count("context")
    (line,) = context
    assert line.startswith(f"[truncation-guard] WARN context step=1 mode={run['mode']} ")
    assert line.endswith(
        f" limit=10 causes=context:{cut} | {cut} of 32 completions were cut off because prompt "
        f"and completion fill the context window of 24 tokens ({effect}) -> shorten the prompts, "
        "or use a longer window (with vLLM: vllm_max_model_length); a longer "
        "max_completion_length does not help"
    )


def test_the_loss_gets_the_advantages_of_an_independent_computation(run: Any) -> None:
    some_advantage = False
    for batch, loss in zip(run["batches"], run["losses"], strict=True):
        ends, expected = outcomes(batch), []
        for i in range(0, len(ends), GENERATIONS):
            group = slice(i, i + GENERATIONS)
            values = group_advantages(run["mode"], batch["rewards"][group], ends[group])
            expected += zip(batch["completion_ids"][group], values, strict=True)
        some_advantage |= any(value != 0 for _, value in expected)
        trained = zip(loss["completion_ids"], loss["advantages"], strict=True)  # shuffled
        for (ids, value), (wanted_ids, wanted) in zip(
            sorted(trained), sorted(expected), strict=True
        ):
            assert ids == wanted_ids
            assert value == pytest.approx(wanted, abs=1e-4)
    assert some_advantage


def test_exclude_takes_truncated_rows_out_of_the_loss_and_downweight_does_not(run: Any) -> None:
    for batch, loss in zip(run["batches"], run["losses"], strict=True):
        is_out = run["mode"] == "exclude"
        lengths = [
            0 if is_out and end != "terminated" else len(ids)
            for ids, end in zip(batch["completion_ids"], outcomes(batch), strict=True)
        ]
        assert sorted(loss["loss_tokens"]) == sorted(lengths)
        assert loss["num_items_in_batch"] == sum(lengths)


def test_a_stop_token_that_only_vllm_was_told_of_ends_a_completion(tmp_path: Path) -> None:
    settings = {
        "mode": "observe",
        "prompts": SERVED,
        "limit": LIMIT,
        "generation_kwargs": {"stop_token_ids": [OTHER_STOP]},
    }
    left = launch("guard.py", tmp_path, "", json.dumps(settings))
    ends_of_all = []
    for batch, entry in zip(left["batches"], left["record"], strict=True):
        ends = [ids[-1] for ids in batch["completion_ids"]]
        ends_of_all += ends
        assert entry["terminated"] == ends.count(EOS) + ends.count(OTHER_STOP)
        assert entry["truncated"] == entry["causes"]["limit"] == len(ends) - entry["terminated"]
        assert all(OTHER_STOP not in ids[:-1] for ids in batch["completion_ids"])
    assert OTHER_STOP in ends_of_all
