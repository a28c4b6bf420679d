"""The limit of a real vLLM engine is read, set and put back, and rollouts under it are profiled.

Prompts have 2 to 5 tokens, the engine's window is 24.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.vllm_engine import GENERATIONS, WINDOW, launch

pytestmark = pytest.mark.vllm

RUNS = {
    "colocate": {"is_served": False, "algorithm": "grpo", "overrides": False},
    "colocate, generation_kwargs, RLOO": {
        "is_served": False,
        "algorithm": "rloo",
        "overrides": True,
    },
    "server, RLOO": {"is_served": True, "algorithm": "rloo", "overrides": False},
    "server, generation_kwargs": {"is_served": True, "algorithm": "grpo", "overrides": True},
}


@pytest.fixture(scope="module", params=RUNS.values(), ids=RUNS.keys())
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    settings = request.param
    address = request.getfixturevalue("server") if settings["is_served"] else ""
    folder = tmp_path_factory.mktemp("limits")
    return settings | launch("limits.py", folder, address, json.dumps(settings))


def test_the_window_is_the_engines_and_not_the_models(run: Any) -> None:
    assert run["window"] == WINDOW


def test_rollouts_obey_a_raised_and_a_lowered_limit(run: Any) -> None:
    assert run["limits"] == [8, 16, 4]
    for lengths, limit in zip(run["batches"], run["limits"], strict=True):
        assert len(lengths) == 2 * GENERATIONS
        assert max(lengths) == limit  # some do not end by themselves
    assert any(8 < length < 16 for length in run["batches"][1])


def test_the_limit_stands_everywhere(run: Any) -> None:
    kwargs = {"max_tokens": 4, "top_k": 0} if run["overrides"] else {}
    assert run["before"] == [4, 4, 4, kwargs, kwargs, 4]


def test_a_limit_that_does_not_fit_is_refused_and_changes_nothing(run: Any) -> None:
    too_long = (
        "`max_completion_length`=20 and the longest prompt (5 tokens) do not fit into the context "
        "window of 24 tokens. Pass at most 19."
    )
    assert run["refusals"] == [
        "`max_completion_length`=25 does not fit into the context window of 24 tokens. "
        "Pass at most 24.",
        too_long,
        too_long,  # profile_rollouts looks at the prompts itself
    ]
    assert run["after_refusals"] == run["before"]


def test_without_the_refusal_a_server_fails_and_a_colocated_engine_cuts(run: Any) -> None:
    found = run["beyond_the_window"]
    if run["is_served"]:
        assert found.startswith("Request failed: 400")
    else:
        assert max(found) == WINDOW - 4


@pytest.mark.parametrize(("number", "completions"), [(0, 6 * GENERATIONS), (1, 6 * 6)])
def test_a_profile_holds_the_lengths_that_vllm_returned(
    run: Any, number: int, completions: int
) -> None:
    found = run["profiles"][number]
    assert found["ended"] == found["returned_ended"]
    assert found["cut"] == found["returned_cut"]
    counts = [count for _, count in found["ended"] + found["cut"]]
    assert sum(counts) == completions
    assert [length for length, _ in found["cut"]] == [19]
    assert found["limit"] == 4
    assert found["longest_prompt"] == 5
    assert found["context_window"] == WINDOW
    cut = found["cut"][0][1]
    assert found["notes"] == [f"{cut} of {completions} completions had not ended at 19 tokens."]


def test_a_profile_leaves_the_limit_as_it_was(run: Any) -> None:
    assert run["after_profiles"] == run["before"]


def test_a_training_after_a_profile_obeys_the_limit_and_learns(run: Any) -> None:
    (lengths,) = run["batch_after"]
    assert max(lengths) == 4
    assert run["has_learned"]
