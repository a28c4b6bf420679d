"""`profile_rollouts` with the real trainers: what it measures, and that it leaves no trace."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset, IterableDataset
from support import tiny, versions
from support.bit_for_bit import Gradients, Sampled, same
from support.stand_ins import vllm
from support.tool_calls import TURNS, Environment, chat_trainer
from transformers import LlamaForCausalLM, TrainerCallback
from trl import GRPOTrainer

from truncation_guard import TruncationGuardCallback
from truncation_guard.profiling.rollouts.profile_rollouts import profile_rollouts
from truncation_guard.trainer.limit import get_limit

TIMING = ("_runtime", "_per_second", "step_time", "preparation_time")
WORDS = Dataset.from_dict({"prompt": ["w3", "w4 w5 w6", "w7 w8", "w9"] * 8})


def profile(trainer, **arguments):
    return profile_rollouts(
        trainer,
        **{"max_completion_length": 24, "num_prompts": 5, "progress": False} | arguments,
    )


@pytest.fixture(autouse=True)
def _experimental(monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")


class At(TrainerCallback):
    """Does something at one event of the first step that has it."""

    def __init__(self, event, work):
        setattr(self, event, self.once)
        self.work = work

    def once(self, *args, **kwargs):
        if self.work is not None:
            work, self.work = self.work, None
            work()


def untimed(log):
    return [{k: v for k, v in entry.items() if not k.endswith(TIMING)} for entry in log]


def everything(trainer, gradients):
    """What a training leaves behind, and what the next one starts from."""
    return {
        "log": json.dumps(untimed(trainer.state.log_history)),
        "gradients": gradients.seen,
        "weights": list(trainer.model.state_dict().values()),
        "torch": torch.get_rng_state(),
        "numpy": [str(part) for part in np.random.get_state()],
        "python": random.getstate(),
        "tokens": trainer.state.num_input_tokens_seen,
        "mode": [module.training for module in trainer.model.modules()],
        "limits": (get_limit(trainer), trainer.max_completion_length, trainer.num_generations),
        "table": [
            str(list(trainer._logs[name])) for name in ("prompt", "completion", "advantages")
        ],
        "metrics": {mode: dict(values) for mode, values in trainer._metrics.items()},
        "attributes": sorted(vars(trainer)),
    }


def train(tmp_path, algorithm, moment, guard=None, data=WORDS, model=None, **overrides):
    """Two trainings, with or without a profile before, within or between them."""
    gradients, reward = Gradients(), Sampled()
    trainer = tiny.trainer(
        tiny.config(tmp_path, algorithm, **overrides),
        reward,
        [gradients] if guard is None else [guard, gradients],
        model=model or tiny.model(),
        train_dataset=data,
        eval_dataset=tiny.prompts(3),
    )
    random.seed(3)
    np.random.seed(3)
    if moment == "before":
        profile(trainer)
    elif moment in ("on_train_begin", "on_step_end"):
        trainer.add_callback(At(moment, lambda: profile(trainer)))
    trainer.train()
    if moment == "between":
        profile(trainer)
    trainer.train()
    left = everything(trainer, gradients)
    if moment == "before":  # and nothing after it either
        random_numbers = torch.get_rng_state()
        profile(trainer, num_generations=3)
        assert torch.equal(random_numbers, torch.get_rng_state())
        assert same(left, everything(trainer, gradients)) == []
    return left, reward.batches


def model_with_a_path(tmp_path):
    tiny.model().save_pretrained(tmp_path / "model")
    return type(tiny.model()).from_pretrained(tmp_path / "model")


def model_with_dropout():
    made = tiny.model()
    made.config.attention_dropout = 0.5
    for layer in made.model.layers:
        layer.self_attn.attention_dropout = 0.5
    return made


CONTINUOUS = {
    "use_transformers_continuous_batching": True,
    # Without these it fills half of the machine's memory with an empty cache, at each call.
    "transformers_continuous_batching_config": {
        "num_blocks": 16,
        "block_size": 32,
        "max_batch_tokens": 64,
    },
}
SETTINGS = {
    "plain": {},
    "shuffled": {"shuffle_dataset": True},
    "two passes": {
        "num_iterations": 2,
        "steps_per_generation": 4,
        "gradient_accumulation_steps": 2,
    },
    "reference model": {"beta": 0.1},
    "evaluation": {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4},
    "checkpointing": {"gradient_checkpointing": True},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "continuous batching": CONTINUOUS,
}

BY_DEFAULT = ("two passes", "evaluation", "continuous batching")


class TestTrainingIsBitForBitWhatItWouldHaveBeen:
    def check(self, tmp_path, algorithm, moments, settings, make=tiny.model, data=lambda: WORDS):
        settings = {"per_device_train_batch_size": 4, "max_steps": 2} | settings
        (tmp_path / "out").mkdir()
        runs = [
            train(tmp_path / "out", algorithm, moment, model=make(), data=data(), **settings)
            for moment in ("never", *moments)
        ]
        for run in runs[1:]:
            assert same(runs[0][0], run[0]) == []
            assert runs[0][1] == run[1]

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "settings",
        [
            pytest.param(each, id=name, marks=() if name in BY_DEFAULT else pytest.mark.slow)
            for name, each in SETTINGS.items()
        ],
    )
    def test_in_every_setting(self, settings, tmp_path):
        def make():
            return model_with_a_path(tmp_path) if "beta" in settings else tiny.model()

        self.check(tmp_path, "grpo", ["before"], settings, make)

    @pytest.mark.parametrize(
        "settings",
        [{}, pytest.param(SETTINGS["two passes"], marks=pytest.mark.slow)],
        ids=["plain", "two passes"],
    )
    @pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
    def test_at_every_moment(self, algorithm, settings, tmp_path):
        moments = ["before", "on_train_begin", "on_step_end", "between"]
        self.check(tmp_path, algorithm, moments, settings)

    @pytest.mark.slow
    def test_with_dropout(self, tmp_path):
        self.check(tmp_path, "grpo", ["before", "on_step_end"], {}, model_with_dropout)

    @pytest.mark.slow
    @pytest.mark.parametrize("shuffles", [False, True])
    def test_with_a_stream(self, tmp_path, shuffles):
        settings = {"shuffle_dataset": shuffles, "max_steps": 3}
        moments = ["before", "on_step_end", "between"]
        self.check(tmp_path, "grpo", moments, settings, data=lambda: WORDS.to_iterable_dataset())

    @pytest.mark.slow
    def test_with_a_dynamic_position_embedding_that_has_seen_longer_sequences(self, tmp_path):
        def make():
            config = tiny.model().config
            config.max_position_embeddings = 16
            config.rope_parameters = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
            torch.manual_seed(0)
            made = LlamaForCausalLM(config)
            made.model.rotary_emb.config = copy.deepcopy(config)  # computes anew past 16 tokens
            config.max_position_embeddings = 64
            return made

        # The second step takes its half of a batch that was generated before the profile.
        settings = {"max_completion_length": 20, "steps_per_generation": 2, "max_steps": 4}
        self.check(tmp_path, "grpo", ["before", "on_step_end"], settings, make)


def test_a_profile_in_between_would_show_if_it_were_not_put_back(tmp_path, monkeypatch):
    """The test of the tests above: what they compare can differ."""
    from contextlib import nullcontext

    without = train(tmp_path, "grpo", "never", max_steps=2)[0]
    monkeypatch.setattr(
        "truncation_guard.profiling.rollouts.profile_rollouts.put_back",
        lambda trainer: nullcontext(),
    )
    changed = same(without, train(tmp_path, "grpo", "between", max_steps=2)[0])
    assert {"log", "gradients", "weights", "torch", "numpy", "python", "tokens"} <= set(changed)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["observe", "exclude"])
def test_an_attached_guard_does_not_count_these_rollouts(mode, tmp_path):
    lines, metrics = [], []
    for moment in ("never", "between", "on_step_end"):
        folder = tmp_path / moment
        guard = TruncationGuardCallback(mode=mode)
        left, _ = train(folder, "grpo", moment, guard, max_steps=2)
        lines.append((folder / "truncation_guard.jsonl").read_text())
        metrics.append(left)
    assert lines[0].count('"kind":"batch"') == 4
    assert lines[0] == lines[1] == lines[2]
    assert same(metrics[0], metrics[1]) == same(metrics[0], metrics[2]) == []


def test_a_guard_that_watches_is_still_there_afterwards_and_counts_on(tmp_path):
    guard = TruncationGuardCallback()
    trainer = tiny.trainer(tiny.config(tmp_path), Sampled(), [guard])
    callbacks = list(trainer.callback_handler.callbacks)
    profile(trainer)
    assert trainer.callback_handler.callbacks == callbacks
    assert not (tmp_path / "truncation_guard.jsonl").exists()
    trainer.train()
    assert any("truncation_guard/" in name for name in trainer.state.log_history[0])


class TestWhatIsMeasured:
    def test_lengths_and_outcomes_are_those_of_the_completions(self, tmp_path):
        rollouts = [[5, 6, 1], [5] * 24, [7, 1], [8, 9, 10], [9] * 23 + [1]]
        trainer = tiny.trainer(tiny.config(tmp_path), Sampled(), rollouts=rollouts)
        made = profile(trainer, num_generations=4)  # 20 completions: each of them four times
        assert len(made.sample) == 20
        ended, cut = made.sample.histograms
        assert Counter(ended) == {3: 8, 2: 4, 24: 4}
        assert Counter(cut) == {24: 4}
        assert (made.source, made.limit, made.column) == ("rollouts", 8, None)
        assert (made.context_window, made.longest_prompt) == (64, 1)
        assert made.notes == (
            "4 of 20 completions had not ended at 24 tokens.",
            "4 of 20 completions were stopped without a stop token, below every limit; they count "
            "as ended.",
        )

    @pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
    @pytest.mark.parametrize(
        "overrides",
        [
            {},
            {"generation_kwargs": {"max_new_tokens": 8}},
            CONTINUOUS,
        ],
        ids=["plain", "overridden", "continuous batching"],
    )
    def test_the_model_really_writes_up_to_the_generous_limit(self, algorithm, overrides, tmp_path):
        trainer = tiny.trainer(tiny.config(tmp_path, algorithm, **overrides), Sampled())
        made = profile(trainer, max_completion_length=40)
        assert made.sample.longest == 40
        assert 0 < made.sample.truncated < len(made.sample) == 20
        assert get_limit(trainer) == made.limit == 8

    @pytest.mark.slow
    def test_the_same_seed_gives_the_same_profile_and_another_one_another(self, tmp_path):
        trainer = tiny.trainer(tiny.config(tmp_path), Sampled())
        first, again, other = (profile(trainer, seed=seed) for seed in (4, 4, 5))
        assert first.sample.histograms == again.sample.histograms
        assert first.sample.histograms != other.sample.histograms

    def test_prompts_are_drawn_from_the_whole_data_set_by_the_seed(self, tmp_path):
        data = Dataset.from_dict({"prompt": [f"w{3 + n % 12} " * (n + 1) for n in range(20)]})
        trainer = tiny.trainer(tiny.config(tmp_path), Sampled(), train_dataset=data)
        seen = []
        tokenize = trainer._tokenize_prompts
        trainer._tokenize_prompts = lambda prompts: seen.append(prompts) or tokenize(prompts)
        made = profile(trainer, num_generations=2)
        wanted = [data[i]["prompt"] for i in random.Random(0).sample(range(20), 5)]
        assert seen[0] == wanted  # measured, and then generated from
        assert seen[1:] == [[w for w in wanted[:4] for _ in "ab"], [wanted[4]] * 2]
        assert made.longest_prompt == max(len(prompt.split()) for prompt in wanted)

    @versions.since("1.14.1", "the number of completions that generation is told")
    @pytest.mark.parametrize(
        ("generations", "batches", "per_prompt"),
        [(None, [8, 8, 4], 4), (3, [8, 7], 1), (2, [8, 2], 2), (16, [8] * 10, 1)],
    )
    def test_a_generation_batch_is_no_larger_than_in_training(
        self, generations, batches, per_prompt, tmp_path
    ):
        settings = {"per_device_train_batch_size": 4, "steps_per_generation": 2}
        trainer = tiny.trainer(tiny.config(tmp_path, **settings), Sampled())
        seen = []
        generate = trainer._generate_single_turn

        def generated(prompt_ids, images, fields, num_generations):
            seen.append((len(prompt_ids), num_generations, trainer.num_generations))
            return generate(prompt_ids, images, fields, num_generations)

        trainer._generate_single_turn = generated
        made = profile(trainer, num_generations=generations)
        assert seen == [(rows, per_prompt, per_prompt) for rows in batches]
        assert len(made.sample) == 5 * (generations or 4)
        assert trainer.num_generations == 4

    def test_the_tool_loop(self, tmp_path):
        trainer = chat_trainer(tmp_path, TURNS, guarded=False)
        made = profile(trainer, max_completion_length=12, num_prompts=2)
        ended, cut = made.sample.histograms
        assert (ended, cut) == ({2: 1, 9: 1, 10: 1}, {12: 5})
        assert made.notes[-1] == "3 of 8 completions were cut short at a tool call."

    def test_an_environment(self, tmp_path):
        turns = [TURNS[0], TURNS[1], TURNS[3], [[9, 10]]]
        trainer = chat_trainer(
            tmp_path, turns, given={"environment_factory": Environment}, guarded=False
        )
        pool = {name: list(made) for name, made in trainer._environment_pool.items()}
        made = profile(trainer, max_completion_length=12, num_prompts=1)
        assert made.sample.histograms == ({2: 1, 10: 1}, {12: 2})
        assert made.longest_prompt == 3
        assert trainer.environments is None
        assert trainer._environment_pool == pool

    @pytest.mark.parametrize("overrides", [{}, {"max_tokens": 6}])
    def test_vllm_is_asked_for_the_generous_limit(self, overrides, tmp_path):
        trainer = tiny.trainer(tiny.config(tmp_path), Sampled())
        asked = []

        def generate(prompts, images, num_generations, profiler):
            kwargs = {"max_tokens": engine.max_completion_length} | engine.generation_kwargs
            asked.append((len(prompts), num_generations))
            rows = [[5] * kwargs["max_tokens"] for _ in prompts]
            return prompts, rows, [[[0.0]] * len(row) for row in rows], None

        engine = vllm(
            "server",
            max_model_length=48,
            max_completion_length=8,
            generation_kwargs=overrides,
            sync_weights=lambda: None,
            generate=generate,
        )
        trainer.vllm_generation, trainer.vllm_mode = engine, "server"
        trainer.use_vllm, trainer._last_loaded_step = True, -1
        made = profile(trainer, num_generations=2)
        assert made.sample.histograms == ({}, {24: 10})
        assert (made.limit, made.context_window) == (overrides.get("max_tokens", 8), 48)
        assert asked == [(8, 2), (2, 2)]
        assert engine.max_completion_length == 8
        assert engine.generation_kwargs in ({}, {"max_tokens": 6})
        assert trainer._last_loaded_step == -1  # the next rollout brings the weights again

    def test_a_rollout_function(self, tmp_path):
        def rollout(prompts, trainer):
            limit = trainer.max_completion_length
            rows = [[5] * limit if prompt == "w3" else [6, 1] for prompt in prompts]
            ids = [[3, 4]] * len(prompts)
            return {"prompt_ids": ids, "completion_ids": rows, "logprobs": [[0.0]] * len(rows)}

        trainer = tiny.trainer(
            tiny.config(tmp_path),
            Sampled(),
            rollout_func=rollout,
            train_dataset=Dataset.from_dict({"prompt": ["w3", "w4"] * 4}),
        )
        made = profile(trainer, num_prompts=8, num_generations=1)
        assert made.sample.histograms == ({2: 4}, {24: 4})
        assert made.longest_prompt == 2

    def test_a_data_set_with_too_few_prompts_is_used_as_a_whole(self, tmp_path):
        trainer = tiny.trainer(
            tiny.config(tmp_path), Sampled(), train_dataset=tiny.prompts(3), rollouts=[[5, 1]]
        )
        made = profile(trainer, num_generations=1)
        assert len(made.sample) == 3
        assert made.notes == ("The data set has only 3 prompts, so all of them were used.",)

    def test_a_stream_gives_its_first_prompts(self, tmp_path):
        read = []

        def stream():
            for number in range(100):
                read.append(number)
                yield {"prompt": f"w{3 + number % 12}"}

        trainer = tiny.trainer(
            tiny.config(tmp_path),
            Sampled(),
            train_dataset=IterableDataset.from_generator(stream),
            rollouts=[[5, 1]],
        )
        read.clear()
        made = profile(trainer)
        assert read == [0, 1, 2, 3, 4]
        assert made.notes == ("The data set is a stream: these are its first 5 prompts.",)

    def test_columns_that_training_does_not_see_are_not_seen(self, tmp_path):
        data = Dataset.from_dict({"prompt": ["w3"] * 8, "answer": ["w4"] * 8})
        seen = []
        for removes in (False, True):
            trainer = tiny.trainer(
                tiny.config(tmp_path, remove_unused_columns=removes),
                Sampled(),
                train_dataset=data,
                rollouts=[[5, 1]],
            )
            trainer.data_collator = lambda rows: seen.append(sorted(rows[0])) or rows
            profile(trainer)
        assert seen[0] == ["answer", "prompt"]
        assert seen[-1] == ["prompt"]

    def test_progress_goes_to_stderr(self, tmp_path, capsys):
        trainer = tiny.trainer(tiny.config(tmp_path), Sampled(), rollouts=[[5, 1]])
        profile(trainer)
        assert capsys.readouterr() == ("", "")
        profile(trainer, progress=True)
        out, err = capsys.readouterr()
        assert out == ""
        assert "Sampling completions" in err
        assert "100%" in err


class TestWhenItFails:
    def fail(self, *args, **kwargs):
        raise OSError("out of memory")

    @pytest.mark.parametrize("checkpointing", [False, True])
    def test_everything_is_put_back(self, checkpointing, tmp_path):
        trainer = tiny.trainer(
            tiny.config(tmp_path, gradient_checkpointing=checkpointing), Sampled()
        )
        trainer.train()
        gradients = SimpleNamespace(seen=[torch.ones(1)])
        before = everything(trainer, gradients)
        flags = [getattr(m, "gradient_checkpointing", None) for m in trainer.model.modules()]
        trainer.model.generate = self.fail
        with pytest.raises(OSError, match=r"^out of memory$"):
            profile(trainer)
        del trainer.model.generate
        assert same(before, everything(trainer, gradients)) == []
        assert flags == [
            getattr(m, "gradient_checkpointing", None) for m in trainer.model.modules()
        ]
        assert any(flags) == checkpointing

    def test_a_trainer_that_does_not_call_trls_generate(self, tmp_path):
        class Own(GRPOTrainer):
            def _generate_and_score_completions(self, inputs):
                return {}

        trainer = tiny.trainer(tiny.config(tmp_path), Sampled(), base=Own)
        message = r"^Own does not call TRL's `_generate`: its completions cannot be measured\. Use"
        with pytest.raises(RuntimeError, match=message):
            profile(trainer)
        assert "_generate" not in vars(trainer)

    def test_a_backend_that_drops_requests(self, tmp_path):
        trainer = tiny.trainer(tiny.config(tmp_path), Sampled())
        trainer._generate_single_turn = lambda ids, *args, **kwargs: (
            [[5, 1]] * (len(ids) - 1),
            None,
        )
        message = r"^Generation returned 7 completions for 8 prompts\. Its log says why\.$"
        with pytest.raises(RuntimeError, match=message):
            profile(trainer)

    def test_a_prompt_that_the_limit_leaves_no_room_for(self, tmp_path):
        data = Dataset.from_dict({"prompt": ["w3 " * 10] * 8})
        trainer = tiny.trainer(tiny.config(tmp_path), Sampled(), train_dataset=data)
        message = (
            r"^`max_completion_length`=60 and the longest prompt \(10 tokens\) do not "
            r"fit into the context window of 64 tokens\. Pass at most 54\.$"
        )
        with pytest.raises(ValueError, match=message):
            profile(trainer, max_completion_length=60)
        assert get_limit(trainer) == 8

    def test_an_empty_stream(self, tmp_path):
        data = IterableDataset.from_generator(lambda: iter(()))
        trainer = tiny.trainer(tiny.config(tmp_path), Sampled(), train_dataset=data)
        with pytest.raises(ValueError, match=r"^`trainer.train_dataset` is empty\."):
            profile(trainer)

    @pytest.mark.parametrize("streamed", [False, True])
    def test_a_data_set_without_prompts(self, streamed, tmp_path):
        data = Dataset.from_dict({"text": ["w3"]})
        trainer = tiny.trainer(
            tiny.config(tmp_path),
            Sampled(),
            train_dataset=data.to_iterable_dataset() if streamed else data,
        )
        message = (
            r"^`trainer.train_dataset` has no column `prompt`, only \['text'\]\. Rename the one "
            r"that holds the prompts\.$"
        )
        with pytest.raises(ValueError, match=message):
            profile(trainer)

    @pytest.mark.parametrize(
        ("arguments", "kind", "message"),
        [
            (
                {"max_completion_length": 0},
                ValueError,
                r"`max_completion_length` must be an integer of at least 1, got 0\. Pass a "
                r"generous number of tokens, such as 2048\.",
            ),
            (
                {"num_prompts": 0},
                ValueError,
                r"`num_prompts` must be an integer of at least 1, got 0\. Pass 32, for example\.",
            ),
            (
                {"num_generations": 0},
                ValueError,
                r"`num_generations` must be an integer of at least 1, got 0\. Pass None for the "
                r"trainer's own number\.",
            ),
            (
                {"seed": 1.5},
                TypeError,
                r"`seed` must be an integer, got 1\.5\. Pass 0, for example\.",
            ),
        ],
    )
    def test_what_is_no_number_is_refused(self, arguments, kind, message, tmp_path):
        trainer = tiny.trainer(tiny.config(tmp_path), Sampled())
        with pytest.raises(kind, match=f"^{message}$"):
            profile(trainer, **arguments)

    def test_another_trainer_is_refused(self):
        message = (
            "^profile_rollouts works with trl's GRPOTrainer, RLOOTrainer and their subclasses, got "
            r"SimpleNamespace\. Pass such a trainer\.$"
        )
        with pytest.raises(TypeError, match=message):
            profile(SimpleNamespace())

    def test_a_trainer_without_training_data_is_refused(self, tmp_path):
        trainer = tiny.trainer(tiny.config(tmp_path), Sampled())
        trainer.train_dataset = None
        with pytest.raises(ValueError, match=r"^The trainer has no `train_dataset`, so there are"):
            profile(trainer)


class TestShardedModels:
    @pytest.mark.parametrize("wrapper", ["DeepSpeed", "FSDP"])
    def test_a_model_that_is_not_sharded_yet_is_refused(self, wrapper, tmp_path):
        trainer = tiny.trainer(tiny.config(tmp_path), Sampled())
        setattr(trainer, f"is_{wrapper.lower()}_enabled", True)
        message = (
            f"^{wrapper} has not sharded the model yet, so it cannot generate: `train\\(\\)` does "
            "that\\. Call profile_rollouts from the `on_train_begin` of a TrainerCallback of "
            f"yours, or in a run of its own without {wrapper}\\.$"
        )
        with pytest.raises(RuntimeError, match=message):
            profile(trainer)

    def test_a_sharded_one_generates(self, tmp_path, monkeypatch):
        import torch.distributed.fsdp

        trainer = tiny.trainer(tiny.config(tmp_path), Sampled(), rollouts=[[5, 1]])
        trainer.is_fsdp_enabled = trainer.is_deepspeed_enabled = True
        trainer.deepspeed = trainer.model
        monkeypatch.setattr(torch.distributed.fsdp, "FSDPModule", type(trainer.model))
        assert len(profile(trainer).sample) == 20
