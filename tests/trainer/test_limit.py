"""Where the limit is read and set, on every backend."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from support.stand_ins import stand_in, vllm

from truncation_guard.trainer.limit import get_limit, set_limit, temporary_limit


class TestGet:
    def test_transformers_obeys_its_generation_config(self):
        assert get_limit(stand_in(max_completion_length=99)) == 8

    def test_without_a_limit_transformers_stops_at_twenty_new_tokens(self):
        made = stand_in(max_completion_length=None)
        made.generation_config.max_new_tokens = None
        assert get_limit(made) == 20

    @pytest.mark.parametrize("mode", ["colocate", "server"])
    def test_vllm_obeys_its_own_attribute(self, mode):
        made = stand_in(use_vllm=True, vllm_generation=vllm(mode))
        assert get_limit(made) == 16
        made.vllm_generation.max_completion_length = 32
        assert get_limit(made) == 32

    def test_generation_kwargs_win_over_vllms_attribute(self):
        made = stand_in(use_vllm=True, vllm_generation=vllm(generation_kwargs={"max_tokens": 5}))
        assert get_limit(made) == 5

    def test_vllm_without_a_limit_has_none(self):
        made = stand_in(use_vllm=True, vllm_generation=vllm(max_completion_length=None))
        assert get_limit(made) is None

    @pytest.mark.parametrize(("per_turn", "budget", "limit"), [(8, 6, 6), (8, 20, 8), (8, None, 8)])
    def test_the_tool_loop_keeps_to_its_budget_as_well(self, per_turn, budget, limit):
        made = stand_in(tools=[print], max_completion_length=budget)
        made.generation_config.max_new_tokens = per_turn
        assert get_limit(made) == limit

    def test_the_models_own_limit_holds_where_none_was_given(self):
        made = stand_in(max_completion_length=None)
        made.generation_config.max_new_tokens = None
        made.model.generation_config.max_new_tokens = 12
        assert get_limit(made) == 12


def overridden(**kwargs: Any) -> SimpleNamespace:
    return SimpleNamespace(generation_kwargs=kwargs, max_completion_length=8)


class TestSet:
    def test_transformers_obeys_it_and_everything_that_follows_the_limit_does(self):
        made = stand_in()
        set_limit(made, 32)
        assert get_limit(made) == 32
        assert made.generation_config.max_new_tokens == 32
        assert made.max_completion_length == 32  # the tool loop, dr_grpo
        assert made.args.max_completion_length == 32
        assert made.generation_kwargs == {"max_new_tokens": 32, "do_sample": True}
        assert made.args.generation_kwargs is None

    def test_an_override_in_generation_kwargs_is_set_as_well(self):
        made = stand_in(args=overridden(max_new_tokens=4, top_k=2))
        made.generation_config.max_new_tokens = 4
        set_limit(made, 32)
        assert get_limit(made) == 32
        assert made.args.generation_kwargs == {"max_new_tokens": 32, "top_k": 2}

    def test_the_tool_loops_budget_follows(self):
        made = stand_in(tools=[print])
        set_limit(made, 32)
        assert get_limit(made) == 32

    def test_where_there_was_no_limit_there_is_one(self):
        made = stand_in(max_completion_length=None)
        made.generation_config.max_new_tokens = None
        made.generation_config.max_length = 30
        assert get_limit(made) is None
        set_limit(made, 32)
        assert get_limit(made) == 32

    @pytest.mark.parametrize("mode", ["colocate", "server"])
    def test_vllm_obeys_its_own_attribute(self, mode):
        made = stand_in(use_vllm=True, vllm_generation=vllm(mode))
        set_limit(made, 32)
        assert get_limit(made) == made.vllm_generation.max_completion_length == 32
        assert made.vllm_generation.generation_kwargs == {}
        assert made.max_completion_length == made.args.max_completion_length == 32
        assert made.generation_config.max_new_tokens == 8  # of no use there

    def test_vllms_override_is_set_as_well(self):
        args = overridden(max_tokens=5)
        backend = vllm(generation_kwargs=args.generation_kwargs)  # the same object in TRL
        made = stand_in(use_vllm=True, vllm_generation=backend, args=args)
        set_limit(made, 32)
        assert get_limit(made) == 32
        assert args.generation_kwargs == {"max_tokens": 32}

    @pytest.mark.parametrize("limit", [0, -1, True, 1.0, "8", None])
    def test_what_is_no_limit_is_refused(self, limit):
        made = stand_in()
        message = (
            f"`max_completion_length` must be an integer of at least 1, got {limit!r}. "
            "Pass a number of tokens, such as 1024."
        )
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            set_limit(made, limit)
        assert get_limit(made) == 8

    @pytest.mark.parametrize(
        ("limit", "longest_prompt", "message"),
        [
            (64, 0, None),
            (60, 4, None),
            (
                65,
                0,
                "`max_completion_length`=65 does not fit into the context window of 64 tokens. "
                "Pass at most 64.",
            ),
            (
                60,
                5,
                "`max_completion_length`=60 and the longest prompt (5 tokens) do not fit into the "
                "context window of 64 tokens. Pass at most 59.",
            ),
            (
                1,
                64,
                "The longest prompt has 64 tokens, which leaves no room for a completion in the "
                "context window of 64 tokens. Take such prompts out of the data set, or shorten "
                "them.",
            ),
        ],
    )
    def test_limit_and_longest_prompt_have_to_fit_into_the_window(
        self, limit, longest_prompt, message
    ):
        made = stand_in()
        if message is None:
            set_limit(made, limit, longest_prompt=longest_prompt)
            assert get_limit(made) == limit
            return
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            set_limit(made, limit, longest_prompt=longest_prompt)
        assert get_limit(made) == 8

    def test_vllms_window_is_the_engines(self):
        made = stand_in(use_vllm=True, vllm_generation=vllm())
        set_limit(made, 48)
        with pytest.raises(ValueError, match=r"window of 48 tokens. Pass at most 48\.$"):
            set_limit(made, 49)

    def test_an_unknown_window_bounds_nothing(self):
        config = SimpleNamespace(get_text_config=lambda: SimpleNamespace())
        made = stand_in(model=SimpleNamespace(config=config))
        set_limit(made, 10**6)
        assert get_limit(made) == 10**6


def limits(made: Any) -> list[Any]:
    backend = made.vllm_generation if made.use_vllm else made.generation_config
    return [
        made.max_completion_length,
        made.args.max_completion_length,
        dict(made.args.generation_kwargs or {}),
        dict(made.generation_kwargs),
        {name: value for name, value in vars(backend).items() if name.startswith("max_")},
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"args": overridden(max_new_tokens=4), "max_completion_length": 16},
        {"use_vllm": True, "vllm_generation": vllm(generation_kwargs={"max_tokens": 5})},
        {"use_vllm": True, "vllm_generation": vllm(max_completion_length=None)},
    ],
    ids=["plain", "overridden", "vllm overridden", "vllm without"],
)
@pytest.mark.parametrize("fails", [False, True])
def test_a_temporary_limit_leaves_everything_as_it_was(changes, fails):
    made = stand_in(**changes)
    before = limits(made)
    try:
        with temporary_limit(made, 32):
            assert get_limit(made) == 32
            assert limits(made) != before
            if fails:
                raise OSError
    except OSError:
        assert fails
    assert limits(made) == before
