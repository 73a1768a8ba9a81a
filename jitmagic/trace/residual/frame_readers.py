"""Finds functions that may read the variables of their callers, through `f_locals`.

Takes the code of a frame that is cut at graph breaks, its namespace and its arguments. Returns
whether a function that it may call names `f_locals`, as pandas' query and numexpr's evaluate do.
Such a frame keeps all of its variables bound, as eager does, even if they are not read again.

Names are looked up in namespaces, and attributes in every module, class and object that the code
names and in containers of such; no code of the user's runs. That finds more than is called. It
misses a method of an object that only a call returns, if no code on the way names its class. Code
of torch, of this package and of the standard library except `inspect` is skipped. (`traceback` too
can read variables, but only on request; counting it would keep all variables of frames that log.)

The search runs at the first break of a frame. It takes 0.1 ms, and 40 ms where the frame uses
pandas.
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
from ...guards.live_objects import instance_dict
from ...guards.read import UNREADABLE

__all__ = ["callees_may_read_locals", "callees_may_read_namespace"]

_LOCALS = "f_locals"
_MOST_FUNCTIONS = 1000  # a longer search counts as a hit
_MOST_ITEMS = 50  # of a container
_NO_READERS = (torch.__path__[0] + os.sep, str(Path(__file__).parents[2]) + os.sep, "<frozen ")
_STANDARD = os.path.dirname(os.__file__) + os.sep
_OF_CLASSES = ("__init__", "__new__", "__call__", "__enter__", "__exit__")

# Code, its namespace, and further objects that it knows.
Body = tuple[CodeType, dict[str, object], list[object]]


def callees_may_read_locals(frame: FrameSnapshot) -> bool:
    """Return whether a function that the frame may call reads the variables of its callers."""
    bodies = _reachable(frame.code, frame.globals, [*frame.args, *_contents(frame.cells)])
    return any(n == _MOST_FUNCTIONS or _LOCALS in body.co_names for n, body in enumerate(bodies))


def callees_may_read_namespace(code: CodeType, namespace: dict[str, object]) -> bool:
    """Return whether module code may call a function that reads `f_locals` but not `f_globals`.

    At module level `f_locals` is the namespace; pandas and numexpr find the same names in
    `f_globals`.
    """
    bodies = itertools.islice(_reachable(code, namespace, []), _MOST_FUNCTIONS)
    return any(_LOCALS in body.co_names and "f_globals" not in body.co_names for body in bodies)


def _reachable(
    code: CodeType, namespace: dict[str, object], given: list[object]
) -> Iterator[CodeType]:
    """Yield the code of the functions that it may call, nearest first."""
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


# Objects, each with the class of which it is an attribute.
Reached = Iterator[tuple[object, type | None]]


def _reached(code: CodeType, namespace: dict[str, object], given: list[object]) -> Reached:
    """Return the objects that the names in the code may lead to."""
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
            # Attributes and items of an object: `self.helper.look()`, `handlers["x"].look()`.
            for one in _with_items(inner):
                yield one, None
                if not _is_a(place, ModuleType) or _is_a(one, ModuleType | type):
                    yield from _attributes(one, names)


def _with_items(place: Any) -> list[object]:
    """Return the object and, if it is a plain container, its first items."""
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


def _own_names(place: object) -> dict[str, object]:
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
    """Return whether an object is of a class; isinstance would run a `__class__` of the user's."""
    return issubclass(type(value), kind)


def _bodies(found: object, owner: type | None) -> Iterator[Body]:
    """Yield the Python functions that a call of the object runs, with the class of a method."""
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
