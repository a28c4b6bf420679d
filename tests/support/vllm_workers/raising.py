"""What `test_raising.py` wants to know: the limits that a guard sets, and rollouts under them."""

import json
import logging
import sys
from pathlib import Path
from typing import Any

from support.vllm_engine import Lines, leave, make_trainer, words

from truncation_guard import TruncationGuardCallback
from truncation_guard.trainer.limit import get_limit

FOLDER, ADDRESS, SETTINGS = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])


def main() -> dict[str, Any]:
    handler = Lines()
    logging.getLogger("truncation_guard").addHandler(handler)
    batches: list[tuple[int, int]] = []

    def lengths(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        batches.append((get_limit(trainer), max(map(len, completion_ids))))
        return [float(sum(ids) % 7) for ids in completion_ids]

    trainer = make_trainer(
        FOLDER,
        ADDRESS,
        lengths,
        [*(words(2 + i % 3, i) for i in range(159)), words(5)],  # the longest comes last
        callbacks=[TruncationGuardCallback(window=128, raise_limit_to=SETTINGS["ceiling"])],
        max_completion_length=6,
        max_steps=80,
        learning_rate=0.0,
        generation_kwargs=SETTINGS.get("generation_kwargs"),
    )
    trainer.train()
    return {"batches": batches, "lines": handler.lines}


if __name__ == "__main__":
    leave(FOLDER, main())
