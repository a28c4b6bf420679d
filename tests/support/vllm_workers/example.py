"""What `test_example.py` wants to know: `examples/with_vllm.py`, run as it is, on a tiny model."""

import json
import sys
from pathlib import Path
from typing import Any

from support import chats
from support.vllm_engine import leave, make_colocation_work_on_a_cpu, save_model

import gsm8k
import with_vllm
from truncation_guard.record import FILE_NAME, read_record
from truncation_guard.trainer.context_window import get_context_window
from truncation_guard.trainer.limit import get_limit

FOLDER = Path(sys.argv[1])


def main() -> dict[str, Any]:
    make_colocation_work_on_a_cpu()
    save_model(FOLDER / "model", chats.tokenizer(), window=512)
    rows = [{"question": f"{n} and {n}?", "answer": f"#### {2 * n}"} for n in range(1, 17)]
    (FOLDER / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    trainers = []

    def keep(*arguments: Any, **settings: Any) -> Any:
        trainers.append(made := make_trainer(*arguments, **settings))
        return made

    make_trainer, gsm8k.make_trainer = gsm8k.make_trainer, keep
    sys.argv = [
        "with_vllm.py",
        *("--model", str(FOLDER / "model"), "--dataset", str(FOLDER / "questions.jsonl")),
        *("--output_dir", str(FOLDER / "run"), "--use_cpu", "--max_steps", "2"),
        *("--num_generations", "4", "--per_device_train_batch_size", "8"),
        *("--gradient_accumulation_steps", "1", "--num_prompts", "4"),
        *("--profile_limit", "24", "--raise_limit_to", "48", "--max_prompt_length", "128"),
    ]
    with_vllm.main()
    (trainer,) = trainers
    (run,) = read_record(FOLDER / "run" / FILE_NAME)
    return {
        "window": get_context_window(trainer, get_limit(trainer)),
        "batches": list(run.batches.values()),
        "saved": (FOLDER / "run" / "config.json").is_file(),
    }


if __name__ == "__main__":
    leave(FOLDER, main())
