"""`set_max_completion_length`: another limit for a trainer that exists.

The one idea: TRL reads its config once, when the trainer is built; who changes the limit later has
to change it in every place that something reads it from, and that is done here.
"""

from typing import Any

from truncation_guard.checks import is_integer
from truncation_guard.trainer import limit, settings


def set_max_completion_length(
    trainer: Any, max_completion_length: int, *, longest_prompt: int = 0
) -> None:
    """Set the limit that the next generation of this trainer obeys, up or down.

    To assign `args.max_completion_length` or `trainer.max_completion_length` does not do it. This
    sets both, for the log, the tool loop and the loss, and besides what generation reads:

    - transformers, with continuous batching too: `trainer.generation_config.max_new_tokens`;
    - vLLM, colocated or as a server: `trainer.vllm_generation.max_completion_length`;
    - a `max_new_tokens` (with vLLM: `max_tokens`) in `generation_kwargs`, where there is one, since
      it overrides the limit.

    Completions that are generated already stay as they are. On several processes all of them make
    this call, for example in a callback's `on_step_end`.

    The limit is bounded by the context window: that of the model, with vLLM that of its engine,
    which is fixed when the engine starts. Beyond it transformers writes nonsense, a colocated
    engine ends the completion at its window, and a server refuses the request, which ends the
    training: with a server, and wherever the limit is near the window, pass `longest_prompt`.

    The loss of `dr_grpo` is divided by the limit: twice the limit halves its steps.

    Args:
        trainer: a GRPOTrainer or RLOOTrainer.
        max_completion_length: in tokens.
        longest_prompt: in tokens; room in the context window that prompts need besides. 0: only
            the limit is checked.

    Raises:
        TypeError: for another trainer.
        ValueError: if the limit is no integer of at least 1, `longest_prompt` no integer of at
            least 0, or both together exceed the context window. Nothing has changed then.
    """
    settings.check_supported("set_max_completion_length", trainer, "Pass such a trainer.")
    if not (is_integer(longest_prompt) and longest_prompt >= 0):
        raise ValueError(
            f"`longest_prompt` must be an integer of at least 0, got {longest_prompt!r}. Pass the "
            "tokens of the longest prompt, or 0 to check the limit alone."
        )
    limit.set_limit(trainer, max_completion_length, longest_prompt=longest_prompt)
