"""What runs where: nothing is left out, and nothing is missing."""

from __future__ import annotations

import ast
import itertools
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tests_that_nox_runs_are_there() -> None:
    tree = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    paths = [text for text in texts if isinstance(text, str) and re.fullmatch(r"tests/\S+", text)]
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_each_test_is_selected_by_exactly_one_step_of_the_check() -> None:
    pytest = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]
    (by_default,) = [o for o in pytest["ini_options"]["addopts"] if o.startswith("-m ")]
    check = (ROOT / ".ci/run").read_text(encoding="utf-8")
    steps = [by_default.removeprefix("-m "), *re.findall(r"pytest\b.* -m '([^']+)'", check)]
    steps += re.findall(r"pytest -m (\w+)$", check, flags=re.MULTILINE)
    steps.append("vllm")  # in nox
    markers = [marker.partition(":")[0] for marker in pytest["ini_options"]["markers"]]
    for chosen in itertools.product([False, True], repeat=len(markers)):
        marks = dict(zip(markers, chosen, strict=True))
        if not (marks["vllm"] and marks["real_model"]):
            assert sum(eval(step, {}, marks) for step in steps) == 1, (marks, steps)


def test_no_test_file_imports_from_another() -> None:
    tests = ROOT / "tests"
    others = {path.stem for path in tests.iterdir()} - {"support"}
    imported = {
        (path.name, node.module)
        for path in tests.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0
    }
    assert [pair for pair in sorted(imported) if pair[1].split(".")[0] in others] == []
