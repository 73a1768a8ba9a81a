"""%jit_timeit: an expression as compiled code and as plain Python, in turns.

Comes in: an expression of the notebook that calls something tagged. Goes out: a `Timing`. For a
block of plain Python the notebook's names are bound to the originals of what is tagged, its modules
are without their tags, and whatever else is tagged runs its original.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch

from ..api import Suspended, handle_of, handles, original_of, wait, without_tag
from ..diagnostics.timing import Timing, Way, measure

__all__ = ["BadLine", "time_expression"]

_USAGE = "%jit_timeit [--seconds S] [--vs 'EXPRESSION'] EXPRESSION"
_OPTION = re.compile(r"""\s*--(\w+)(?:=|\s+)("[^"]*"|'[^']*'|\S+)""")


class BadLine(ValueError):
    """What stands behind %jit_timeit cannot be measured."""


def time_expression(line: str, namespace: dict[str, Any]) -> Timing:
    """Measure what the line of %jit_timeit says; BadLine where it says nothing usable."""
    options = {"seconds": "1", "vs": ""}
    while (found := _OPTION.match(line)) is not None:
        name, value = found.groups()
        if name not in options:
            close = difflib.get_close_matches(name, options, 1)
            hint = f": did you mean --{close[0]}?" if close else f"; {_USAGE}"
            raise BadLine(f"%jit_timeit: no option --{name}{hint}")
        options[name], line = value.strip("'\""), line[found.end() :]
    if not line.strip():
        raise BadLine(_USAGE)
    try:
        seconds = float(options["seconds"])
    except ValueError as error:
        raise BadLine(f"%jit_timeit: --seconds takes a number: {error}") from error
    return _timed(line.strip(), options["vs"], seconds, namespace)


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
        raise BadLine(f"%jit_timeit: {text!r} is no expression: {error.msg}") from error
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
