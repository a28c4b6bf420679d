"""What `test_killed.py` looks at: each process trains by itself and is killed while it writes."""

import dataclasses
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

PLACES = ("record", "state", "no state")
SHARE = int(os.environ["RANK"])
for variable in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"):
    del os.environ[variable]

from support.faults import courses  # noqa: E402
from transformers import TrainerState  # noqa: E402

from truncation_guard import record  # noqa: E402

SETTINGS: dict[str, Any] = {
    "max_steps": 8,
    "save_strategy": "steps",
    "save_steps": 2,
    "options": {"raise_limit_to": None},  # a resume sets a limit at once that was about to be set
}
KILLED_IN_STEP = 5
"""Its record line is torn: `checkpoint-4` is whole."""
KILLED_AT_CHECKPOINT = 4
"""It is torn: `checkpoint-2` is whole."""


def write_half(path: str, text: str, mode: str) -> NoReturn:
    with open(path, mode) as file:
        file.write(text[: len(text) // 2])
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def train(folder: Path, place: str) -> None:
    append, save_to_json = record.append, TrainerState.save_to_json

    def append_half(path: Path, entry: Any) -> None:
        if place == "record" and entry["kind"] == "batch" and entry["step"] == KILLED_IN_STEP:
            write_half(str(path), json.dumps(entry), "a")
        append(path, entry)

    def save_half(state: TrainerState, path: str) -> None:
        if f"checkpoint-{KILLED_AT_CHECKPOINT}/" in path and place == "state":
            write_half(path, json.dumps(dataclasses.asdict(state)), "w")
        if f"checkpoint-{KILLED_AT_CHECKPOINT}/" in path and place == "no state":
            os.kill(os.getpid(), signal.SIGKILL)
        save_to_json(state, path)

    record.append, TrainerState.save_to_json = append_half, save_half
    courses.run(folder, **SETTINGS)


if __name__ == "__main__":
    train(Path(sys.argv[1]) / PLACES[SHARE], PLACES[SHARE])
