"""Calls functions in the name of a user line, so that warnings are attributed as in eager.

`warnings.warn` reads the location it reports, and the registry of warnings already shown there,
from the frames of its callers. A call is therefore made from a function whose code claims to be the
user's line, with the globals of the user's module.

A repeated call, or one at sizes that the program does not have, must not warn. It is made from a
module whose `__name__` is None: CPython takes such a module for one that is gone at exit and shows
nothing, and the process-wide warning filters stay unchanged.
"""

from __future__ import annotations

import builtins
import sys
from functools import lru_cache
from types import CodeType, FunctionType, ModuleType

from ..errors import UserLine
from ..torch_types import AnyFunction, Args, Kwargs
from .operators.collectives import Bound

__all__ = ["Silence", "call_from"]

_CALL = (lambda function, args, kwargs: function(*args, **kwargs)).__code__


class Silence:
    """Stands in for a line; suppresses warnings and records whether there was one."""

    __slots__ = ("names",)

    def __init__(self) -> None:
        self.names: dict[str, object] = {"__name__": None, "__builtins__": builtins}

    @property
    def has_warned(self) -> bool:
        """Return whether a warning was issued."""
        return "__warningregistry__" in self.names  # made where a warning looks for its module


def call_from(
    line: UserLine | Silence,
    function: AnyFunction,
    args: Args,
    kwargs: Kwargs,
) -> object:
    """Call `function(*args, **kwargs)` as if that line called it."""
    if isinstance(function, Bound):  # the warning names the caller of the function itself
        args, kwargs = function.arguments(args, kwargs)
        function = function.function
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
    """Return the name of the module with that file; notebook cells belong to `__main__`."""
    loaded = [m for m in list(sys.modules.values()) if isinstance(m, ModuleType)]
    found = (m.__name__ for m in loaded if vars(m).get("__file__") == filename)
    return next(found, "__main__")


def _module_of(filename: str) -> ModuleType:
    return sys.modules.get(_name_of(filename)) or sys.modules["__main__"]
