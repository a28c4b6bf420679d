"""What the tests share."""

import gc
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import torch
from support.distributed import Launch, Running, settle_down, start

ON_TWO_PROCESSES = ("profile_rollouts", "raise_limit", "layouts", "sharded", "faults", "training")
"""Workers, each for the test file of its name; the last one leaves its process group in ruins."""

# .ci/run asks for the thorough ones with --hypothesis-profile.
hypothesis.settings.register_profile("quick", max_examples=20, deadline=None)
hypothesis.settings.register_profile("thorough", max_examples=100, deadline=None)
hypothesis.settings.load_profile("quick")


@pytest.fixture(autouse=True, scope="session")
def _fast_small_trainings() -> Iterator[None]:
    """Leave out what slows trainings of a tiny model down without being a part of them.

    Two threads get into each other's way on matrices this small, and all the objects of torch and
    transformers, which are here to stay, get into the way of the garbage collector.
    """
    torch.set_num_threads(1)
    settle_down()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def two_processes(
    request: pytest.FixtureRequest,
    _at_work: Running | None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Launch:
    """The one launch of two processes that all tests share; `part` gives a worker's results."""
    return (_at_work or _on_two_processes(request.session, tmp_path_factory)).wait()


@pytest.fixture(scope="session", autouse=True)
def _at_work(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running | None]:
    """The two processes, beside the tests that come before those that look at them."""
    wanted = any("two_processes" in item.fixturenames for item in request.session.items)
    # A worker of xdist does not know which of the tests will be its own.
    if not wanted or hasattr(request.config, "workerinput"):
        yield None
        return
    running = _on_two_processes(request.session, tmp_path_factory)
    yield running
    running.kill()


def _on_two_processes(session: pytest.Session, tmp_path_factory: pytest.TempPathFactory) -> Running:
    # By the folder: integration/ has files of the same names.
    files = {item.path.stem for item in session.items if item.path.parent.name == "processes"}
    workers = [worker for worker in ON_TWO_PROCESSES if f"test_{worker}" in files]
    return start("together.py", 2, tmp_path_factory.mktemp("two"), *workers)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Each file on one worker, and on one all those that share the launch of two processes."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            folder = file.rpartition("/")[0]
            return folder if folder.endswith("processes") else file

    return ByFile(config, log)
