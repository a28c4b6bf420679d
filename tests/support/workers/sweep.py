"""What `test_every_function.py` wants to know: faults into every function of the guard.

sweep.py FOLDER            on all processes together
sweep.py FOLDER alone      on each process by itself: they share the kinds of faults
"""

import os
import sys
from pathlib import Path
from typing import Any

FOLDER, ALONE = Path(sys.argv[1]), sys.argv[2:] == ["alone"]
SHARE, SHARES = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if ALONE:
    FOLDER = FOLDER / str(SHARE)
    for variable in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"):
        del os.environ[variable]

from support.distributed import quit_now, scenario, settle_down  # noqa: E402
from support.faults.sweep import COURSES, KINDS, Sweep  # noqa: E402

JOBS = (("raises",), ("returns None", "returns another")) if ALONE else (("raises", "in turn"),)
"""The kinds of faults, by process where each is by itself."""


def sweep(course: str, known: set[Any]) -> None:
    made = Sweep(course, FOLDER)
    scenario(f"{course}: calls", made.summary)
    targets = made.targets(known, each_event=ALONE and SHARE == 0)
    for kind in JOBS[SHARE % len(JOBS)]:
        nonsense = [t for t in targets if made.may_return_nonsense(t[1])]
        puts = (
            [(*target, KINDS[kind]) for target in targets]
            if kind == "raises"
            else [
                (
                    *target,
                    KINDS[kind if kind in KINDS else ("returns text", "returns another")[i % 2]],
                )
                for i, target in enumerate(nonsense)
            ]
        )
        scenario(f"{course}: {kind}", lambda puts=puts: [made.put(*each) for each in puts])
    scenario(f"{course}: hangs", lambda: made.hang(targets, 0.02))


if __name__ == "__main__":
    courses_begun: set[Any] = set()
    settle_down()
    for name in COURSES:
        sweep(name, courses_begun)
    quit_now()
