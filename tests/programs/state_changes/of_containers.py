"""Containers of the user's whose contents change between calls."""

from __future__ import annotations

import collections
import itertools
import types
from typing import Any, NamedTuple

from .mutation import Change, Program, add, both, put


class Pair(NamedTuple):
    left: float
    right: float


def _container(label: str, make: Any, program: Any, do: Any, undo: Any) -> None:
    def build() -> tuple[Program, Change]:
        held = types.SimpleNamespace(it=make())
        return (
            lambda x: program(held.it, x),
            lambda: both(lambda: do(held.it, held), lambda: undo(held.it, held)),
        )

    add(label, build)


def _walk(it: Any, x: Any) -> Any:
    for part in it:
        x = x + part
    return x


_container("list item", lambda: [1.0, 2.0], _walk,
           lambda it, h: it.__setitem__(0, 5.0), lambda it, h: it.__setitem__(0, 1.0))  # fmt: skip
_container("list longer", lambda: [1.0, 2.0], _walk,
           lambda it, h: it.append(5.0), lambda it, h: it.pop())  # fmt: skip
_container("list reversed", lambda: [1.0, 2.0], lambda it, x: x * it[0],
           lambda it, h: it.reverse(), lambda it, h: it.reverse())  # fmt: skip
_container("list item type", lambda: [1.0, 2.0], lambda it, x: (x, it[0]),
           lambda it, h: it.__setitem__(0, "a"), lambda it, h: it.__setitem__(0, 1.0))  # fmt: skip
_container("list in list", lambda: [[1.0], 2.0], lambda it, x: x * it[0][0],
           lambda it, h: it[0].insert(0, 4.0), lambda it, h: it[0].pop(0))  # fmt: skip
_container("list is contained", lambda: [1.0], lambda it, x: x * (2 if 5.0 in it else 3),
           lambda it, h: it.append(5.0), lambda it, h: it.pop())  # fmt: skip
_container("list becomes tuple", lambda: [1.0, 2.0], lambda it, x: (x, type(it).__name__),
           lambda it, h: setattr(h, "it", (1.0, 2.0)), lambda it, h: setattr(h, "it", [1.0, 2.0]),
           )  # fmt: skip
_container("dict value", lambda: {"a": 1.0}, lambda it, x: x * it["a"],
           lambda it, h: it.update(a=4.0), lambda it, h: it.update(a=1.0))  # fmt: skip
_container("dict key appears", lambda: {"a": 1.0}, lambda it, x: x * it.get("b", 2.0),
           lambda it, h: it.update(b=4.0), lambda it, h: it.pop("b"))  # fmt: skip
_container("dict order", lambda: {"a": 1.0, "b": 2.0}, lambda it, x: (x, list(it)),
           lambda it, h: it.update(a=it.pop("a")), lambda it, h: it.update(b=it.pop("b")),
           )  # fmt: skip
_container("dict walked", lambda: {"a": 1.0, "b": 2.0}, lambda it, x: _walk(it.values(), x),
           lambda it, h: it.update(c=4.0), lambda it, h: it.pop("c"))  # fmt: skip
_container("dict truth", dict, lambda it, x: x * (2 if it else 3),
           lambda it, h: it.update(c=4.0), lambda it, h: it.pop("c"))  # fmt: skip
_container("dict int key", lambda: {1: 1.0}, lambda it, x: x * it[1],
           lambda it, h: it.update({1: 4.0}), lambda it, h: it.update({1: 1.0}))  # fmt: skip
_container("defaultdict", lambda: collections.defaultdict(float, a=1.0),
           lambda it, x: x * it["a"],
           lambda it, h: it.update(a=4.0), lambda it, h: it.update(a=1.0))  # fmt: skip
_container("ordered dict", lambda: collections.OrderedDict(a=1.0, b=2.0),
           lambda it, x: (x, list(it)),
           lambda it, h: it.move_to_end("a"), lambda it, h: it.move_to_end("b"))  # fmt: skip
_container("Counter", lambda: collections.Counter("ab"), lambda it, x: x * it["a"],
           lambda it, h: it.update("a"), lambda it, h: it.subtract("a"))  # fmt: skip
_container("ChainMap", lambda: collections.ChainMap({}, {"a": 1.0}), lambda it, x: x * it["a"],
           lambda it, h: it.maps[0].update(a=4.0), lambda it, h: it.maps[0].clear())  # fmt: skip
