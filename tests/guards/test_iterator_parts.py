"""Positions of live iterators: the native step agrees with the reference, and nothing advances."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jitmagic.bytecode.snapshot import FrameSnapshot
from jitmagic.frame.native import GuardProgram, lower_guards
from jitmagic.guards.check import holds
from jitmagic.guards.guard import LengthIs, ValueEquals
from jitmagic.guards.iterator_parts import iterator_parts
from jitmagic.guards.source import Argument, Item, IteratorParts

TABLE = {"a": 1, "b": 2, "c": 3, "d": 4}
KNOWN: dict[str, Callable[[], Iterator[Any]]] = {
    "list": lambda: iter([7, 8, 9, 10]),
    "tuple": lambda: iter((7, 8, 9, 10)),
    "range": lambda: iter(range(3, 30, 4)),
    "reversed list": lambda: reversed([7, 8, 9, 10]),
    "reversed tuple": lambda: reversed((7, 8, 9, 10)),
    "reversed range": lambda: reversed(range(4)),
    "dict": lambda: iter(TABLE),
    "values": lambda: iter(TABLE.values()),
    "items": lambda: iter(TABLE.items()),
    "set": lambda: iter({7, 8, 9, 10}),
    "frozenset": lambda: iter(frozenset((7, 8, 9, 10))),
    "enumerate": lambda: enumerate(iter([7, 8, 9, 10]), 5),
    "zip": lambda: zip([7, 8, 9, 10], (1, 2, 3, 4)),
    "strict zip": lambda: zip([7, 8, 9, 10], (1, 2, 3, 4), strict=True),
    "map": lambda: map(abs, [7, 8, 9, 10]),
    "filter": lambda: filter(None, [7, 8, 9, 10]),
}
UNKNOWN: dict[str, Callable[[], Any]] = {
    "generator": lambda: (x for x in [1, 2, 3]),
    "deque": lambda: iter(deque([1, 2, 3])),
    "text": lambda: iter("abc"),
    "ordered": lambda: iter(OrderedDict(a=1, b=2)),
    "callable": lambda: iter(int, 1),
    "no iterator": lambda: [1, 2, 3],
    "a class of the user's": lambda: iter(type("Mine", (list,), {})([1, 2])),
}
SOURCE = IteratorParts(Argument(0, "it"))


def _frame(iterator: object) -> FrameSnapshot:
    return FrameSnapshot.of_call(lambda it: it, (iterator,))


def _numbers(parts: tuple[Any, ...]) -> list[int]:
    return [i for i, part in enumerate(parts) if isinstance(part, int)]


def _native(guards: list[Any]) -> GuardProgram:
    return GuardProgram(lower_guards(guards, (), {}, {})[0])


@pytest.mark.parametrize("taken", [0, 1, 3])
@pytest.mark.parametrize("name", KNOWN)
def test_parts_give_the_position_of_an_iterator(name: str, taken: int) -> None:
    iterator, another = KNOWN[name](), KNOWN[name]()
    for _ in range(taken):
        next(iterator), next(another)
    parts = iterator_parts(iterator)
    assert parts is not None
    guards = [LengthIs(SOURCE, len(parts))]
    guards += [ValueEquals(Item(SOURCE, i), parts[i]) for i in _numbers(parts)]
    program = _native(guards)
    assert program.check((iterator,))
    assert all(holds(guard, _frame(iterator)) for guard in guards)
    assert list(iterator) == list(another), "reading has moved it"


@pytest.mark.parametrize("name", ["list", "tuple", "range", "dict", "values", "enumerate"])
def test_another_position_fails_the_guard(name: str) -> None:
    iterator = KNOWN[name]()
    parts = iterator_parts(iterator)
    assert parts is not None
    guards = [ValueEquals(Item(SOURCE, i), parts[i]) for i in _numbers(parts)]
    program = _native(guards)
    next(iterator)
    assert not program.check((iterator,))
    assert not all(holds(guard, _frame(iterator)) for guard in guards)


@pytest.mark.parametrize("name", UNKNOWN)
def test_other_iterators_have_no_parts(name: str) -> None:
    iterator = UNKNOWN[name]()
    assert iterator_parts(iterator) is None
    assert not _native([LengthIs(SOURCE, 2)]).check((iterator,))
    assert not holds(LengthIs(SOURCE, 2), _frame(iterator))


@pytest.mark.parametrize("name", ["list", "tuple", "dict", "items"])
def test_exhausted_iterators_have_no_parts(name: str) -> None:
    iterator = KNOWN[name]()
    list(iterator)
    assert iterator_parts(iterator) is None
    assert not _native([LengthIs(SOURCE, 2)]).check((iterator,))


def test_an_iterator_over_a_resized_dictionary_has_no_parts() -> None:
    table = dict(TABLE)
    iterator = iter(table)
    next(iterator)
    table["e"] = 5
    assert iterator_parts(iterator) is None
    assert not _native([LengthIs(SOURCE, 2)]).check((iterator,))


def test_a_removed_and_reinserted_entry_is_iterated_again() -> None:
    """Python finds more entries than it expects and finally raises."""
    table = dict(TABLE)
    iterator = iter(table)
    next(iterator)
    table["a"] = table.pop("a")
    assert iterator_parts(iterator) is None
    assert not _native([LengthIs(SOURCE, 2)]).check((iterator,))
