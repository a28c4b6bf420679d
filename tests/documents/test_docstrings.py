"""Every example in a docstring of the package gives what it says.

Read from the sources: public objects call themselves `truncation_guard`'s, so that
`doctest.DocTestFinder` takes them for imported ones and passes them over.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import truncation_guard

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)


def examples() -> dict[str, doctest.DocTest]:
    """The docstrings with an example, by module and name; an example sees its module's names."""
    found = {}
    for package in pkgutil.walk_packages(truncation_guard.__path__, "truncation_guard."):
        if package.name == "truncation_guard.__main__":
            continue
        module = importlib.import_module(package.name)
        for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))):
            text = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
            if text and ">>>" in text:
                name = f"{package.name.partition('.')[2]}.{getattr(node, 'name', '')}"
                found[name] = doctest.DocTestParser().get_doctest(
                    text, vars(module), name, module.__file__, node.lineno
                )
    return found


EXAMPLES = examples()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_in_the_docstring_give_what_they_say(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = doctest.DocTestRunner(verbose=False).run(EXAMPLES[name])
    assert result.attempted > 0
    assert result.failed == 0


def test_these_have_an_example() -> None:
    assert set(EXAMPLES) >= {
        "batch.modes.guard_advantages",
        "lengths.sample.LengthSample",
        "lengths.sample.choose_max_completion_length",
        "batch.outcomes.detect_truncated",
    }


def test_an_example_that_is_wrong_is_seen() -> None:
    example = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, None)
    assert doctest.DocTestRunner(verbose=False).run(example, out=lambda text: None).failed == 1
