"""What is said of a set-up before it trains, on real trainers; both sides of each boundary."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from datasets import Dataset, IterableDataset
from support import chats, tiny
from support.stand_ins import stand_in, vllm
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from trl.rewards import get_soft_overlong_punishment

from truncation_guard.preflight.config_checks import check_setup, soft_punishment_findings
from truncation_guard.reporting.setup_finding import SetupFinding

MODES = ("observe", "downweight", "exclude", "penalize")
WINDOW = 64
"""Of the tiny model."""
ONE = tiny.scripted([1.0])


def findings(made: Any, mode: Any = "downweight", weight: float = 0.0) -> list[SetupFinding]:
    return check_setup(made, mode, weight)


def made_of(tmp_path, algorithm="grpo", rewards=ONE, base=None, **settings):
    """A real trainer; what is no setting of its config is an argument of its own."""
    names = ("model", "train_dataset", "processing_class")
    own = {name: settings.pop(name) for name in names if name in settings}
    return tiny.trainer(tiny.config(tmp_path, algorithm, **settings), rewards, base=base, **own)


def saved_model(tmp_path):
    """TRL loads its reference model, which it needs with `beta`, from where the policy is from."""
    tiny.model().save_pretrained(tmp_path / "model")
    return type(tiny.model()).from_pretrained(tmp_path / "model")


class TestNothing:
    @pytest.mark.parametrize("mode", MODES)
    def test_is_said_of_trls_defaults_where_all_is_well(self, tmp_path, mode):
        model = tiny.model()
        model.config.max_position_embeddings = 2048
        args = GRPOConfig(str(tmp_path), use_cpu=True, bf16=False, report_to="none")
        made = GRPOTrainer(
            model, ONE, args, train_dataset=tiny.prompts(100), processing_class=tiny.tokenizer()
        )
        assert findings(made, mode) == []

    @pytest.mark.parametrize("mode", ["observe", "downweight", "penalize"])
    def test_is_said_of_rloos_defaults_where_all_is_well(self, tmp_path, mode):
        model = saved_model(tmp_path)
        model.config.max_position_embeddings = 2048
        args = RLOOConfig(str(tmp_path), use_cpu=True, bf16=False, report_to="none")
        made = RLOOTrainer(
            model, ONE, args, train_dataset=tiny.prompts(100), processing_class=tiny.tokenizer()
        )
        assert made.beta > 0.0
        assert findings(made, mode) == []


LONGER = "use a longer window (with vLLM: vllm_max_model_length)"
WORDS = Dataset.from_dict({"prompt": ["w3", "w4 w5 w6 w7", "w8 w9", "w4 w5 w6"]})


class TestContext:
    @pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
    def test_limit_and_longest_prompt_fit_or_not(self, tmp_path, algorithm):
        fitting = made_of(
            tmp_path, algorithm, train_dataset=WORDS, max_completion_length=WINDOW - 4
        )
        assert findings(fitting) == []
        tight = made_of(tmp_path, algorithm, train_dataset=WORDS, max_completion_length=WINDOW - 2)
        assert findings(tight) == [
            SetupFinding(
                "context",
                "max_completion_length=62 and prompts of up to 4 tokens do not fit into the "
                "context window of 64 tokens together (2 of 4 prompts that were looked at): past "
                "it a model writes nonsense",
                f"set max_completion_length to at most 60, shorten the prompts, or {LONGER}",
            )
        ]

    def test_a_prompt_leaves_room_or_not(self, tmp_path):
        words = [" ".join(["w3"] * length) for length in (1, WINDOW - 1, 2)]
        data = Dataset.from_dict({"prompt": words})
        assert findings(made_of(tmp_path, train_dataset=data, max_completion_length=1)) == []
        data = Dataset.from_dict({"prompt": [*words, " ".join(["w3"] * WINDOW)]})
        assert findings(made_of(tmp_path, train_dataset=data, max_completion_length=1)) == [
            SetupFinding(
                "context",
                "1 of 4 prompts that were looked at leave no room for a completion in the context "
                "window of 64 tokens: the longest has 64",
                f"take such prompts out of the data set, shorten them, or {LONGER}",
            )
        ]

    def test_of_a_stream_only_the_limit_is_known(self, tmp_path):
        def stream():
            raise AssertionError("somebody reads it")
            yield

        def made(limit):
            return made_of(
                tmp_path,
                train_dataset=IterableDataset.from_generator(stream),
                max_completion_length=limit,
            )

        assert findings(made(WINDOW - 1)) == []
        assert findings(made(WINDOW)) == [
            SetupFinding(
                "context",
                "max_completion_length=64 leaves no room for a prompt in the context window of 64 "
                "tokens",
                f"set max_completion_length to at most 64 less the longest prompt, or {LONGER}",
            )
        ]

    def test_the_limit_is_named_where_it_comes_from(self, tmp_path):
        made = made_of(tmp_path, generation_kwargs={"max_new_tokens": WINDOW})
        (found,) = findings(made)
        assert found.fact.startswith("generation_kwargs['max_new_tokens']=64 and prompts of up to ")
        assert found.remedy.startswith("set generation_kwargs['max_new_tokens'] to at most 63, ")

    def test_without_a_limit_a_prompt_alone_may_fill_the_window(self, tmp_path):
        def made(max_length):
            trainer = made_of(tmp_path, train_dataset=WORDS, max_completion_length=None)
            trainer.generation_config.max_length = max_length
            return trainer

        assert findings(made(5)) == []
        (found,) = findings(made(4))
        assert found.fact == (
            "1 of 4 prompts that were looked at leave no room for a completion in the context "
            "window of 4 tokens: the longest has 4"
        )

    def test_a_model_without_a_known_window_is_left_alone(self):
        config = SimpleNamespace(get_text_config=SimpleNamespace)
        made = healthy_stand_in(model=SimpleNamespace(config=config))
        made.generation_config.max_new_tokens = 1000
        assert findings(made) == []

    @pytest.mark.parametrize(("limit", "fits"), [(44, True), (45, False)])
    def test_the_window_of_vllms_engine_counts(self, limit, fits):
        made = healthy_stand_in(
            use_vllm=True,
            vllm_generation=vllm("colocate", max_completion_length=limit),
            train_dataset=WORDS,
            _tokenize_prompts=lambda prompts: ([p.split() for p in prompts], None, {}),
        )
        said = [
            SetupFinding(
                "context",
                "max_completion_length=45 and prompts of up to 4 tokens do not fit into the "
                "context window of 48 tokens together (1 of 4 prompts that were looked at): "
                "completions are cut off there",
                f"set max_completion_length to at most 44, shorten the prompts, or {LONGER}",
            )
        ]
        assert findings(made) == ([] if fits else said)


def healthy_stand_in(**overrides):
    defaults = {
        "train_dataset": None,
        "chat_template_kwargs": {},
        "reward_funcs": [],
        "num_generations": 8,
        "num_generations_eval": 8,
        "beta": 0.0,
    }
    return stand_in(**(defaults | overrides))


def chat_tokenizer(**special):
    """The tiny one, whose template ends a turn with `<eot>`."""
    made = tiny.tokenizer(**special)
    made.chat_template = "{% for m in messages %}{{ m['content'] }} <eot> {% endfor %}"
    return made


CHATS = Dataset.from_dict({"prompt": [[chats.user("w3")]] * 8})
DEEPSEEKS = "<\uff5cend\u2581of\u2581sentence\uff5c>"
OTHER_TOKENS = (
    *("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<turn|>", "<|call|>", "<|return|>"),
    *("<|END_RESPONSE|>", "<|END_OF_TURN_TOKEN|>"),
)
"""Beside those of `chats`."""
FAMILIES = {
    "qwen2_5": ("<|endoftext|>", ["<|im_end|>", "<|endoftext|>"]),
    "qwen3": ("<|im_end|>", ["<|im_end|>", "<|endoftext|>"]),
    "gemma": ("</s>", ["</s>", "<end_of_turn>"]),
    "gemma4": ("</s>", ["</s>", "<turn|>"]),
    "llama3_2": ("<|eot_id|>", ["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"]),
    "phi3_5": ("<|endoftext|>", ["<|end|>", "<|assistant|>", "<|endoftext|>"]),
    "gptoss": ("<|return|>", ["<|return|>", "<|endoftext|>", "<|call|>"]),
    "cohere2": ("<|END_OF_TURN_TOKEN|>", ["<|END_OF_TURN_TOKEN|>"]),
    "deepseekv3": (DEEPSEEKS, [DEEPSEEKS]),
    "glm4moe": ("<|endoftext|>", ["<|endoftext|>", "<|user|>"]),
}
"""Template -> the tokenizer's end and what the model's generation config stops at."""


def of_family(name, eos, stops):
    template = chats.template_of_trl(name)
    # No more than the family has: <|end|> is another token where there is a <|return|>.
    of_its_own = [token for token in OTHER_TOKENS if token in (eos, *stops) or token in template]
    tokenizer = chats.tokenizer(template, eos, additional_special_tokens=of_its_own)
    ids = tokenizer.convert_tokens_to_ids(stops)
    return healthy_stand_in(
        processing_class=tokenizer,
        eos_token_ids=ids,
        generation_config=SimpleNamespace(max_new_tokens=8, max_length=None, eos_token_id=ids),
        train_dataset=CHATS,
        _tokenize_prompts=lambda prompts: ([[5]] * len(prompts), None, {}),
    )


class TestStopTokens:
    @pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
    def test_the_templates_end_of_turn_stops_generation_or_not(self, tmp_path, algorithm):
        def made(**settings):
            settings = {"processing_class": chat_tokenizer(), "train_dataset": CHATS} | settings
            return made_of(tmp_path, algorithm, **settings)

        assert findings(made(model=tiny.model(eos_token_id=[tiny.EOS, tiny.EOT]))) == []
        assert findings(made(generation_kwargs={"eos_token_id": [tiny.EOS, tiny.EOT]})) == []
        assert findings(made(train_dataset=tiny.prompts(8))) == []  # no template, no turn
        assert findings(made()) == [
            SetupFinding(
                "stop-tokens",
                "the chat template ends an answer with token 2 (<eot>), but generation only stops "
                "at 1: answers that are finished run on to the limit",
                "before the trainer is built, add 2 to model.generation_config.eos_token_id (with "
                "vLLM also to generation_kwargs: stop_token_ids)",
            )
        ]

    def test_what_was_asked_to_stop_generation_is_trusted(self, tmp_path):
        made = made_of(
            tmp_path,
            processing_class=chat_tokenizer(),
            train_dataset=CHATS,
            generation_kwargs={"stop_strings": ["<eot>"]},
        )
        assert findings(made) == []

    @pytest.mark.parametrize("family", FAMILIES)
    def test_no_false_alarm_for_a_family_as_it_comes(self, family):
        made = of_family(family, *FAMILIES[family])
        assert made.processing_class.eos_token_id in made.eos_token_ids
        assert findings(made) == []

    @pytest.mark.parametrize(
        ("family", "eos", "end"),
        [
            ("qwen2_5", "<|endoftext|>", "<|im_end|>"),
            ("gemma", "</s>", "<end_of_turn>"),
            ("llama3_2", "<|end_of_text|>", "<|eot_id|>"),
            ("phi3_5", "<|endoftext|>", "<|end|>"),
            ("gptoss", "<|endoftext|>", "<|return|>"),
        ],
    )
    def test_a_family_that_stops_at_the_end_of_texts_alone(self, family, eos, end):
        made = of_family(family, eos, [eos])
        (found,) = findings(made)
        token = made.processing_class.convert_tokens_to_ids(end)
        assert found.fact == (
            f"the chat template ends an answer with token {token} ({end}), but generation only "
            f"stops at {made.eos_token_ids[0]}: answers that are finished run on to the limit"
        )

    def test_where_no_token_is_known_by_name_any_of_the_templates_will_do(self):
        template = "{% for m in messages %}{{ m['content'] }}<|user|><|assistant|>{% endfor %}"
        made = of_family("qwen3", "<|im_end|>", ["<|im_end|>"])
        made.processing_class.chat_template = template
        (found,) = findings(made)
        assert "(<|user|>)" in found.fact
        made.eos_token_ids = made.processing_class.convert_tokens_to_ids(["<|assistant|>"])
        assert findings(made) == []


BUILD = "build it with max_completion_len={} and a soft_punish_cache below that"
NEVER = SetupFinding(
    "soft-punishment",
    "get_soft_overlong_punishment(1280, 256) begins above 1024 tokens: under "
    "max_completion_length=512 never",
    BUILD.format(512),
)


class TestSoftPunishment:
    @pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
    def test_is_read_from_the_reward_functions(self, tmp_path, algorithm):
        rewards = [ONE, get_soft_overlong_punishment(1280, 256)]
        made = made_of(tmp_path, algorithm, rewards, max_completion_length=512)
        made.model.config.max_position_embeddings = 2048
        assert findings(made) == [NEVER]

    def test_one_that_ends_at_the_limit_is_well(self, tmp_path):
        rewards = [get_soft_overlong_punishment(tiny.LIMIT, 3)]
        assert findings(made_of(tmp_path, rewards=rewards)) == []

    def test_is_checked_against_a_limit_that_was_raised(self, tmp_path):
        made = made_of(tmp_path, rewards=[get_soft_overlong_punishment(tiny.LIMIT, 3)])
        assert soft_punishment_findings(made, tiny.LIMIT) == []
        assert soft_punishment_findings(made, 16) == [
            SetupFinding(
                "soft-punishment",
                "get_soft_overlong_punishment(8, 3) is at its full -1 above 8 tokens, below "
                "max_completion_length=16: a completion that needs more and finishes is punished "
                "like one that is cut off",
                BUILD.format(16),
            )
        ]
        assert soft_punishment_findings(made, None) == []


MASKED = "mask_truncated_completions=True takes truncated completions out of the loss"
UNMASK = "set mask_truncated_completions=False"
REDUNDANT = SetupFinding(
    "masked-twice",
    f"{MASKED}, which mode='exclude' does as well, and also those that ended below every limit "
    "without a stop token",
    UNMASK,
)


class TestMask:
    @pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
    @pytest.mark.parametrize(
        ("mode", "weight", "expected"),
        [
            ("observe", 0.0, []),
            ("downweight", 0.0, []),
            ("downweight", 1.0, []),
            (
                "downweight",
                0.5,
                [
                    SetupFinding(
                        "masked-twice",
                        f"{MASKED}, so truncated_weight=0.5 has no effect",
                        f"{UNMASK}, or truncated_weight=0.0",
                    )
                ],
            ),
            ("exclude", 0.0, [REDUNDANT]),
            (
                "penalize",
                0.0,
                [
                    SetupFinding(
                        "masked-twice",
                        f"{MASKED}, so the penalty never reaches them: it only moves the baseline "
                        "of the completions that finish",
                        UNMASK,
                    )
                ],
            ),
        ],
    )
    def test_meets_each_mode(self, tmp_path, algorithm, mode, weight, expected):
        masked = made_of(tmp_path, algorithm, mask_truncated_completions=True)
        assert findings(masked, mode, weight) == expected
        assert findings(made_of(tmp_path, algorithm), mode, weight) == []


class TestKlTerm:
    @pytest.mark.parametrize(
        ("settings", "mode", "weight", "is_said"),
        [
            ({"beta": 0.04}, "downweight", 0.0, True),
            ({"beta": 0.04}, "downweight", 0.99, True),
            ({"beta": 0.04}, "downweight", 1.0, False),
            ({"beta": 0.0}, "downweight", 0.0, False),
            ({"beta": 0.04}, "observe", 0.0, False),
            ({"beta": 0.04}, "exclude", 0.0, False),
            ({"beta": 0.04}, "penalize", 0.0, False),
            ({"beta": 0.04, "mask_truncated_completions": True}, "downweight", 0.0, False),
            ({"beta": 0.04, "algorithm": "rloo"}, "downweight", 0.0, False),
        ],
    )
    def test_of_truncated_completions_stays(self, tmp_path, settings, mode, weight, is_said):
        made = made_of(tmp_path, model=saved_model(tmp_path), **settings)
        said = SetupFinding(
            "kl-term",
            f"mode='downweight' multiplies the advantages of truncated completions by {weight:g}, "
            "but not their KL term: with beta=0.04 all of their tokens are still pulled towards "
            "the reference model",
            "use mode='exclude', which takes them out of the KL term too, or set beta=0.0",
        )
        assert findings(made, mode, weight) == ([said] if is_said else [])


class TestEntropyTerm:
    @pytest.mark.parametrize(
        ("settings", "mode", "weight", "is_said"),
        [
            ({"entropy_coef": 0.01}, "downweight", 0.0, True),
            ({"entropy_coef": 0.01}, "downweight", 1.0, False),
            ({"entropy_coef": 0.0}, "downweight", 0.0, False),
            ({"use_adaptive_entropy": True}, "downweight", 0.5, True),
            ({"entropy_coef": 0.01}, "exclude", 0.0, False),
            ({"entropy_coef": 0.01}, "penalize", 0.0, False),
            (
                {"entropy_coef": 0.01, "mask_truncated_completions": True},
                *("downweight", 0.0, False),
            ),
        ],
    )
    def test_of_truncated_completions_stays(self, tmp_path, settings, mode, weight, is_said):
        made = made_of(tmp_path, **settings)
        said = SetupFinding(
            "entropy-term",
            f"mode='downweight' multiplies the advantages of truncated completions by {weight:g}, "
            "but not their entropy bonus, which all of their tokens still get",
            "use mode='exclude', which takes them out of the bonus too, or set entropy_coef=0.0",
        )
        assert findings(made, mode, weight) == ([said] if is_said else [])


def unsloths(reads_tool_mask):
    """TRL's trainer under the name that Unsloth gives it."""

    def new(self, model, inputs, *args, **kwargs):
        tool_mask = inputs.get("tool_mask")
        return inputs["completion_mask"] * tool_mask

    def old(self, model, inputs, *args, **kwargs):
        return inputs["completion_mask"]

    loss, name = new if reads_tool_mask else old, "UnslothGRPOTrainer"
    return type(name, (GRPOTrainer,), {"compute_loss": loss, "__module__": name})


