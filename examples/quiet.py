"""Keeps the output of the examples to what they have to say."""

import warnings
from typing import Any

import transformers
from datasets import disable_progress_bars

# Arguments of a TRL config for a training that stays on the CPU and prints nothing by itself.
ON_THE_CPU: dict[str, Any] = {
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "logging_steps": 1,
    "report_to": "none",
    "save_strategy": "no",
    "disable_tqdm": True,
}


def keep_quiet() -> None:
    """Silences what transformers and datasets say, for the rest of the process."""
    transformers.logging.set_verbosity_error()
    # TRL 1.16 sets gradient checkpointing by a name that transformers 5.24 calls deprecated.
    warnings.filterwarnings("ignore", category=FutureWarning, message=".*gradient_checkpointing")
    disable_progress_bars()
