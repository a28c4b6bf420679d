"""Every function of the guard that a training calls, and a way to make one call of it fail.

The one idea: nobody lists the functions. A training is watched with `sys.setprofile`, so a new
function is found by being called; and a function is made to fail by another code object in its
place, so that it fails for whoever holds it, under whatever name.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import truncation_guard

_PACKAGE = str(Path(truncation_guard.__file__).parent)
CONTAINS = "guard.fault_barrier.FaultBarrier.contain"
ELSEWHERE = (
    "preflight.raise_limit_to.find_longest_prompt",
    "preflight.configuration._contained",
    "reporting.reporter.Reporter.load_state",
)
"""These contain a fault by themselves: the guard goes on."""
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
        return next((c for c in reversed(self.callers) if c in (CONTAINS, *ELSEWHERE)), None)


def functions() -> dict[str, FunctionType]:
    """Every function, method and property of the guard's modules that are imported, by name."""
    for module in pkgutil.walk_packages(truncation_guard.__path__, "truncation_guard."):
        if not module.name.endswith(("__main__", "plots", "run_plot")):
            importlib.import_module(module.name)
    found: dict[str, FunctionType] = {}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] != "truncation_guard":
            continue
        for value in list(vars(module).values()):
            members = vars(value).values() if isinstance(value, type) else ()
            for member in (value, *members):
                function = _function(member)
                if function is not None and function.__code__.co_filename.startswith(_PACKAGE):
                    # A public one says that its module is the package, once somebody asked for it.
                    found[_name(function.__code__, function.__globals__["__name__"])] = function
    return found


def _function(member: Any) -> FunctionType | None:
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
