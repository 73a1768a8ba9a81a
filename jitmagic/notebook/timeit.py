"""%jit_timeit: an expression as compiled code and as plain Python, in turns.

Comes in: an expression of the notebook that calls something tagged. Goes out: a `Timing`. For a
block of plain Python the notebook's names are bound to the originals of what is tagged, its modules
are without their tags, and whatever else is tagged runs its original.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch

from ..api import Suspended, handle_of, handles, original_of, wait, without_tag
from ..diagnostics.timing import Timing, Way, measure

__all__ = ["BadLine", "split_expression", "time_expression"]

_OPTION = re.compile(r"""\s*--\w+(?:=|\s+)("[^"]*"|'[^']*'|\S+)""")


class BadLine(ValueError):
    """The expression after %jit_timeit cannot be measured."""


def split_expression(line: str) -> tuple[str, str]:
    """Return the options at the front of a line of %jit_timeit, and the expression after them.

    A shell's rules split the options alone: they would take the quotes out of the expression.
    """
    end = 0
    while (found := _OPTION.match(line, end)) is not None:
        end = found.end()
    return line[:end], line[end:].strip()


def time_expression(
    expression: str, namespace: dict[str, Any], seconds: float = 1.0, rival: str = ""
) -> Timing:
    """Measure an expression, and a rival beside it; raises BadLine where one cannot be read."""
    if not expression:
        raise BadLine("no EXPRESSION to time")
    return _timed(expression, rival, seconds, namespace)


def _timed(text: str, rival: str, seconds: float, namespace: dict[str, Any]) -> Timing:
    call = _evaluated(text, namespace)
    before = {handle.serial: len(handle.journal) for handle in handles()}
    call()
    wait()
    call()  # what the first left to compile: a backward, a resume function
    made = [r for h in handles() for r in list(h.journal)[before.get(h.serial, 0) :]]
    ways = {"compiled": Way(call), "eager": Way(call, lambda: _plain(namespace))}
    if rival:
        ways[rival] = Way(_evaluated(rival, namespace))
    return replace(measure(ways, seconds), compiling=sum(record.seconds for record in made))


def _evaluated(text: str, namespace: dict[str, Any]) -> Callable[[], object]:
    try:
        code = compile(text, "<%jit_timeit>", "eval")
    except SyntaxError as error:
        raise BadLine(f"{text!r} is no expression: {error.msg}") from error
    return lambda: eval(code, namespace)


@contextmanager
def _plain(namespace: dict[str, Any]) -> Iterator[None]:
    """Nothing compiled runs in here."""
    tagged = {
        name: value
        for name, value in namespace.items()
        if isinstance(value, FunctionType) and handle_of(value) is not None
    }
    held = [value for value in namespace.values() if isinstance(value, torch.nn.Module)]
    modules = {id(part): part for module in held for part in module.modules()}
    with ExitStack() as stack:
        stack.enter_context(Suspended())
        for module in modules.values():
            stack.enter_context(without_tag(module))
        stack.callback(namespace.update, tagged)
        namespace.update({name: original_of(value) for name, value in tagged.items()})
        yield
