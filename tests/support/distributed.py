"""Starts a worker script on several processes of torch.distributed, on this machine.

A worker runs many scenarios one after the other in one process group, and leaves the result and the
output of each as soon as it is over: a hang costs only what comes after it. `start` and `launch`
are for tests; `folder_of`, `settle_down`, `begin_part`, `scenario` and `quit_now` are for workers.
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
from types import SimpleNamespace
from typing import Any

WORKERS = Path(__file__).parent / "workers"
COLLECTIVE_TIMEOUT = 60
"""Seconds after which a collective that somebody does not come to raises, for `ddp_timeout`."""
_TIMEOUT = 600
_AFTER_ONE_FAILED = 20
_RESULTS = "TRUNCATION_GUARD_TEST_RESULTS"
_part = ""
_SCENARIO = "=== scenario "
_PART = "=== part "


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

    def part(self, worker: str) -> Launch:
        """What one worker of `together.py` left behind."""
        return Launch(
            results=[
                {
                    name.removeprefix(f"{worker}/"): result
                    for name, result in results.items()
                    if name.startswith(f"{worker}/")
                }
                for results in self.results
            ],
            outputs=[_sections(output, _PART, worker) for output in self.outputs],
            exit_codes=self.exit_codes,
            folder=self.folder / worker,
        )

    def output(self, scenario: str) -> str:
        """What all ranks wrote during a scenario."""
        return "".join(_sections(output, _SCENARIO, scenario) for output in self.outputs)

    def lines(self, scenario: str, text: str) -> list[str]:
        """The lines with `text` that all ranks wrote during a scenario."""
        return [line for line in self.output(scenario).splitlines() if text in line]


class Running:
    """A worker on its processes; whoever starts one waits for it or kills it."""

    def __init__(self, processes: list[subprocess.Popen[bytes]], folder: Path) -> None:
        self._processes = processes
        self._folder = folder
        self._deadline = time.monotonic() + _TIMEOUT
        self._left: Launch | None = None

    def wait(self) -> Launch:
        """What the processes left behind, once all of them are over.

        They are killed after ten minutes, and 20 seconds after one of them failed.
        """
        if self._left is None:
            try:
                self._wait()
            finally:
                self.kill()
            ranks = range(len(self._processes))
            outputs = [self._folder / f"output{rank}.txt" for rank in ranks]
            self._left = Launch(
                results=[_read_results(self._folder / f"results{rank}.jsonl") for rank in ranks],
                outputs=[path.read_text(errors="replace") for path in outputs],
                exit_codes=[process.returncode for process in self._processes],
                folder=self._folder,
            )
        return self._left

    def kill(self) -> None:
        """End what is left of them."""
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _wait(self) -> None:
        deadline, failed = self._deadline, False
        while time.monotonic() < deadline and any(p.poll() is None for p in self._processes):
            if not failed and any(process.poll() for process in self._processes):
                failed = True
                deadline = min(deadline, time.monotonic() + _AFTER_ONE_FAILED)
            time.sleep(0.05)


def launch(worker: str, processes: int, folder: Path, *arguments: str) -> Launch:
    """Run a worker on so many processes; see `start`."""
    return start(worker, processes, folder, *arguments).wait()


def start(worker: str, processes: int, folder: Path, *arguments: str) -> Running:
    """Start a worker on so many processes.

    Args:
        worker: a script in `workers`; its first argument is `folder`.
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
    return Running(running, folder)


def folder_of(worker: str) -> Path:
    """Where the scenarios of one worker of `together.py` write."""
    return Path(sys.argv[1], worker)


def begin_part(worker: str) -> None:
    """The scenarios of this worker come next."""
    global _part
    _part = f"{worker}/"
    sys.stdout.write(f"\n{_PART}{worker}\n")


def scenario(name: str, work: Callable[[], Any]) -> None:
    """Do the work of one scenario and leave what it returns, a JSON value, for the test."""
    sys.stdout.write(f"\n{_SCENARIO}{name}\n")
    result = work()
    with open(os.environ[_RESULTS], "a") as file:
        file.write(json.dumps({"name": f"{_part}{name}", "result": result}) + "\n")


def settle_down() -> None:
    """Once all is imported: garbage is looked for among what comes after, and in good time.

    Accelerate collects garbage after each training, whose model may have filled a GPU, and torch
    writes down where each seed for a missing GPU comes from.
    """
    import accelerate.utils.memory
    import torch

    gc.collect()
    gc.freeze()
    accelerate.utils.memory.gc = SimpleNamespace(collect=lambda: 0)
    for backend in (torch.cuda, torch.xpu, torch.mtia):
        if not backend.is_available():  # it would note each seed, with the stack, for later
            backend._lazy_call = lambda *args, **kwargs: None


def quit_now() -> None:
    """End this process without a word to the others, who may wait for it for ever."""
    import coverage

    if (measured := coverage.Coverage.current()) is not None:
        measured.stop()
        measured.save()
    sys.stdout.flush()
    os._exit(0)


def _sections(output: str, mark: str, name: str) -> str:
    """What stands below the lines of this mark and name."""
    sections = re.split(rf"(?m)^{mark}(.+)$", output)
    found = zip(sections[1::2], sections[2::2], strict=True)
    return "".join(text for title, text in found if title == name)


def _read_results(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    return {entry["name"]: entry["result"] for entry in entries}
