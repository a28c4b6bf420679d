"""Starts a worker script on several processes of torch.distributed, on this machine.

The one idea: a worker runs many scenarios one after the other in one process group, and leaves each
one's result and output as soon as it is over, so that a hang costs what comes after it and nothing
more. `launch` is for tests; `settle_down`, `scenario` and `quit_now` are for workers.
"""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORKERS = Path(__file__).parent / "workers"
COLLECTIVE_TIMEOUT = 60
"""Seconds after which a collective that somebody does not come to raises, for `ddp_timeout`."""
_TIMEOUT = 300
_AFTER_ONE_FAILED = 20
_RESULTS = "TRUNCATION_GUARD_TEST_RESULTS"
_MARK = "=== scenario "


@dataclass(frozen=True)
class Launch:
    """What the processes left behind."""

    results: list[dict[str, Any]]
    """Of each rank: scenario -> what its function returned."""
    outputs: list[str]
    """Of each rank: stdout and stderr."""
    exit_codes: list[int]
    """Of each rank; -9 where it was killed at the time limit."""
    folder: Path
    """Where the scenarios wrote."""

    def of(self, scenario: str) -> list[Any]:
        """The results of a scenario, rank 0 first."""
        missing = [rank for rank, results in enumerate(self.results) if scenario not in results]
        tails = "".join(f"\n--- rank {r}:\n{self.outputs[r][-1500:]}" for r in missing)
        assert not missing, f"{scenario} did not get to its end on ranks {missing}{tails}"
        return [results[scenario] for results in self.results]

    def output(self, scenario: str) -> str:
        """What all ranks wrote during a scenario."""
        parts = []
        for output in self.outputs:
            sections = re.split(rf"(?m)^{_MARK}(.+)$", output)
            parts += [
                text
                for name, text in zip(sections[1::2], sections[2::2], strict=True)
                if name == scenario
            ]
        return "".join(parts)

    def lines(self, scenario: str, text: str) -> list[str]:
        """The lines with `text` that all ranks wrote during a scenario."""
        return [line for line in self.output(scenario).splitlines() if text in line]


def launch(worker: str | Path, processes: int, folder: Path, *arguments: str) -> Launch:
    """Run a worker on so many processes, and kill what is left of them after five minutes.

    Where one process fails, the others get 20 seconds.

    Args:
        worker: a script, by its path or by its name in `workers`; its first argument is `folder`.
        processes: how many.
        folder: for what the scenarios write.
        arguments: more for the worker.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    before = os.environ["PYTHONPATH"].split(os.pathsep) if "PYTHONPATH" in os.environ else []
    running = []
    for rank in range(processes):
        environment = os.environ | {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(processes),
            "LOCAL_WORLD_SIZE": str(processes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *before]),
            _RESULTS: str(folder / f"results{rank}.jsonl"),
        }
        with (folder / f"output{rank}.txt").open("wb") as output:
            running.append(
                subprocess.Popen(
                    [sys.executable, str(WORKERS / worker), str(folder), *arguments],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
    try:
        _wait(running)
    finally:
        for process in running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return Launch(
        results=[_read_results(folder / f"results{rank}.jsonl") for rank in range(processes)],
        outputs=[
            (folder / f"output{rank}.txt").read_text(errors="replace") for rank in range(processes)
        ],
        exit_codes=[process.returncode for process in running],
        folder=folder,
    )


def scenario(name: str, work: Callable[[], Any]) -> None:
    """Do the work of one scenario and leave what it returns, a JSON value, for the test."""
    sys.stdout.write(f"\n{_MARK}{name}\n")
    result = work()
    with open(os.environ[_RESULTS], "a") as file:
        file.write(json.dumps({"name": name, "result": result}) + "\n")


def settle_down() -> None:
    """Once all is imported: accelerate collects garbage after each training, among all of that."""
    gc.collect()
    gc.freeze()


def quit_now() -> None:
    """End this process without a word to the others, who may wait for it for ever."""
    import coverage

    if (measured := coverage.Coverage.current()) is not None:
        measured.stop()
        measured.save()
    sys.stdout.flush()
    os._exit(0)


def _wait(running: list[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + _TIMEOUT
    failed = False
    while time.monotonic() < deadline and any(process.poll() is None for process in running):
        if not failed and any(process.poll() for process in running):
            failed = True
            deadline = min(deadline, time.monotonic() + _AFTER_ONE_FAILED)
        time.sleep(0.05)


def _read_results(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    return {entry["name"]: entry["result"] for entry in entries}
