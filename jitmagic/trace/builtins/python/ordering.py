"""sorted, list.sort, heapq, bisect and functools.cmp_to_key.

CPython's own C code runs on stand-ins for the items. `<` of two stand-ins traces the comparison of
their Values, so the order of comparisons is CPython's.
"""

from __future__ import annotations

import bisect
import functools
import heapq
from collections.abc import Callable, Sequence

from ...breaks import GraphBreak, UnsupportedArguments
from ...result import Recipe
from ...values.base import Args, Builder, Kwargs, Machine, Value
from ...values.containers.sequences import ListValue, SequenceValue
from ...values.objects.operators import compare, index_of, is_none, unpack
from ..registry import handles, method
from .numbers import members

__all__: list[str] = []


class _Item:
    """Stands for a value that C code compares."""

    __slots__ = ("machine", "value")

    def __init__(self, machine: Machine, value: Value) -> None:
        self.machine, self.value = machine, value.realize(machine)

    def __lt__(self, other: _Item) -> bool:
        machine = self.machine
        # Sorting, heapq and bisect compare with `<` only.
        return compare(machine, "<", self.value, other.value).realize(machine).truth(machine)


@handles(sorted)
def _sorted(machine: Machine, iterable: Value, **named: Value) -> Value:
    # Keys of equal rank keep the order of the items, which is unknown for a set.
    items = unpack(machine, iterable) if "key" in named else members(machine, iterable)
    return ListValue(_in_order(machine, items, **named))


@method(list, "sort")
def _sort(machine: Machine, owner: Value, **named: Value) -> None:
    assert isinstance(owner, ListValue)
    items = list(owner.items)
    owner.change(machine, [])  # CPython empties the list while it sorts
    ordered = items
    try:
        ordered = _in_order(machine, items, **named)
        changed = bool(owner.items)
    finally:
        owner.change(machine, ordered)
    if changed:
        raise machine.error(ValueError, "list modified during sort", exact=True)


def _in_order(
    machine: Machine,
    items: Sequence[Value],
    key: Value | None = None,
    reverse: Value | None = None,
) -> list[Value]:
    backwards = reverse is not None and reverse.truth(machine)
    measure = None if key is None or is_none(key) else key
    ranks = [
        _Item(machine, item if measure is None else measure.call(machine, [item], {}))
        for item in items
    ]
    order = sorted(range(len(ranks)), key=ranks.__getitem__, reverse=backwards)
    return [items[index] for index in order]


def _follow(
    machine: Machine,
    function: Callable[..., object],
    target: SequenceValue,
    *args: object,
    **named: object,
) -> Value:
    """Run `function(list, *args)` on stand-ins; a list is changed even if a comparison raises."""
    items = [_Item(machine, item) for item in target.items]
    try:
        result = function(items, *args, **named)
    # CPython's own code raised it, so the text is exact on each version.
    except (IndexError, ValueError) as error:  # an empty heap, a negative bound
        raise machine.error(type(error), *error.args, exact=True) from None
    finally:
        made = [item.value for item in items]
        if isinstance(target, ListValue) and made != target.realized(machine):
            target.change(machine, made)
    return result.value if isinstance(result, _Item) else machine.constant(result)


def _register_heap(function: Callable[..., object]) -> None:
    @handles(function)
    def changed(machine: Machine, heap: Value, *items: Value) -> Value:
        if not isinstance(heap, ListValue):
            what = "a heap that is not a list"
            raise GraphBreak(UnsupportedArguments.of(name=function.__name__, what=what))
        return _follow(machine, function, heap, *(_Item(machine, one) for one in items))


# nsmallest() and merge(reverse=True) of heapq, which are Python code, call the last three.
for _name in (
    "heapify", "heappush", "heappop", "heappushpop", "heapreplace",
    "_heapify_max", "_heappop_max", "_heapreplace_max",
):  # fmt: skip
    if hasattr(heapq, _name):
        _register_heap(getattr(heapq, _name))


def _register_bisect(function: Callable[..., object]) -> None:
    @handles(function)
    def search(
        machine: Machine, target: Value, x: Value, *limits: Value, key: Value | None = None
    ) -> Value:
        inserts = function in (bisect.insort_left, bisect.insort_right)
        if not isinstance(target, ListValue if inserts else SequenceValue):
            what = "not a list" if inserts else "not a sequence"
            raise GraphBreak(UnsupportedArguments.of(name=function.__name__, what=what))
        bounds = (None if is_none(one) else index_of(machine, one) for one in limits)
        named = {}
        if key is not None and not is_none(key):
            # The caller's key is called by CPython: for the items that it compares with, and by
            # insort() for `x` too.
            named["key"] = lambda item: _Item(machine, key.call(machine, [item.value], {}))
        return _follow(machine, function, target, _Item(machine, x), *bounds, **named)


for _function in (bisect.bisect_left, bisect.bisect_right, bisect.insort_left, bisect.insort_right):
    _register_bisect(_function)


class _KeyMaker(Value):
    """The result of functools.cmp_to_key: called with an object, it wraps it for comparisons."""

    __slots__ = ("function",)
    always_true = True

    def __init__(self, function: Value) -> None:
        super().__init__()
        self.function = function

    def python_type(self, machine: Machine) -> type:
        # CPython has one class, KeyWrapper, for the maker and for the objects that it wraps.
        return type(functools.cmp_to_key(lambda one, two: 0))

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        if len(args) != 1 or kwargs:
            self.refuse(machine, "such a call")
        return _Key(self, args[0])

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(functools.cmp_to_key, (builder(self.function),))

    def parts(self) -> tuple[Value, ...]:
        return (self.function,)


class _Key(Value):
    """An object whose comparison is `function(this, other) <op> 0`."""

    __slots__ = ("maker", "obj")

    def __init__(self, maker: _KeyMaker, obj: Value) -> None:
        super().__init__()
        self.maker, self.obj = maker, obj

    def python_type(self, machine: Machine) -> type:
        return self.maker.python_type(machine)

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        if not isinstance(other, _Key):
            self.refuse(machine, f"comparison {op}")
        sign = self.maker.function.call(machine, [self.obj, other.obj], {}).realize(machine)
        return compare(machine, op, sign, machine.constant(0))

    def recipe(self, builder: Builder) -> Recipe:
        return builder.call(builder(self.maker), builder(self.obj))

    def parts(self) -> tuple[Value, ...]:
        return self.maker, self.obj


@handles(functools.cmp_to_key, like=lambda mycmp: None)
def _cmp_to_key(machine: Machine, function: Value) -> Value:
    return _KeyMaker(function)
