"""Objects with the attributes of a trainer, for the backends that a small CPU test cannot run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from support import tiny


def stand_in(**overrides: Any) -> Any:
    """A trainer's attributes as TRL 1.16 names them; transformers backend, limit 8."""
    model = tiny.model()
    defaults: dict[str, Any] = {
        "use_vllm": False,
        "use_transformers_continuous_batching": False,
        "processing_class": tiny.tokenizer(),
        "model": model,
        "eos_token_ids": [tiny.EOS],
        "args": SimpleNamespace(generation_kwargs=None, max_completion_length=8),
        "generation_kwargs": {"max_new_tokens": 8, "do_sample": True},
        "generation_config": SimpleNamespace(
            max_new_tokens=8, max_length=None, eos_token_id=[tiny.EOS], stop_strings=None
        ),
        "max_completion_length": 8,
        "max_tool_calling_iterations": 3,
        "mask_truncated_completions": False,
        "tools": [],
        "rollout_func": None,
        "environment_factories": None,
        "pad_to_multiple_of": None,
    }
    return SimpleNamespace(**(defaults | overrides))


class Backend(SimpleNamespace):
    """Like TRL's class it can be the key of a mapping."""

    __hash__ = object.__hash__


def vllm(mode: str = "colocate", **overrides: Any) -> Any:
    engine = SimpleNamespace(model_config=SimpleNamespace(max_model_len=48))
    defaults = {
        "mode": mode,
        "generation_kwargs": {},
        "max_completion_length": 16,
        "max_model_length": None,
        "server_base_url": "http://127.0.0.1:9",  # where nobody answers
    }
    if mode == "colocate":
        defaults["llm"] = SimpleNamespace(llm_engine=engine)
    return Backend(**(defaults | overrides))
