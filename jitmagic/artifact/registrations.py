"""Writes operators that other libraries register, and the guards on them, for files of
`jitmagic.save`.

In: a StateRead whose reader is a `Registrations` (graph/operators/foreign.py). Out: the name of the
operator, its schemas and, for each function that is registered for it, what that is: the code, the
defaults and the closure. The kernel is not in the file: the loading process has to import the
library, and its operator is compared with the one that the file was compiled for.

jitmagic's own forms of such operators, which it defines on demand, are defined anew.

A function whose closure holds more than constants and functions raises CannotKeep. Of torch's own
wrappers around such functions only the functions inside are compared: the rest is their state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch

from ..compat.operators import OpOverload, OpOverloadPacket
from ..errors import CannotKeep
from ..graph.operators.foreign import (
    Registrations,
    is_foreign,
    name_of,
    overloads_of,
    registrations,
)
from ..graph.operators.operator_library import DEFINED, DEFINERS
from ..guards.constants import is_constant
from ..guards.guard import StateRead
from ..trace.library_files import is_library
from .codec import Json, Reader, Writer
from .guards import Mismatch, listed
from .references import facts_of, find

__all__ = ["READERS", "WRITERS", "operators_in", "require_operator"]

_KIND, _FORM = "registrations", "form of an operator"


def _write(writer: Writer, guard: StateRead) -> Json:
    """Return the data of a StateRead; those of other readers are records like any other."""
    if not isinstance(guard.reader, Registrations):
        return writer.record(guard)
    value: Any = guard.value
    packet, *registered = value
    functions = (one for part in registered for one in _functions_in(part))
    modules = (one.__module__ for one in functions if not is_library(one.__code__.co_filename))
    return {
        "$": _KIND,
        "where": writer.write(guard.where),
        "name": "::".join(name_of(packet)),
        "module": guard.reader.module or next(modules, None),
        "facts": _facts(value),
    }


def _read(reader: Reader, data: Json) -> StateRead:
    """Return the guard on the operator of that name here. Raises Mismatch if it is another one."""
    require_operator(data)
    read = registrations(_packet(data["name"]))
    now = read()
    if _facts(now) != data["facts"]:
        raise Mismatch(f"the operator {data['name']} is registered with other functions here")
    return StateRead(read, now, where=reader.read(data["where"]))


def operators_in(shared: list[Json]) -> Iterator[Json]:
    """Yield the data of guards on operators in the table of values of an entry."""
    return (one for one in shared if type(one) is dict and one.get("$") == _KIND)


def require_operator(data: Json) -> None:
    """Raise Mismatch if this process has no operator of that name."""
    if _packet(data["name"]) is None:
        raise Mismatch(f"there is no operator {data['name']}")


def _packet(name: str) -> Any:
    space, _, short = name.partition("::")
    found = getattr(getattr(torch.ops, space), short, None)
    return found if isinstance(found, OpOverloadPacket) else None


def _facts(value: Any) -> Json:
    """Return what a Registrations has read, in strings, numbers and lists of them."""
    packet, *registered = value
    overloads = [[str(one._schema), sorted(map(str, one.tags))] for one in overloads_of(packet)]
    return [overloads, [_facts_of_part(part) for part in registered]]


def _facts_of_part(part: Any) -> Json:
    if isinstance(part, bool | None):
        return part
    if type(part) is tuple:  # a device type and the dtype to which autocast casts there
        return [str(item) for item in part]
    return _facts_of_function(part, ())


def _facts_of_function(function: Any, inside: tuple[Any, ...]) -> Json:
    """Return the facts of a function, with those of the functions and constants that it holds."""
    facts = listed(facts_of(function))
    if type(function) is not FunctionType or any(function is one for one in inside):
        return facts
    inside = (*inside, function)
    held: list[tuple[Any, Any]] = [(name, cell.cell_contents) for name, cell in _cells(function)]
    if is_library(function.__code__.co_filename):
        held = [(name, value) for name, value in held if _is_function(value)]
    else:
        defaults = function.__kwdefaults__ or {}
        held += [*enumerate(function.__defaults__ or ()), *defaults.items()]
    return [facts, [[name, _facts_of_held(function, value, inside)] for name, value in held]]


def _facts_of_held(function: FunctionType, value: Any, inside: tuple[Any, ...]) -> Json:
    if _is_function(value):
        return _facts_of_function(value, inside)
    if is_constant(value):
        return [type(value).__qualname__, repr(value)]
    raise CannotKeep(
        f"{function.__qualname__}, which is registered for an operator and holds "
        f"an object of type {type(value).__qualname__}"
    )


def _functions_in(part: Any) -> Iterator[FunctionType]:
    """Yield a function, and those that torch's wrapper around it holds."""
    if type(part) is FunctionType:
        yield part
        if is_library(part.__code__.co_filename):
            for _, cell in _cells(part):
                yield from _functions_in(cell.cell_contents)


def _cells(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the names and cells of a closure. Raises CannotKeep if one is empty."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            cell.cell_contents  # noqa: B018
        except ValueError:
            raise CannotKeep(f"{function.__qualname__}, whose {name} is not bound yet") from None
        yield name, cell


def _is_function(value: object) -> bool:
    return type(value) in (FunctionType, BuiltinFunctionType)


# -- forms of operators ----------------------------------------------------------------------------


def _write_operator(writer: Writer, op: OpOverload) -> Json:
    """Return the data of an operator; of a form of a foreign one, how jitmagic defines it."""
    define, args = DEFINED.get(op, (None, ()))
    if define is None or not all(map(is_foreign, args)):
        return writer.operator(op)
    path = [define.__module__, define.__qualname__]
    return {"$": _FORM, "by": path, "of": [writer.write(arg) for arg in args]}


def _read_operator(reader: Reader, data: Json) -> OpOverload:
    """Define the form of an operator. Raises Mismatch if no such forms are known."""
    try:
        define = find(tuple(data["by"]))
    except (LookupError, ImportError):
        define = None
    if not any(define is one for one in DEFINERS):
        raise Mismatch(f"{data['by']} defines no operator")
    made: OpOverload = define(*map(reader.read, data["of"]))
    return made


WRITERS: Mapping[type, Any] = {StateRead: _write, OpOverload: _write_operator}
READERS: Mapping[str, Any] = {_KIND: _read, _FORM: _read_operator}
