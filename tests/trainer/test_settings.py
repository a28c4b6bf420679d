"""What the guard reads from a trainer, for the backends that a small CPU test cannot run."""

from __future__ import annotations

from collections import defaultdict, deque
from types import SimpleNamespace

import pytest
from support import tiny
from support.stand_ins import stand_in, vllm

from truncation_guard.trainer import settings


class TestRules:
    @pytest.mark.parametrize("where", ["own", "model"])
    def test_max_length_is_a_limit_of_prompt_and_completion(self, where):
        made = stand_in(max_completion_length=None, pad_to_multiple_of=4)
        made.generation_config.max_new_tokens = None
        if where == "own":
            made.generation_config.max_length = 30
        else:
            made.model.generation_config.max_length = 30
        rules = settings.generation_rules(made)
        assert (rules.limit, rules.context_window, rules.pad_prompts_to) == (None, 30, 4)

    @pytest.mark.parametrize(
        ("changes", "name"),
        [
            ({}, "max_completion_length"),
            ({"max_new_tokens": 8}, "generation_kwargs['max_new_tokens']"),
            ({"max_tokens": 8}, "max_completion_length"),
        ],
    )
    def test_the_rules_name_where_the_limit_comes_from(self, changes, name):
        made = stand_in(args=SimpleNamespace(generation_kwargs=changes))
        assert settings.generation_rules(made).limit_name == name

    def test_context_window_of_the_model_of_the_engine_and_of_the_arguments(self):
        assert settings.generation_rules(stand_in()).context_window == 64
        for generation, window in (
            (vllm("colocate"), 48),
            (vllm("server"), 64),
            (vllm("server", max_model_length=40), 40),
        ):
            rules = settings.generation_rules(stand_in(use_vllm=True, vllm_generation=generation))
            assert rules.context_window == window

    def test_only_the_padding_backend_pads_prompts(self):
        assert settings.generation_rules(stand_in()).pad_prompts_to == 1
        for made in (
            stand_in(use_transformers_continuous_batching=True),
            stand_in(use_vllm=True, vllm_generation=vllm()),
        ):
            assert settings.generation_rules(made).pad_prompts_to is None

    @pytest.mark.parametrize(
        ("kwargs", "stops"),
        [
            (None, {1}),
            ({"eos_token_id": 2}, {1, 2}),
            ({"eos_token_id": [2, 9]}, {1, 2, 9}),
            ({"stop_token_ids": [7]}, {1, 7}),
        ],
    )
    def test_every_stop_token_that_somebody_named_counts(self, kwargs, stops):
        made = stand_in(args=SimpleNamespace(generation_kwargs=kwargs))
        assert settings.generation_rules(made).stop_token_ids == stops

    def test_the_trainers_and_the_generation_configs_stop_tokens_count(self):
        made = stand_in(eos_token_ids=[1, 5])
        made.generation_config.eos_token_id = 6
        assert settings.generation_rules(made).stop_token_ids == {1, 5, 6}

    def test_an_end_of_turn_token_is_suspicious_until_it_is_a_stop_token(self):
        assert settings.generation_rules(stand_in()).end_of_turn == {2: "<eot>"}
        assert settings.generation_rules(stand_in(eos_token_ids=[1, 2])).end_of_turn == {}

    @pytest.mark.parametrize(
        "change",
        [
            {"args": SimpleNamespace(generation_kwargs={"stop": ["\n"]})},
            {"args": SimpleNamespace(generation_kwargs={"stop_strings": ["\n"]})},
            {"rollout_func": print},
            {"environment_factories": {None: object}},
        ],
        ids=["stop", "stop_strings", "rollout_func", "environment"],
    )
    def test_what_may_end_a_completion_early(self, change):
        assert not settings.generation_rules(stand_in()).stops_on_request
        assert settings.generation_rules(stand_in(**change)).stops_on_request

    def test_tool_iterations_are_known_with_tools_only(self):
        assert settings.generation_rules(stand_in()).max_tool_iterations is None
        assert settings.generation_rules(stand_in(tools=[print])).max_tool_iterations == 3

    def test_a_processors_tokenizer_is_found(self):
        processor = SimpleNamespace(tokenizer=tiny.tokenizer())
        rules = settings.generation_rules(stand_in(processing_class=processor))
        assert rules.pad_token_id == tiny.PAD


def test_rows_that_the_trainer_masks_follow_its_own_rule():
    rows = [[5, 1], [5, 0], [5, 6]]  # eos, pad, neither
    assert settings.masked_by_trainer(stand_in(), rows) == [False] * 3
    made = stand_in(mask_truncated_completions=True)
    assert settings.masked_by_trainer(made, rows) == [False, False, True]


def test_advantages_of_a_batch_are_the_newest_of_the_table():
    made = SimpleNamespace(_logs={"advantages": deque([9.0, 1.0, 2.0], maxlen=4)})
    assert settings.logged_advantages(made, 2) == [1.0, 2.0]
    assert settings.logged_advantages(made, 4) is None
    settings.replace_logged_advantages(made, [3.0, 4.0])
    assert list(made._logs["advantages"]) == [9.0, 3.0, 4.0]


def test_metrics_go_into_the_table_of_their_split():
    made = SimpleNamespace(_metrics={"train": defaultdict(list), "eval": defaultdict(list)})
    settings.log_metrics(made, {"a": 1.0}, training=True)
    settings.log_metrics(made, {"a": 2.0}, training=False)
    assert made._metrics == {"train": {"a": [1.0]}, "eval": {"a": [2.0]}}
