from __future__ import annotations

import ast
import importlib
import inspect
import pickle
import pkgutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest

import truncation_guard

HEAVY = ("torch", "transformers", "trl", "datasets", "accelerate", "numpy", "scipy")


def loaded_by(code: str) -> set[str]:
    """Which of the heavy packages a fresh interpreter has loaded after this code."""
    report = f"import sys; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"{code}\n{report}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return set(done.stdout.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import truncation_guard; truncation_guard.__version__; dir(truncation_guard)"
    assert loaded_by(code) == set()


@pytest.mark.slow
def test_the_test_above_would_see_it() -> None:
    loaded = loaded_by("from truncation_guard import TruncationGuardCallback")
    assert {"torch", "transformers"} <= loaded


def test_the_monitor_and_the_record_load_nothing_heavy() -> None:
    modules = ("reporting.monitor", "reporting.metrics", "record")
    code = "; ".join(f"import truncation_guard.{module}" for module in modules)
    assert loaded_by(code) == {"numpy"}


def report_on(cut: dict[int, int], ended: dict[int, int]) -> str:
    """Code that reports a training and raises its limit, with every quantile on the way."""
    return f"""
import sys, tempfile
sys.path.insert(0, {str(Path(__file__).parent)!r})
from support.batches import batch
from truncation_guard.options import GuardOptions
from truncation_guard.reporting.reporter import Reporter
options = GuardOptions(
    mode="exclude", truncated_weight=0.0, truncated_reward=0.0, warn_above=0.05, window=64,
    cooldown=0, coverage=0.95, histogram_every=1, record=True, raise_limit_to=1024,
)
report = Reporter(options, is_main_process=True, output_dir=tempfile.mkdtemp())
counts = batch(ended={ended}, cut={cut})
assert [report.batch(counts) is None for _ in range(2)] == [True, False]
assert report.recommended_limit is not None
report.end_training(2)
"""


def test_a_training_in_which_the_limit_alone_cuts_needs_no_scipy() -> None:
    assert loaded_by(report_on({256: 40}, {100: 20, 256: 4})) == {"numpy"}
    assert loaded_by(report_on({256: 64}, {})) == {"numpy"}


@pytest.mark.slow
def test_the_test_above_would_see_scipy() -> None:
    assert loaded_by(report_on({50: 2, 256: 38}, {100: 24})) == {"numpy", "scipy"}


def test_the_command_loads_nothing_heavy_before_it_knows_what_to_do() -> None:
    assert loaded_by("import truncation_guard.cli.main") == set()


def test_the_public_names_are_these() -> None:
    assert truncation_guard.__all__ == [
        "Diagnosis",
        "LengthProfile",
        "LengthSample",
        "LimitCost",
        "LimitRecommendation",
        "TruncationGuardCallback",
        "__version__",
        "choose_max_completion_length",
        "detect_truncated",
        "diagnose",
        "guard_advantages",
        "profile_completions",
        "profile_dataset",
        "profile_rollouts",
        "set_max_completion_length",
    ]


@pytest.mark.parametrize("name", [n for n in truncation_guard.__all__ if n != "__version__"])
def test_a_public_name_calls_itself_by_the_path_that_users_type(name: str) -> None:
    value = getattr(truncation_guard, name)
    assert value.__module__ == "truncation_guard"
    assert value.__qualname__ == value.__name__ == name
    assert value.__doc__
    assert pickle.loads(pickle.dumps(value)) is value


def test_a_public_name_is_always_the_same_object() -> None:
    from truncation_guard.batch.modes import guard_advantages

    assert truncation_guard.guard_advantages is guard_advantages
    assert truncation_guard.guard_advantages is truncation_guard.guard_advantages


def test_a_star_import_gives_the_public_names() -> None:
    namespace: dict[str, object] = {}
    exec("from truncation_guard import *", namespace)
    assert namespace.keys() - {"__builtins__"} == set(truncation_guard.__all__)


def test_dir_lists_the_public_names_before_they_were_used() -> None:
    code = "import truncation_guard; print(*dir(truncation_guard)); raise SystemExit"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == sorted(truncation_guard.__all__)


def test_dir_lists_the_public_names_and_nothing_else_after_they_were_used() -> None:
    for name in truncation_guard.__all__:
        assert name in dir(truncation_guard)
        getattr(truncation_guard, name)
    assert dir(truncation_guard) == sorted(truncation_guard.__all__)


def test_everything_public_that_the_package_defines_is_in_all() -> None:
    for name in truncation_guard.__all__:
        getattr(truncation_guard, name)
    public = {
        name
        for name in vars(truncation_guard)
        if not name.startswith("_")
        and not isinstance(getattr(truncation_guard, name), ModuleType)
        and getattr(getattr(truncation_guard, name), "__module__", "").startswith(
            "truncation_guard"
        )
    }
    assert public == set(truncation_guard.__all__) - {"__version__"}


def test_type_checkers_see_every_public_name() -> None:
    tree = ast.parse(inspect.getsource(truncation_guard))
    blocks = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    imported = {
        alias.name: node.module
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported.keys() == set(truncation_guard.__all__) - {"__version__"}
    for name, module in imported.items():
        found = getattr(importlib.import_module(str(module)), name)
        assert found is getattr(truncation_guard, name)


def test_the_version_is_that_of_the_installed_distribution() -> None:
    assert truncation_guard.__version__ == version("truncation-guard")


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(
        AttributeError, match=r"^module 'truncation_guard' has no attribute 'TruncationGuard'$"
    ):
        _ = truncation_guard.TruncationGuard


def test_every_module_says_what_it_holds() -> None:
    modules = [module.name for module in pkgutil.iter_modules(truncation_guard.__path__)]
    assert len(modules) >= 10
    for module in modules:
        if module != "__main__":
            assert importlib.import_module(f"truncation_guard.{module}").__doc__
