"""Finds as small readable functions: registered with their arguments, checked by the oracle.

Comes in: a function of plain statements and a last `return`, with the source of each call's
arguments. Goes out: a test that runs each eagerly and compiled and compares.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from .check import examine_under
from .program import Program

__all__ = ["Finds"]


class Finds(list[Any]):
    """The parameters of a file's finds, in order."""

    def as_test(self) -> Callable[..., None]:
        """The test of all of them; those registered later count too."""

        @pytest.mark.filterwarnings("ignore::jitmagic.FallbackWarning")
        @pytest.mark.parametrize("registered", self)
        def behaves_as_eager(registered: tuple[Any, ...]) -> None:
            _check(*registered)

        return behaves_as_eager

    def find(
        self, *calls: str, tier: str = "cpp", falls_back: bool = False, **changes: str
    ) -> Callable[[Any], Any]:
        """Register a function with the source of each call's arguments; `changes`: of Program."""

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            given = (function, calls, tier, falls_back, changes)
            self.append(pytest.param(given, id=function.__name__))
            return function

        return register


def _check(
    function: Callable[..., Any],
    calls: tuple[str, ...],
    tier: str,
    falls_back: bool,
    changes: dict[str, str],
) -> None:
    """`falls_back`: eager by a visible way is the right answer there."""
    unlike = examine_under(_program(function, calls, changes), tier)
    if unlike is not None and unlike.kind == "fallback":
        assert falls_back, unlike.text
        return
    assert unlike is None, f"{unlike.kind}: {unlike.text}"


def _program(
    function: Callable[..., Any], calls: tuple[str, ...], changes: dict[str, str]
) -> Program:
    """The function's own source as a fuzz program."""
    lines = inspect.getsource(function).splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("def "))
    body = textwrap.dedent("\n".join(lines[start + 1 :])).strip().splitlines()
    assert body[-1].startswith("return ")
    return Program(
        arguments=tuple(inspect.signature(function).parameters),
        statements=("\n".join(body[:-1]),) if body[:-1] else (),
        results=(body[-1].removeprefix("return "),),
        calls=tuple((call,) for call in calls),
        shape="single",
        **changes,  # type: ignore[arg-type]
    )
