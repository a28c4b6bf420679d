"""A tiny model, a tokenizer of sixteen words and canned rollouts, for the real trainers on CPU.

Vocabulary of the small cases: pad 0, eos 1, eot 2; the words w3 to w15 are themselves.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from datasets import Dataset, IterableDataset
from support import versions
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

PAD, EOS, EOT = 0, 1, 2
T8 = [5, 6, 7, 8, 9, 10, 11, 12]
E3 = [5, 6, 1]
LIMIT = 8
_MODELS: dict[str, Any] = {}
NEWER_SETTINGS = {"use_transformers_continuous_batching": "1.7", "entropy_coef": "1.8"}
"""The version of TRL that brought a setting: tests of it are skipped before."""


def tokenizer(**special: str) -> PreTrainedTokenizerFast:
    """Word-level; `<eot>` is a special token that the tokenizer does not call its eos."""
    words = {"<pad>": PAD, "<eos>": EOS, "<eot>": EOT} | {f"w{i}": i for i in range(3, 16)}
    core = Tokenizer(models.WordLevel(words, unk_token="w3"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {"pad_token": "<pad>", "eos_token": "<eos>", "additional_special_tokens": ["<eot>"]}
    # Without token types, which transformers 4 gives by default and Llama does not take.
    names |= {"model_input_names": ["input_ids", "attention_mask"]}
    return PreTrainedTokenizerFast(tokenizer_object=core, **(names | special))


def model(seed: int = 0, dtype: torch.dtype = torch.float32, **overrides: Any) -> LlamaForCausalLM:
    """One layer, hidden size 16; `overrides` are of its config.

    The numbers that a model begins with are drawn once, and copied with the state of the random
    numbers afterwards.
    """
    key = f"{seed} {dtype} {sorted(overrides.items())}"
    if key not in _MODELS:
        _MODELS[key] = _model(seed, overrides).to(dtype), torch.get_rng_state()
    made, random = _MODELS[key]
    torch.set_rng_state(random)
    return copy.deepcopy(made)


def _model(seed: int, overrides: dict[str, Any]) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    defaults = {
        "vocab_size": 16,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "pad_token_id": PAD,
        "eos_token_id": EOS,
        "bos_token_id": None,
    }
    return LlamaForCausalLM(LlamaConfig(**(defaults | overrides)))


def prompts(n: int) -> Dataset:
    """Prompts of one word each, all different up to 12."""
    return Dataset.from_dict({"prompt": [f"w{3 + i % 12}" for i in range(n)]})


def config(
    output_dir: Any, algorithm: str = "grpo", made_of: type | None = None, **overrides: Any
) -> Any:
    """One process, one optimizer step for each generation batch of 8 completions, groups of 4."""
    for name in NEWER_SETTINGS.keys() & overrides.keys():
        versions.require(NEWER_SETTINGS[name], name)
    defaults = {
        "output_dir": str(output_dir),
        "use_cpu": True,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": LIMIT,
        "max_steps": 1,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "shuffle_dataset": False,
        "seed": 1,
        "beta": 0.0,
    }
    if made_of is None:
        made_of = GRPOConfig if algorithm == "grpo" else RLOOConfig
    return made_of(**(defaults | overrides))


def trainer(
    args: Any,
    reward: Any,
    callbacks: Sequence[Any] = (),
    rollouts: Sequence[Sequence[int]] | None = None,
    base: type | None = None,
    **overrides: Any,
) -> Any:
    """A real trainer; with `rollouts`, generation answers with these token lists, over and over."""
    if base is None:
        base = GRPOTrainer if isinstance(args, GRPOConfig) else RLOOTrainer
    if isinstance(overrides.get("train_dataset"), IterableDataset):
        versions.require("1.9", "streams")
    made = base(
        **(
            {
                "model": model(),
                "reward_funcs": reward,
                "args": args,
                "train_dataset": prompts(64),
                "processing_class": tokenizer(),
                "callbacks": list(callbacks),
            }
            | overrides
        )
    )
    if rollouts is not None:
        can(made, rollouts)
    return made


def can(made: Any, rollouts: Sequence[Sequence[int]]) -> None:
    """Let generation answer with these token lists; each process takes its share in order."""
    rows = itertools.cycle(rollouts)
    process, processes = made.accelerator.process_index, made.accelerator.num_processes

    def generate(prompt_ids: Sequence[Any], *args: Any, **kwargs: Any) -> tuple[Any, None]:
        everybody = list(itertools.islice(rows, len(prompt_ids) * processes))
        mine = everybody[process * len(prompt_ids) : (process + 1) * len(prompt_ids)]
        ids = [list(row) for row in mine]
        return (ids, None) if hasattr(made, "loss_type") else ids

    made._generate_single_turn = generate


class SoftPunishment:
    """Like TRL 1.16's soft overlong punishment: an object with its two numbers as attributes."""

    __name__ = "soft_punishment"

    def __init__(self, max_completion_len: int, soft_punish_cache: int) -> None:
        self.max_completion_len = max_completion_len
        self.soft_punish_cache = soft_punish_cache

    def __call__(self, completion_ids: Any, **kwargs: Any) -> list[float]:
        begins = self.max_completion_len - self.soft_punish_cache
        over = [(begins - len(ids)) / self.soft_punish_cache for ids in completion_ids]
        return [min(0.0, max(-1.0, reward)) for reward in over]


def scripted(values: Sequence[float | None]) -> Callable[..., list[float | None]]:
    """A reward function that gives these values in turn."""
    numbers: Iterator[float | None] = itertools.cycle(values)

    def reward(completions: Sequence[Any], **kwargs: Any) -> list[float | None]:
        return list(itertools.islice(numbers, len(completions)))

    return reward


def capture(made: Any) -> list[dict[str, Any]]:
    """Collect what the trainer goes on with after each generation batch."""
    outputs: list[dict[str, Any]] = []
    score = made._generate_and_score_completions

    def scored(inputs: Any) -> Any:
        output = score(inputs)
        outputs.append(dict(output))
        return output

    made._generate_and_score_completions = scored
    return outputs