class TestUnsloth:
    def test_keeps_excluded_completions_in_its_mask(self, tmp_path):
        made = made_of(tmp_path, base=unsloths(reads_tool_mask=False))
        assert findings(made, "exclude") == [
            SetupFinding(
                "unsloth",
                "Unsloth builds the loss mask anew from the token ids, so the completions that "
                "mode='exclude' takes out of it stay in the denominator of the loss and in its KL "
                "term",
                "set mask_truncated_completions=True, which this version of Unsloth heeds, or "
                "update unsloth and unsloth_zoo",
            )
        ]
        assert findings(made, "downweight") == findings(made, "penalize") == []

    def test_that_is_told_to_mask_is_well(self, tmp_path):
        base = unsloths(reads_tool_mask=False)
        made = made_of(tmp_path, base=base, mask_truncated_completions=True)
        assert findings(made, "exclude") == []

    def test_of_a_newer_version_is_like_trl(self, tmp_path):
        base = unsloths(reads_tool_mask=True)
        assert findings(made_of(tmp_path, base=base), "exclude") == []
        made = made_of(tmp_path, base=base, mask_truncated_completions=True)
        assert findings(made, "exclude") == [REDUNDANT]


class TestGroups:
    @pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
    @pytest.mark.parametrize(
        ("number", "mode", "is_said"),
        [(2, "exclude", True), (3, "exclude", False)]
        + [(2, mode, False) for mode in ("observe", "downweight", "penalize")],
    )
    def test_of_two_are_emptied_by_one_that_is_excluded(
        self, tmp_path, algorithm, number, mode, is_said
    ):
        made = made_of(tmp_path, algorithm, num_generations=number, per_device_train_batch_size=6)
        said = SetupFinding(
            "groups",
            "with num_generations=2 one truncated completion empties its group: mode='exclude' "
            "leaves a single one, which has nothing to be compared with",
            "raise num_generations to at least 3, or use mode='downweight'",
        )
        assert findings(made, mode) == ([said] if is_said else [])


