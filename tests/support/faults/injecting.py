"""Every function of the guard that a training calls, and a way to make one call of it fail.

Nobody lists the functions. A training is watched with `sys.setprofile`, so a new function is found
by being called; what is not called is looked for by the names that the code mentions. A function is
made to fail by another code object in its place, so that it fails for whoever holds it.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import truncation_guard

_PACKAGE = str(Path(truncation_guard.__file__).parent)
CONTAINS = "guard.fault_barrier.FaultBarrier.contain"
"""The barrier: what it catches switches the guard off."""
CALLBACK = "callback.TruncationGuardCallback"
_NESTED = ("<locals>", "<lambda>", "comp>", "<genexpr>", "<module>")
"""What is made inside of a function fails as the function does."""


@dataclass(frozen=True)
class Call:
    """One call of a function of the guard in a training."""

    function: str
    """Module and qualified name."""
    number: int
    """Which of its calls, from 0."""
    entry: str
    """The function of the guard that the trainer called."""
    batch: int
    """How many generation batches had begun: the first one that a fault has no part in."""
    callers: tuple[str, ...]
    """The functions of the guard that it was called by, outermost first."""

    @property
    def container(self) -> str | None:
        """The innermost function that would catch what is raised here; None: nobody would."""
        catching = {CONTAINS, *marked("contains")}
        return next((c for c in reversed(self.callers) if c in catching), None)

    @property
    def is_swept(self) -> bool:
        """Whether neither this function nor one that called it is marked as left out."""
        return marked("unswept").isdisjoint((self.function, *self.callers))


@cache
def functions() -> dict[str, FunctionType]:
    """Every function, method and property of the guard, by name; none of a mere interface."""
    for module in pkgutil.walk_packages(truncation_guard.__path__, "truncation_guard."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found: dict[str, FunctionType] = {}
    for module in _modules():
        for value in list(vars(module).values()):
            is_interface = getattr(value, "_is_protocol", False)
            members = vars(value).values() if isinstance(value, type) and not is_interface else ()
            for member in (value, *members):
                function = _function(member)
                if function is not None and function.__code__.co_filename.startswith(_PACKAGE):
                    # A public one says that its module is the package, once somebody asked for it.
                    found[_name(function.__code__, function.__globals__["__name__"])] = function
    return found


@cache
def marked(mark: str) -> frozenset[str]:
    """The functions with this mark of `truncation_guard.marks_for_tests`."""
    return frozenset(n for n, f in functions().items() if mark in vars(f).get("fault_marks", ()))


def reachable(entries: Iterable[str]) -> set[str]:
    """Every function that a training could call, and some more, by the names in the code.

    Args:
        entries: the functions that the trainer calls.
    """
    there = _imported("truncation_guard.callback")
    known = {name: f for name, f in functions().items() if f.__globals__["__name__"] in there}
    reached: set[str] = set()
    found = {*entries, *(name for name in known if name.startswith(f"{CALLBACK}."))}
    mentioned: set[str] = set()
    while found:
        reached |= found
        modules = {known[name].__globals__["__name__"] for name in found}
        mentioned |= {other for name in found for other in _mentions(known[name].__code__)}
        mentioned |= {other for module in modules for other in _mentioned_in_tables(module)}
        found = {name for name in known if _mentioned_as(name) in mentioned} - reached
    return reached


def _mentioned_as(function: str) -> str:
    """Its own name, or for `__init__` and the like that of the class."""
    *_, owner, name = f".{function}".split(".")
    return owner if name.startswith("__") else name


def _mentions(code: CodeType) -> set[str]:
    inner = [const for const in code.co_consts if isinstance(const, CodeType)]
    return {*code.co_names, *(name for each in inner for name in _mentions(each))}


@cache
def _mentioned_in_tables(module: str) -> frozenset[str]:
    """By a module outside of its functions and classes."""
    definitions = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
    tables = [node for node in _tree(module).body if not isinstance(node, definitions)]
    nodes = [node for table in tables for node in ast.walk(table)]
    return frozenset(
        node.id if isinstance(node, ast.Name) else node.attr
        for node in nodes
        if isinstance(node, ast.Name | ast.Attribute)
    )


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(Path(str(sys.modules[module].__file__)).read_text(encoding="utf-8"))


def _imported(module: str) -> set[str]:
    """The modules of the guard that this one imports, wherever in its code, and so on."""
    found, new = set(), {module}
    while new:
        found |= new
        imports = [n for m in new for n in ast.walk(_tree(m)) if isinstance(n, ast.ImportFrom)]
        names = {f"{i.module}.{alias.name}" for i in imports for alias in i.names}
        new = ({str(i.module) for i in imports} | names) & sys.modules.keys() - found
        new = {name for name in new if name.startswith("truncation_guard.")}
    return found


def _modules() -> list[Any]:
    return [m for name, m in list(sys.modules.items()) if name.split(".")[0] == "truncation_guard"]


def _function(member: Any) -> FunctionType | None:
    if getattr(member, "__isabstractmethod__", False):
        return None
    for inner in ("fget", "func", "__func__", "__wrapped__"):  # of properties, wrappers
        member = getattr(member, inner, member)
    return member if isinstance(member, FunctionType) else None


def _name(code: CodeType, module: str) -> str:
    return f"{module.removeprefix('truncation_guard.')}.{code.co_qualname}"


@contextmanager
def watched(calls: list[Call]) -> Iterator[None]:
    """Add every call of a function of the guard to `calls`."""
    stack: list[str] = []
    numbers: dict[str, int] = {}
    batches = 0

    def watch(frame: FrameType, event: str, _: Any) -> None:
        nonlocal batches
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(_PACKAGE):
            return
        name = _name(code, frame.f_globals["__name__"])
        if event == "return":
            stack.pop()
            return
        batches += name == "guard.fault_barrier.FaultBarrier.begin"
        if not any(part in code.co_qualname for part in _NESTED):
            number = numbers[name] = numbers.get(name, -1) + 1
            entry = stack[0] if stack else name
            calls.append(Call(name, number, entry, batches, tuple(stack)))
        stack.append(name)

    sys.setprofile(watch)
    try:
        yield
    finally:
        sys.setprofile(None)


class Fault:
    """While entered, one call of a function goes another way.

    Args:
        function: the function; whoever has it, has the faulty one.
        number: which of its calls, from 0.
        instead: gets the function's work and does this instead.
    """

    def __init__(
        self, function: FunctionType, number: int, instead: Callable[[Callable[[], Any]], Any]
    ) -> None:
        self.function = function
        self._number = number
        self._instead = instead
        self.fired = False

    def __enter__(self) -> Fault:
        function, code = self.function, self.function.__code__
        original = FunctionType(
            code, function.__globals__, code.co_name, function.__defaults__, function.__closure__
        )
        original.__kwdefaults__ = function.__kwdefaults__
        self._code = code

        def faulty(*args: Any, **kwargs: Any) -> Any:
            self._number -= 1
            if self._number != -1:
                return original(*args, **kwargs)
            self.fired = True
            return self._instead(lambda: original(*args, **kwargs))

        template = _forward.__code__
        function.__code__ = template.replace(
            co_consts=tuple(faulty if c == "CALLED" else c for c in template.co_consts),
            co_freevars=code.co_freevars,
            co_name=code.co_name,
            co_qualname=code.co_qualname,
            co_filename=code.co_filename,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.function.__code__ = self._code


def _forward(*args: Any, **kwargs: Any) -> Any:
    called: Any = "CALLED"
    return called(*args, **kwargs)


def raises(work: Callable[[], Any]) -> Any:
    """For `Fault`."""
    raise ZeroDivisionError("injected")


def hangs(seconds: float) -> Callable[[Callable[[], Any]], Any]:
    """For `Fault`: the work is done, late."""

    def instead(work: Callable[[], Any]) -> Any:
        time.sleep(seconds)
        return work()

    return instead
