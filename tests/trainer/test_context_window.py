"""The context window that a model's config means."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from transformers import GPT2Config, Qwen2Config

from truncation_guard.trainer.context_window import window_of_config

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}


@pytest.mark.parametrize(
    ("written", "settings", "window"),
    [
        # Qwen2.5's model card sets the factor and leaves the number as it was; Qwen3's raises both.
        (32768, {"rope_parameters": YARN}, 131072),
        (131072, {"rope_parameters": YARN}, 131072),
        (32768, {"rope_scaling": YARN}, 131072),
        (131072, {"rope_parameters": LLAMA3}, 131072),
        (4096, {"rope_scaling": {"type": "linear", "factor": 2.0}}, 8192),
        (4096, {"rope_parameters": {"full": {"rope_type": "dynamic", "factor": 2.0}}}, 8192),
        (4096, {"rope_parameters": {"rope_type": "linear", "factor": None}}, 4096),
        (4096, {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, 4096),
        (4096, {"rope_parameters": None}, 4096),
        (4096, {"rope_scaling": {"type": "linear", "factor": 8.0}, "model_type": "gemma3"}, 4096),
        (None, {"rope_parameters": YARN}, None),
    ],
)
def test_scaled_positions_make_the_window_longer(
    written: int | None, settings: dict[str, Any], window: int | None
) -> None:
    text = SimpleNamespace(max_position_embeddings=written, **settings)
    assert window_of_config(SimpleNamespace(get_text_config=lambda: text)) == window


def test_real_configs_of_transformers_are_understood() -> None:
    assert window_of_config(Qwen2Config(max_position_embeddings=32768, rope_scaling=YARN)) == 131072
    assert window_of_config(GPT2Config(n_positions=48)) == 48
