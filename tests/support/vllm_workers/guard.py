"""What `test_guard.py` wants to know: what vLLM sampled, what trained, and what the guard said."""

import json
import logging
import sys
from pathlib import Path
from typing import Any

from support.vllm_engine import Lines, leave, make_trainer

from truncation_guard import TruncationGuardCallback

FOLDER, ADDRESS, SETTINGS = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])


class Sampled:
    """A reward that depends on the tokens, and remembers prompts and tokens of each batch."""

    __name__ = "sampled"

    def __init__(self) -> None:
        self.batches: list[dict[str, Any]] = []

    def __call__(
        self, prompts: list[str], completion_ids: list[list[int]], **kwargs: Any
    ) -> list[float]:
        rewards = [sum(ids) % 7 / 4 - 0.5 for ids in completion_ids]
        self.batches.append(
            {
                "prompt_lengths": [len(prompt.split()) for prompt in prompts],
                "completion_ids": [list(ids) for ids in completion_ids],
                "rewards": rewards,
            }
        )
        return rewards


def losses(trainer: Any) -> list[dict[str, Any]]:
    """What each loss is computed of; filled while the trainer trains."""
    seen: list[dict[str, Any]] = []
    compute = trainer._compute_loss

    def computed(model: Any, inputs: Any) -> Any:
        width = inputs["completion_mask"].sum(dim=1).tolist()
        ids = inputs["completion_ids"].tolist()
        loss = compute(model, inputs)
        in_loss = inputs.get("tool_mask", inputs["completion_mask"])
        seen.append(
            {
                "completion_ids": [row[:n] for row, n in zip(ids, width, strict=True)],
                "advantages": inputs["advantages"].flatten().tolist(),
                "loss_tokens": (in_loss * inputs["completion_mask"]).sum(dim=1).tolist(),
                "num_items_in_batch": float(inputs["num_items_in_batch"]),
                "loss": float(loss),
            }
        )
        return loss

    trainer._compute_loss = computed
    return seen


def main() -> dict[str, Any]:
    handler = Lines()
    logging.getLogger("truncation_guard").addHandler(handler)
    reward = Sampled()
    trainer = make_trainer(
        FOLDER,
        ADDRESS,
        reward,
        SETTINGS["prompts"],
        callbacks=[TruncationGuardCallback(mode=SETTINGS["mode"])],
        max_completion_length=SETTINGS["limit"],
        generation_kwargs=SETTINGS.get("generation_kwargs"),
        max_steps=len(SETTINGS["prompts"]) // 2,
    )
    seen = losses(trainer)
    trainer.train()
    record = (FOLDER / "truncation_guard.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in record]
    return {
        "batches": reward.batches,
        "losses": seen,
        "lines": handler.lines,
        "record": [entry for entry in entries if entry["kind"] == "batch"],
        "log": trainer.state.log_history,
    }


if __name__ == "__main__":
    leave(FOLDER, main())
