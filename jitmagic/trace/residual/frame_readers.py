"""Functions that may look at the variables of their callers: `f_locals` in what they can reach.

Comes in: the code of a frame that is cut at graph breaks, its namespace, and the objects that it
was called with. Goes out: whether a function that it may call names `f_locals`, as pandas' query
and numexpr's evaluate do. Such a frame keeps all of its variables bound, as eager's, whether they
are read again or not.

Names are looked up in namespaces, and attributes in every module, class and object that the code
names, and in containers of such: no code of the user's runs. That finds more than is called; what
it misses is a method of an object that only a call gives, of a class that no code on the way names.
Code of torch, of this package and of the standard library but for `inspect` looks at no variables
of its callers (traceback does where it is asked to, on behalf of logging alone: frames that log
would all be kept whole).

The search is made at the first break of a frame: 0.1 ms, 40 ms where the frame uses pandas.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import itertools
import os
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType, UnionType
from typing import Any

import torch

from ...bytecode import FrameSnapshot
from ...guards.function_cache import LRU_CACHE
from ...guards.read import UNREADABLE, instance_dict

__all__ = ["may_be_looked_at", "names_may_be_looked_at"]

_LOOKS = "f_locals"
_MOST_FUNCTIONS = 1000  # a search that finds no end is answered with yes
_MOST_ITEMS = 50  # of a container
_NO_READERS = (torch.__path__[0] + os.sep, str(Path(__file__).parents[2]) + os.sep, "<frozen ")
_STANDARD = os.path.dirname(os.__file__) + os.sep
_OF_CLASSES = ("__init__", "__new__", "__call__", "__enter__", "__exit__")

Body = tuple[CodeType, dict[str, Any], list[Any]]  # code, its namespace, further objects it knows


def may_be_looked_at(frame: FrameSnapshot) -> bool:
    """Return whether something that the frame may call looks at the variables of its callers."""
    bodies = _reachable(frame.code, frame.globals, [*frame.args, *_contents(frame.cells)])
    return any(n == _MOST_FUNCTIONS or _LOOKS in body.co_names for n, body in enumerate(bodies))


def names_may_be_looked_at(code: CodeType, namespace: dict[str, Any]) -> bool:
    """Return whether code of a module may call a function that looks at `f_locals`, which is the
    namespace there, and not at `f_globals`, where pandas and numexpr find the same names.
    """
    bodies = itertools.islice(_reachable(code, namespace, []), _MOST_FUNCTIONS)
    return any(_LOOKS in body.co_names and "f_globals" not in body.co_names for body in bodies)


def _reachable(code: CodeType, namespace: dict[str, Any], given: list[Any]) -> Iterator[CodeType]:
    """Yield the code of what it may call, nearest first."""
    waiting = deque[Body]([(code, namespace, given)])
    seen = set[CodeType]()
    while waiting:
        here, names, given = waiting.popleft()
        if here in seen or (here is not code and _reads_nothing(here.co_filename)):
            continue
        seen.add(here)
        if here is not code:
            yield here
        for found, owner in _reached(here, names, given):
            waiting += _bodies(found, owner)


@functools.cache
def _reads_nothing(filename: str) -> bool:
    if filename.startswith(_NO_READERS):
        return True
    inner = filename.removeprefix(_STANDARD)
    return inner not in (filename, "inspect.py") and not inner.startswith("site-packages")


Reached = Iterator[tuple[Any, type | None]]  # an object, and the class of which it is an attribute


def _reached(code: CodeType, namespace: dict[str, Any], given: list[Any]) -> Reached:
    """Return what the names in the code may lead to."""
    names = list(dict.fromkeys(_names(code)))
    tables = (namespace, vars(builtins), sys.modules)
    found = ([table[name] for table in tables if name in table][:1] for name in names)
    places = (*given, *(one for first in found for one in first))
    for place in itertools.chain.from_iterable(map(_with_items, places)):
        yield place, None
        for inner, owner in _attributes(place, names):
            yield inner, owner
            if owner is not None:
                continue
            # What a module or an object holds: `self.helper.look()`, `handlers["x"].look()`.
            for one in _with_items(inner):
                yield one, None
                if not _is_a(place, ModuleType) or _is_a(one, ModuleType | type):
                    yield from _attributes(one, names)


def _with_items(place: Any) -> list[Any]:
    """Return the object, and of a plain container the first items."""
    if type(place) not in (list, tuple, dict):
        return [place]
    items = place.values() if type(place) is dict else place
    return [place, *itertools.islice(items, _MOST_ITEMS)]


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names in the code and in the functions that it makes."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _attributes(place: Any, names: Iterable[str]) -> Reached:
    if _is_a(place, ModuleType):
        held = object.__getattribute__(place, "__dict__")
        yield from ((held[name], None) for name in names if name in held)
        return
    kind = place if _is_a(place, type) else type(place)
    held = {} if kind is place else _own_names(place)
    for name in names:
        if name in held:
            yield held[name], None
        if (found := _of_class(kind, name)) is not None:
            yield found, kind


def _own_names(place: Any) -> dict[str, Any]:
    try:
        return instance_dict(place)
    except UNREADABLE:
        return {}


def _of_class(kind: type, name: str) -> Any:
    for base in type.__getattribute__(kind, "__mro__"):
        if name in (held := type.__getattribute__(base, "__dict__")):
            return held[name]
    return None


def _is_a(value: object, kind: type | UnionType) -> bool:
    """Check the class of an object; isinstance would run a `__class__` that the user wrote."""
    return issubclass(type(value), kind)


def _bodies(found: Any, owner: type | None) -> Iterator[Body]:
    """The functions in Python that a call of the object runs; a method knows its class."""
    around = [] if owner is None else [owner]
    for one in _functions(found):
        yield one.__code__, one.__globals__, [*around, *_contents(one.__closure__ or ())]


def _contents(cells: Iterable[types.CellType]) -> Iterator[object]:
    for cell in cells:
        with contextlib.suppress(ValueError):  # an empty one
            yield cell.cell_contents


def _functions(found: Any) -> Iterator[FunctionType]:
    if _is_a(found, MethodType | staticmethod | classmethod):
        found = object.__getattribute__(found, "__func__")
    elif _is_a(found, functools.partial):
        found = object.__getattribute__(found, "func")
    elif _is_a(found, property):
        found = object.__getattribute__(found, "fget")
    elif type(found) is LRU_CACHE:
        found = found.__wrapped__
    if _is_a(found, FunctionType):
        yield found
        if (inner := found.__dict__.get("__wrapped__")) is not None:  # of a tagged function
            yield from _functions(inner)
        return
    kind, names = (found, _OF_CLASSES) if _is_a(found, type) else (type(found), ("__call__",))
    for name in names:
        if _is_a(made := _of_class(kind, name), FunctionType):
            yield made
