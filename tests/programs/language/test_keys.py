"""Any hashable object as a key: told by identity, a value of C, or compared by Python code."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import threading
import typing
from typing import Any

import pytest
import torch

import jitmagic

from ..counts import counts_of
from ..scenarios import Tag, collection, seen, x3


@dataclasses.dataclass(frozen=True)
class Shape:
    rows: int
    kind: str = "dense"


class Modulo:
    """Equal to what leaves the same rest, numbers included."""

    def __init__(self, n: int) -> None:
        self.n = n % 3

    def __hash__(self) -> int:
        return self.n

    def __eq__(self, other: object) -> bool:
        return self.n == (other.n if isinstance(other, Modulo) else other)


class Level(enum.Enum):
    LOW = 1
    HIGH = 2

    def __hash__(self) -> int:
        return 12345

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Level) and other.value == self.value


class Named(torch.nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named) and other.name == self.name


class Plain:
    def method(self) -> None: ...


LOCK, OBJECT, PLAIN, LAYER = threading.Lock(), object(), Plain(), torch.nn.ReLU()
KEYS: list[Any] = [
    typing.Union, typing.Literal, typing.Optional[int], list[int], typing.List[int],  # noqa: UP006, UP045
    int | None, datetime.date(2020, 1, 1), datetime.timedelta(1), decimal.Decimal(7),
    fractions.Fraction(1, 2), Shape(1), Modulo(1), Level.LOW, Named("a"), LOCK, OBJECT, PLAIN,
    LAYER, PLAIN.method, (Shape(3), typing.Any), torch.float32, torch.Size([1]), range(3), len,
]  # fmt: skip
OTHERS: list[Any] = [
    Shape(1), Shape(2), Modulo(4), Modulo(2), 1, 2, 0.5, Level.HIGH, Named("a"), Named("b"),
    Plain(), Plain().method, PLAIN.method, (Shape(3), typing.Any), typing.Any,
    decimal.Decimal(3), datetime.date(2020, 1, 1), typing.Optional[str], list[str], "a",  # noqa: UP045
]  # fmt: skip


def looked_up(table: dict[Any, float], key: Any, x: torch.Tensor) -> Any:
    return x * table.get(key, -1.0), key in table


@pytest.mark.parametrize("key", KEYS + OTHERS, ids=lambda key: f"{type(key).__name__} {key!r:.20}")
def test_keys_of_a_live_dictionary(key: Any) -> None:
    table = {key: 2.0 + index for index, key in enumerate(KEYS)}
    tagged = jitmagic.jit(looked_up, fullgraph=True)
    for _ in range(2):
        got, want = tagged(table, key, x3()), looked_up(table, key, x3())
        assert (got[0].tolist(), got[1]) == (want[0].tolist(), want[1])


def built(keys: tuple[Any, ...], x: torch.Tensor) -> Any:
    """New containers, handed out: their keys are the objects of the caller."""
    table = {key: x * index for index, key in enumerate(keys)}
    table[keys[0]] = x - 1
    members = set(keys)
    return table, len(members), keys[-1] in members


def test_keys_of_new_containers() -> None:
    keys = (*KEYS, Shape(1), Modulo(4), Level.LOW)
    table, *rest = jitmagic.jit(built, fullgraph=True)(keys, x3())
    expected, *also = built(keys, x3())
    assert rest == also
    assert [value.tolist() for value in table.values()] == [v.tolist() for v in expected.values()]
    assert all(key is wanted for key, wanted in zip(table, expected, strict=True))


def hashes(a: Any, x: torch.Tensor) -> Any:
    return x + (hash(a) == hash(Shape(1))), hash(("a", 2.0, Level.LOW))


def test_hash_equals_eager() -> None:
    tagged = jitmagic.jit(hashes, fullgraph=True)
    for a in (Shape(1), Shape(2), Shape(1)):
        got, want = tagged(a, x3()), hashes(a, x3())
        assert (got[0].tolist(), got[1]) == (want[0].tolist(), want[1])


def test_unhashable_keys_raise() -> None:
    for key in ([1], {1: 2}, {1}, dataclasses.make_dataclass("Free", ["a"])(1)):
        assert seen(jitmagic.jit(lambda k, x: {k: x}), key, x3()) is TypeError


class Alike(type):
    """A metaclass whose classes are all equal."""

    def __hash__(cls) -> int:
        return 1

    def __eq__(cls, other: object) -> bool:
        return isinstance(other, Alike)


def test_classes_with_metaclass_eq_break_as_keys() -> None:
    one, other = Alike("One", (), {}), Alike("Other", (), {})
    tagged = jitmagic.jit(lambda x: x * len({one: 1, other: 2}))
    assert tagged(x3()).tolist() == x3().tolist()
    assert counts_of(tagged).breaks == 1  # where the keys are stored; a length needs none of them


scenario, test_as_plain = collection(recompile_limit=30)


@scenario
def a_key_is_replaced(tag: Tag) -> list[Any]:
    first, second = Plain(), Plain()
    table = {first: 2.0, "x": 3.0}
    fn = tag(lambda key, x: x * table.get(key, 5.0))
    results = [seen(fn, key, x3()) for key in (first, second)]
    table[second] = table.pop(first)
    results += [seen(fn, key, x3()) for key in (first, second)]
    table.clear()
    return [*results, *(seen(fn, key, x3()) for key in (first, second))]


@scenario
def keys_change_places(tag: Tag) -> list[Any]:
    keys = [Shape(1), Shape(2)]
    table = collections.OrderedDict((key, float(key.rows)) for key in keys)
    fn = tag(lambda x: ([key.rows for key in table], x * table[keys[0]]))
    results = [seen(fn, x3())]
    table.move_to_end(keys[0])
    results.append(seen(fn, x3()))
    table[keys[0]] = 7.0
    return [*results, seen(fn, x3())]


@scenario
def equality_is_defined_anew(tag: Tag) -> list[Any]:
    class Key:
        def __init__(self, n: int) -> None:
            self.n = n

    one, other = Key(1), Key(1)
    fn = tag(lambda x: x * ({one: 2.0}).get(other, 3.0))
    results = [seen(fn, x3())]
    Key.__hash__ = lambda self: hash(self.n)  # type: ignore[method-assign,assignment]
    Key.__eq__ = lambda self, other: self.n == other.n  # type: ignore[method-assign,assignment]
    results.append(seen(fn, x3()))
    other.n = 2
    return [*results, seen(fn, x3())]


@scenario
def entries_are_written(tag: Tag) -> list[Any]:
    table: dict[Any, Any] = {Shape(1): 1.0, PLAIN: 2.0}

    def write(x: torch.Tensor) -> Any:
        table[Shape(1)] = x.shape[0]
        table[Shape(len(table))] = 3.0
        del table[PLAIN]
        table[PLAIN] = 4.0
        return x + 1

    fn = tag(write)
    results = []
    for _ in range(3):
        results += [seen(fn, x3()), [(repr(k)[:12], v) for k, v in table.items()]]
    return results
