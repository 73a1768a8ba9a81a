"""FrameSnapshot: the state of a call before its first instruction.

Input: a function with its arguments (`of_call`), or a fresh frame found by the frame hook. Output:
all that the tracer starts from. Invariant: `args` has one value for each of the code's
parameter slots, in localsplus order (positional, keyword-only, *args as a tuple, **kwargs as a
dict); `cells` follows co_freevars. The values are the live objects, not copies.
"""

from __future__ import annotations

import builtins
import inspect
import types
from collections.abc import Mapping
from typing import Any

from ..lazy_dataclass import dataclass

__all__ = ["FrameSnapshot"]

_NO_KEYWORDS: Mapping[str, object] = types.MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class FrameSnapshot:
    """The code about to run and everything it can reach."""

    code: types.CodeType
    args: tuple[object, ...]
    cells: tuple[types.CellType, ...]
    globals: dict[str, object]
    builtins: dict[str, object]
    name: str
    qualname: str

    @classmethod
    def of_call(
        cls,
        function: types.FunctionType,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] = _NO_KEYWORDS,
    ) -> FrameSnapshot:
        """Return the snapshot of `function(*args, **kwargs)`; raises TypeError like that call."""
        code = function.__code__
        stars = bool(code.co_flags & inspect.CO_VARARGS) + bool(
            code.co_flags & inspect.CO_VARKEYWORDS
        )
        slots = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + stars]
        bound = inspect.signature(_bare(function)).bind(*args, **kwargs)
        bound.apply_defaults()
        return cls(
            code=code,
            args=tuple(bound.arguments[name] for name in slots),
            cells=function.__closure__ or (),
            globals=function.__globals__,
            builtins=_builtins_of(function.__globals__),
            name=function.__name__,
            qualname=function.__qualname__,
        )


def _bare(function: types.FunctionType) -> types.FunctionType:
    """Return the function without __wrapped__ and __signature__, which inspect follows."""
    bare = types.FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    bare.__kwdefaults__ = function.__kwdefaults__
    return bare


def _builtins_of(namespace: dict[str, Any]) -> dict[str, object]:
    """Return the builtins that the interpreter uses for code with these globals."""
    found = namespace.get("__builtins__", builtins)
    return found.__dict__ if isinstance(found, types.ModuleType) else found