_container("set", lambda: {1, 2}, lambda it, x: x * (2 if 5 in it else 3),
           lambda it, h: it.add(5), lambda it, h: it.discard(5))  # fmt: skip
_container("set length", lambda: {1, 2}, lambda it, x: x * len(it),
           lambda it, h: it.add(5), lambda it, h: it.discard(5))  # fmt: skip
_container("frozenset", lambda: frozenset((1,)), lambda it, x: x * len(it),
           lambda it, h: setattr(h, "it", frozenset((1, 2))),
           lambda it, h: setattr(h, "it", frozenset((1,))))  # fmt: skip
_container("deque", lambda: collections.deque([1.0]), _walk,
           lambda it, h: it.append(5.0), lambda it, h: it.pop())  # fmt: skip
_container("deque item", lambda: collections.deque([1.0]), lambda it, x: x * it[0],
           lambda it, h: it.appendleft(5.0), lambda it, h: it.popleft())  # fmt: skip
_container("named tuple", lambda: Pair(1.0, 2.0), lambda it, x: x * it.left,
           lambda it, h: setattr(h, "it", Pair(3.0, 2.0)),
           lambda it, h: setattr(h, "it", Pair(1.0, 2.0)))  # fmt: skip
_container("slice", lambda: slice(0, 1), lambda it, x: x[it] + 0,
           lambda it, h: setattr(h, "it", slice(0, 2)),
           lambda it, h: setattr(h, "it", slice(0, 1)))  # fmt: skip
_container("range", lambda: range(2), _walk,
           lambda it, h: setattr(h, "it", range(4)),
           lambda it, h: setattr(h, "it", range(2)))  # fmt: skip
_container("namespace", lambda: types.SimpleNamespace(a=2.0), lambda it, x: x * it.a,
           lambda it, h: setattr(it, "a", 3.0), lambda it, h: setattr(it, "a", 2.0))  # fmt: skip
_container("user dict", lambda: collections.UserDict(a=2.0), lambda it, x: x * it["a"],
           lambda it, h: it.update(a=3.0), lambda it, h: it.update(a=2.0))  # fmt: skip


# A key whose hash is another than when it was put in is there, but not found.
_TABLES: dict[str, tuple[Any, Any]] = {
    "dict": (lambda key: {key: 2.0}, lambda it, key, x: x * it.get(key, 5.0)),
    "dict of two": (lambda key: {key: 2.0, "a": 1.0}, lambda it, key, x: x * (1 + (key in it))),
    "dict in words": (
        lambda key: {key: 2.0},
        lambda it, key, x: (x, [*it.values()], list(it)[0] is key, {**it}.get(key)),
    ),
    "set": (lambda key: {key, 3}, lambda it, key, x: x * (1 + (key in it))),
    "frozenset": (lambda key: frozenset((key,)), lambda it, key, x: x * (1 + (key in it))),
    "tuple as a key": (lambda key: {(key, 1): 2.0}, lambda it, key, x: x * it.get((key, 1), 5.0)),
}


def _lost(kind: type, program: Any, hash: int) -> int:
    """A hash with which a key is not found: one whose slot is met by the way is, whatever its hash,
    which depends on where the process's seed puts other keys.
    """
    found = program()
    for other in itertools.count(hash + 1):
        with put(kind, "__hash__", lambda key: other):
            if program() != found:
                return other


def _rehashed(make: Any, program: Any, own: bool, of_class: bool) -> Any:
    """The class has a `__hash__` of its own, or none; it changes, or what the key says does."""

    def build() -> tuple[Program, Change]:
        kind = type("Key", (), {"number": 1})
        told = lambda key: key.number * 7  # noqa: E731
        if own or not of_class:
            kind.__hash__ = told  # type: ignore[assignment, method-assign]
        key = kind()
        it = make(key)
        if not of_class:
            return lambda x: program(it, key, x), lambda: put(key, "number", 4)
        lost = _lost(kind, lambda: program(it, key, 1.0), hash(key))
        return lambda x: program(it, key, x), lambda: put(kind, "__hash__", lambda key: lost)

    return build


for _name, (_make, _program) in _TABLES.items():
    add(f"hash of the class, {_name}", _rehashed(_make, _program, False, True))
    add(f"own hash of the class, {_name}", _rehashed(_make, _program, True, True))
    add(f"hash of a key, {_name}", _rehashed(_make, _program, True, False))
