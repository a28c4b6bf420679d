"""Runs the scenarios of several workers one after the other: together.py FOLDER WORKER..."""

import sys
from importlib import import_module

from support.distributed import begin_part, folder_of, quit_now, settle_down

if __name__ == "__main__":
    for worker in sys.argv[2:]:
        folder_of(worker).mkdir(exist_ok=True)
    workers = {name: import_module(f"support.workers.{name}") for name in sys.argv[2:]}
    settle_down()
    for name, worker in workers.items():
        begin_part(name)
        worker.scenarios()
    quit_now()
