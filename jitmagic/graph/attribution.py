"""Calls made in the name of a line of the user's: what torch warns of while a graph is made.

warnings.warn takes the place that it names, and what it has shown of that place, from the frames
of its callers. So a call is made from a function whose code claims to be the user's line, with the
globals of the user's module: the warning reads as in eager.

A call that is repeated, or made at sizes that the program does not have, is made in nobody's name:
CPython shows no warning of a module whose `__name__` is None (it takes it for one that is gone at
exit), which the filters, those of the process, have no part in.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ..errors import UserLine

__all__ = ["Silence", "call_from"]

_CALL = (lambda function, args, kwargs: function(*args, **kwargs)).__code__


class Silence:
    """In place of a line: shows no warning, and tells whether there was one to show."""

    __slots__ = ("names",)

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"__name__": None, "__builtins__": builtins}

    @property
    def is_broken(self) -> bool:
        return "__warningregistry__" in self.names  # made where a warning looks for its module


def call_from(
    line: UserLine | Silence,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """`function(*args, **kwargs)`, as if that line called it."""
    if isinstance(line, Silence):
        return FunctionType(_CALL, line.names)(function, args, kwargs)
    code = _code_of(line.filename, line.lineno, line.function)
    return FunctionType(code, vars(_module_of(line.filename)))(function, args, kwargs)


@lru_cache(maxsize=256)
def _code_of(filename: str, lineno: int, function: str) -> CodeType:
    name = function or _CALL.co_name
    return _CALL.replace(co_filename=filename, co_firstlineno=lineno, co_name=name)


@lru_cache(maxsize=256)
def _name_of(filename: str) -> str:
    """The module whose file that is; a notebook's cells, which have none, are `__main__`'s."""
    loaded = [m for m in list(sys.modules.values()) if isinstance(m, ModuleType)]
    found = (m.__name__ for m in loaded if vars(m).get("__file__") == filename)
    return next(found, "__main__")


def _module_of(filename: str) -> ModuleType:
    return sys.modules.get(_name_of(filename)) or sys.modules["__main__"]
