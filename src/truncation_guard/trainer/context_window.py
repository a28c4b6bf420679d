"""The context window: tokens that prompt and completion may have together.

Read in TRL 1.16 and transformers 5.24.
"""

from typing import Any

from truncation_guard.trainer.versions import unset_max_length
from truncation_guard.trainer.vllm_server import server_window


def get_context_window(trainer: Any, limit: int | None) -> int | None:
    """The context window in tokens under this limit; None where unknown."""
    if trainer.use_vllm:
        vllm = trainer.vllm_generation
        if vllm.mode == "colocate":
            return int(vllm.llm.llm_engine.model_config.max_model_len)
        if (served := server_window(vllm)) is not None:
            return served
        if vllm.max_model_length is not None:
            return int(vllm.max_model_length)
    elif limit is None:
        return max_length(trainer)
    return window_of_config(getattr(trainer.model, "module", trainer.model).config)


def stops_at_window(trainer: Any) -> bool:
    """Whether generation ends a completion at the context window instead of running past it.

    Transformers does so only where nothing limits the number of new tokens.
    """
    return bool(trainer.use_vllm) or max_new_tokens(trainer) is None


def window_of_config(config: Any) -> int | None:
    """The context window in a transformers config, in tokens; None where it names none.

    For scaled rotary positions this is the largest window they may mean, by the rules of vLLM 0.31:
    `max_position_embeddings` holds the scaled number in some models and the original in others.
    """
    text = config.get_text_config()
    window: int | None = getattr(text, "max_position_embeddings", None)
    # transformers 5 has the first name, 4 the second; both may hold one of each type of layer.
    scaling = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    layers = [part for part in scaling.values() if isinstance(part, dict)] or [scaling]
    if window is None or "gemma3" in getattr(text, "model_type", ""):  # scaled already
        return window
    return max(window, *(_scaled_window(layer, window) for layer in layers))


def max_new_tokens(trainer: Any) -> int | None:
    """`max_new_tokens` of the transformers backends: the trainer's, else the model's own."""
    own: int | None = trainer.generation_config.max_new_tokens
    return trainer.model.generation_config.max_new_tokens if own is None else own


def max_length(trainer: Any) -> int | None:
    """`max_length` of prompt and completion, which transformers ignores beside `max_new_tokens`."""
    configs = (trainer.generation_config, trainer.model.generation_config)
    unset = (None, unset_max_length())
    return next((c.max_length for c in configs if c.max_length not in unset), None)


def _scaled_window(rope: dict[str, Any], window: int) -> int:
    kind = rope.get("rope_type", rope.get("type", "default"))
    factor = rope.get("factor") or 1.0
    if kind in ("default", "llama3", "longrope"):
        return window
    base = rope.get("original_max_position_embeddings") if kind == "yarn" else window
    return int((base or window) * factor)
