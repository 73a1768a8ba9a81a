"""Writes the residual function of a frame as data, and makes it again.

In: a Python function that trace/residual/emit.py has assembled. Its code is data of CPython
(instructions, tables), whose constants need care: they hold the compiled graph, dispatchers of
resume functions, functions of jitmagic, and values of the program. A code object of the program
itself, such as that of an inner function, is found again in the constants of the program's code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

from ..bytecode import build
from ..errors import CannotKeep
from ..frame.locked_frames import RetryEager
from ..frame.native import Dispatcher, TimedGraph
from ..guards.source.row import Derived
from .codec import Json
from .fingerprint import fingerprint

__all__ = ["CODE_READERS", "function_data"]

_FIELDS = (
    *("co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_nlocals", "co_stacksize"),
    *("co_flags", "co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars"),
    *("co_name", "co_qualname", "co_firstlineno", "co_linetable", "co_exceptiontable"),
)


def function_data(writer: Any, function: FunctionType) -> Json:
    """Return the data of a residual function, which has neither closure nor defaults."""
    if function.__closure__ or function.__defaults__ or function.__kwdefaults__:
        raise CannotKeep(f"a function with values of its own ({function.__qualname__})")
    return {"$": "function", "code": code_data(writer, function.__code__)}


def code_data(writer: Any, code: CodeType) -> Json:
    """Return the data of a code object."""
    known = dict(_inside(writer.code))
    if (path := known.get(code)) is not None:
        return {"$": "code at", "path": list(path), "is": fingerprint(code)}
    fields = {name: writer.write(getattr(code, name)) for name in _FIELDS}
    constants = [constant_data(writer, value) for value in code.co_consts]
    return {"$": "code", "constants": constants, **fields}


def constant_data(writer: Any, value: Any) -> Json:
    """Return the data of a constant of a residual."""
    match value:
        case CodeType():
            return code_data(writer, value)
        case tuple() if type(value) is tuple:
            return {"$": "constants", "items": [constant_data(writer, item) for item in value]}
        case TimedGraph():
            return {"$": "timed", "run": writer.write(value.run)}
        case RetryEager():
            return {"$": "retry", "is_locked": value.is_locked}
        case build.Box():
            return {"$": "box", "value": constant_data(writer, value.value)}
        case MethodType(__self__=Derived() as source) if value.__func__ is type(source).follow:
            return {"$": "follow", "of": writer.write(source)}
        case Dispatcher():
            return {"$": "resume", "key": writer.write(writer.resume_key(value))}
        case partial():
            given = [constant_data(writer, part) for part in (value.func, *value.args)]
            named = {name: constant_data(writer, part) for name, part in value.keywords.items()}
            return {"$": "partial", "given": given, "named": named}
    if value is sys.modules:
        return {"$": "modules"}
    if type(value) is dict:
        return {"$": "namespace", "name": writer.table_data(value)}
    return writer.write(value)


def _inside(
    code: CodeType, path: tuple[int, ...] = ()
) -> Iterator[tuple[CodeType, tuple[int, ...]]]:
    """Yield the code objects among the constants of a code object, with their places."""
    for place, constant in enumerate(code.co_consts):
        if isinstance(constant, CodeType):
            yield constant, (*path, place)
            yield from _inside(constant, (*path, place))


# --------------------------------------------------------------------------------------- readers


def _function(reader: Any, data: Json) -> FunctionType:
    code = reader.read(data["code"])
    return FunctionType(code, reader.namespace, code.co_name)


def _code(reader: Any, data: Json) -> CodeType:
    fields = {name: reader.read(data[name]) for name in _FIELDS}
    constants = tuple(reader.read(part) for part in data["constants"])
    return _empty.replace(**fields, co_consts=constants, co_filename=reader.code.co_filename)


def _code_at(reader: Any, data: Json) -> CodeType:
    at: Any = reader.code
    for place in data["path"]:
        at = at.co_consts[place]
    if fingerprint(at) != data["is"]:
        raise LookupError("the code has changed")
    found: CodeType = at
    return found


def _partial(reader: Any, data: Json) -> Any:
    function, *given = (reader.read(part) for part in data["given"])
    return partial(function, *given, **{n: reader.read(part) for n, part in data["named"].items()})


def _nothing() -> None: ...


_empty = _nothing.__code__
CODE_READERS: Mapping[str, Callable[[Any, Json], Any]] = {
    "function": _function,
    "code": _code,
    "code at": _code_at,
    "constants": lambda reader, data: tuple(reader.read(item) for item in data["items"]),
    "timed": lambda reader, data: TimedGraph(reader.read(data["run"])),
    "retry": lambda reader, data: reader.retry(data["is_locked"]),
    "resume": lambda reader, data: reader.resume(reader.read(data["key"])),
    "partial": _partial,
    "box": lambda reader, data: build.Box(reader.read(data["value"])),
    "follow": lambda reader, data: reader.read(data["of"]).follow,
    "modules": lambda reader, data: sys.modules,
    "namespace": lambda reader, data: reader.table_of(data["name"]),
}
