"""Calls functions in the name of a user line, so that warnings are attributed as in eager.

`warnings.warn` reads the location it reports, and the registry of warnings already shown there,
from the frames of its callers. A call is therefore made from a function whose code claims to be the
user's line, with the name of the user's module. The warnings of the call are caught as data, then
shown: a process that finds the compiled call on disk shows them without making it.

A repeated call, or one at sizes that the program does not have, must not warn. It is made from a
module whose `__name__` is None: CPython takes such a module for one that is gone at exit and shows
nothing, and the process-wide warning filters stay unchanged.

Some of torch's C++ code warns once in a process, unless `torch.set_warn_always` is on: it is while
the call runs, so that its warnings do not depend on what this process has run before. Whether torch
would show them now, and again, is found by repeating the call.
"""

from __future__ import annotations

import builtins
from contextlib import suppress
from functools import lru_cache
from types import CodeType, FunctionType

import torch

from ..call_warnings import (
    CallWarning,
    caught_warnings,
    module_of_file,
    note_shown,
    show_warnings,
    warning_always,
)
from ..compat.modes import without_dispatch_modes
from ..errors import UserLine
from ..lazy_dataclass import dataclass, replace
from ..torch_types import AnyFunction, Args, Kwargs
from .distributed.objects import Bound
from .nested import map_leaves
from .symbolic.sym_node import sizes_in, with_hints

__all__ = ["Attribution", "LineOfSizes", "Silence", "call_from"]

_FROM_CPP = "(Triggered internally at "  # which torch adds to warnings of C++ code
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


@dataclass(frozen=True, slots=True)
class LineOfSizes:
    """Stands for a line whose call is made with ints in place of symbolic sizes."""

    line: UserLine


Attribution = UserLine | LineOfSizes | Silence


def call_from(
    line: Attribution,
    function: AnyFunction,
    args: Args,
    kwargs: Kwargs,
) -> object:
    """Call `function(*args, **kwargs)` as if that line called it. Raises a warning that one of the
    user's filters turns into an error.
    """
    if isinstance(function, Bound):  # the warning names the caller of the function itself
        args, kwargs = function.arguments(args, kwargs)
        function = function.function
    if isinstance(line, Silence):
        return FunctionType(_CALL, line.names)(function, args, kwargs)
    varies = isinstance(line, LineOfSizes)
    if isinstance(line, LineOfSizes):
        line = line.line
    code = _code_of(line.filename, line.lineno, line.function)
    # Without the module's registry of shown warnings: one of them is data of this call too.
    names = {"__name__": module_of_file(line.filename).__name__, "__builtins__": builtins}
    call = FunctionType(code, names)
    with warning_always(True), caught_warnings() as caught:
        made = call(function, args, kwargs)
    if caught:
        varies |= next(sizes_in((args, kwargs)), None) is not None
        found = caught
        if any(_FROM_CPP in one.text for one in caught):
            found = _repeated(call, function, (args, kwargs), caught)
        show_warnings(replace(one, varies=varies) for one in found)
    return made


def _repeated(
    call: FunctionType, function: AnyFunction, arguments: object, caught: list[CallWarning]
) -> list[CallWarning]:
    """Return the warnings of a call, with those marked that torch gives once in a process."""
    is_on = torch.is_warn_always_enabled()
    # In this order: the second repetition lacks what the first has used up.
    now, later, ever = (_texts(call, function, arguments, one) for one in (is_on, False, True))
    suppressed = ever - now
    for text in suppressed:
        note_shown(text)
    return [replace(one, is_once=one.text in ever - later) for one in caught]


def _texts(call: FunctionType, function: AnyFunction, arguments: object, always: bool) -> set[str]:
    """Return the texts of the warnings of a call on tensors like its arguments."""
    with (
        suppress(Exception),  # such a call says nothing about the warnings
        warning_always(always),
        caught_warnings() as caught,
        without_dispatch_modes(),
    ):
        args, kwargs = map_leaves(arguments, _like)
        call(function, args, kwargs)
    return {one.text for one in caught}


def _like(value: object) -> object:
    """Return a tensor like an argument, or the hint of a symbolic size."""
    if isinstance(value, torch.SymInt):
        return with_hints(value)
    if not isinstance(value, torch.Tensor):
        return value
    if not value.is_meta:  # a stand-in with small data
        return value.detach().clone().requires_grad_(value.requires_grad)
    shape, stride = with_hints((tuple(value.shape), value.stride()))
    made = torch.empty_strided(shape, stride, dtype=value.dtype, device=value.device)
    return made.requires_grad_(value.requires_grad)


@lru_cache(maxsize=256)
def _code_of(filename: str, lineno: int, function: str) -> CodeType:
    name = function or _CALL.co_name
    return _CALL.replace(co_filename=filename, co_firstlineno=lineno, co_name=name)
