"""timeit: `%jit_timeit` times an expression as compiled code and as plain Python, in turns.

Input: an expression that calls tagged functions of the notebook. Output: a `Timing`. In blocks of
plain Python, names of the notebook are bound to the originals, modules are untagged, and all other
tagged functions run their originals.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import FunctionType

import torch

from ..api import Suspended, handle_of, handles, original_of, wait, without_tag
from ..diagnostics.timing import Timing, Way, measure

__all__ = ["InvalidExpression", "split_expression", "time_expression"]

_OPTION = re.compile(r"""\s*--\w+(?:=|\s+)("[^"]*"|'[^']*'|\S+)""")


class InvalidExpression(ValueError):
    """The expression after %jit_timeit cannot be measured."""


def split_expression(line: str) -> tuple[str, str]:
    """Return the options at the front of a line of %jit_timeit, and the expression after them.

    Only the options are split by the rules of a shell, which would strip the expression's quotes.
    """
    end = 0
    while (found := _OPTION.match(line, end)) is not None:
        end = found.end()
    return line[:end], line[end:].strip()


def time_expression(
    expression: str, namespace: dict[str, object], seconds: float = 1.0, rival: str = ""
) -> Timing:
    """Time an expression, and a second one, `rival`, if given.

    Raises InvalidExpression for a syntax error.
    """
    if not expression:
        raise InvalidExpression("no EXPRESSION to time")
    return _timed(expression, rival, seconds, namespace)


def _timed(text: str, rival: str, seconds: float, namespace: dict[str, object]) -> Timing:
    call = _evaluated(text, namespace)
    before = {handle.serial: len(handle.journal) for handle in handles()}
    call()
    wait()
    call()  # the first call may leave a backward or a resume function to compile
    new_records = [r for h in handles() for r in list(h.journal)[before.get(h.serial, 0) :]]
    ways = {"compiled": Way(call), "eager": Way(call, lambda: _plain(namespace))}
    if rival:
        ways[rival] = Way(_evaluated(rival, namespace))
    return replace(measure(ways, seconds), compiling=sum(record.seconds for record in new_records))


def _evaluated(text: str, namespace: dict[str, object]) -> Callable[[], object]:
    try:
        code = compile(text, "<%jit_timeit>", "eval")
    except SyntaxError as error:
        raise InvalidExpression(f"{text!r} is not an expression: {error.msg}") from error
    return lambda: eval(code, namespace)


@contextmanager
def _plain(namespace: dict[str, object]) -> Iterator[None]:
    """Run everything that is tagged as plain Python inside."""
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
