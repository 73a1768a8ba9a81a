"""Makes call stubs: code with another code's signature that forwards its arguments.

Input: the code of the user's function and a callee. Output: code with the same names, position,
signature and free variables whose whole body is

    return callee(parameter, ..., args, kwargs, cell, ...)

with *args as a tuple, **kwargs as a dict, and the closure's cells themselves. The callee is a
constant of the stub, so it moves with `__code__`, needs no name in any namespace, and dies with the
code. `on_error` gets each exception that leaves the stub and may remove it from the traceback.
Invariant: no other locals and no cells of its own, so every parameter is a plain bound slot.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable

from . import build
from .assemble import assemble
from .instruction import Body, ExceptionRegion, Instruction, Position

__all__ = ["call_stub", "report_error"]

# Flags visible to callers and inspect; _HAS_DOCSTRING (3.13) says that co_consts[0] is one. Without
# those of generators and coroutines: the stub's body is a plain call that returns such an object.
_HAS_DOCSTRING = 0x4000000
_KEPT_FLAGS = (
    inspect.CO_OPTIMIZED
    | inspect.CO_NEWLOCALS
    | inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_NESTED
    | _HAS_DOCSTRING
)


def call_stub(
    code: types.CodeType,
    callee: Callable[..., object],
    on_error: Callable[[BaseException], None] | None = None,
) -> types.CodeType:
    """Return code like `code` whose body returns `callee(*parameters, *cells)`."""
    body = Body(
        name=code.co_name,
        qualname=code.co_qualname,
        filename=code.co_filename,
        firstlineno=code.co_firstlineno,
        argcount=code.co_argcount,
        posonlyargcount=code.co_posonlyargcount,
        kwonlyargcount=code.co_kwonlyargcount,
        flags=code.co_flags & _KEPT_FLAGS,
        freevars=list(code.co_freevars),
        consts=_docstring(code),
    )
    body.varnames = list(code.co_varnames[: body.parameter_count])
    parameters = [build.load_fast(name, bound=True) for name in body.varnames]
    cells = [build.load_closure(name) for name in body.freevars]
    call = build.call(callee, *parameters, *cells)
    line = Position(code.co_firstlineno, code.co_firstlineno)
    instructions: list[Instruction] = [*build.prologue(body.freevars), *call, *build.return_value()]
    if on_error is not None:
        handler = report_error(on_error)
        body.regions.append(ExceptionRegion(call[0], call[-1], handler[0], 0))
        instructions += handler
    body.instructions = build.placed(instructions, line)
    return assemble(body)


def report_error(on_error: Callable[[BaseException], None]) -> list[Instruction]:
    """Call `on_error` and re-raise: exception -> never; adds no traceback entry."""
    return [
        *build.push_callable(build.load_const(on_error)),
        *build.copy(3),
        *build.call_function(1),
        *build.pop_top(),
        Instruction("RERAISE", 0),
    ]


def _docstring(code: types.CodeType) -> tuple[object, ...]:
    """Return the constants that give a function made of the stub the docstring of `code`."""
    first = code.co_consts[:1]
    return first if first and isinstance(first[0], str) else (None,)