class TestFaults:
    def test_a_chat_template_that_raises_says_nothing_and_stops_no_other_check(
        self, tmp_path, caplog
    ):
        tokenizer = chat_tokenizer()
        tokenizer.chat_template = "{{ raise_exception('no chat today') }}"
        made = made_of(
            tmp_path,
            rewards=[get_soft_overlong_punishment(1280, 256)],
            processing_class=tokenizer,
            train_dataset=CHATS,
            mask_truncated_completions=True,
        )
        with caplog.at_level(logging.DEBUG, "truncation_guard"):
            kinds = [found.kind for found in findings(made, "exclude")]
        assert kinds == ["soft-punishment", "masked-twice"]
        assert [record.getMessage() for record in caplog.records] == [
            "[truncation-guard] preflight: _check_context failed",
            "[truncation-guard] preflight: _check_stop_tokens failed",
        ]

    def test_nothing_at_all_can_be_read(self):
        assert findings(SimpleNamespace(), "exclude") == []

    def test_several_findings_come_in_the_order_of_their_urgency(self, tmp_path):
        made = made_of(
            tmp_path,
            rewards=[get_soft_overlong_punishment(1280, 256)],
            processing_class=chat_tokenizer(),
            train_dataset=CHATS,
            max_completion_length=WINDOW,
            mask_truncated_completions=True,
            num_generations=2,
        )
        assert [found.kind for found in findings(made, "exclude")] == [
            "context",
            "stop-tokens",
            "soft-punishment",
            "masked-twice",
            "groups",
        ]
