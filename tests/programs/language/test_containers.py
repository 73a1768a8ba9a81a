"""Containers of each type, reached in each way, through drawn operations: results, contents, order
and identity as in eager, also across breaks and exceptions, and when the contents have changed.
"""

from __future__ import annotations

import collections
import copy
import random
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

import jitmagic

from ..counts import counts_of, eager_of

Operation = Callable[[Any, Any], Any]


class Table(dict):
    """A dictionary of the user's."""

    def twice(self, key):
        return self[key], self[key]


class Bag:
    """An object whose attributes are asked for as a dictionary."""


def _bag(**given: Any) -> Bag:
    made = Bag()
    vars(made).update(given)
    return made


def _assign(c, key, value):
    c[key] = value


def _delete(c, key):
    del c[key]


def _add_in_place(c, more):
    before = c
    c += more
    return c is before


def _or_in_place(c, more):
    before = c
    c |= more
    return c is before


def _take_in_place(c, less):
    before = c
    c -= less
    return c is before


def _walk_and_grow(c, t):
    for one in c:
        c.append(one)


def _set_and_walk(c, t):
    for one in c:
        c.add((one, 1))


def _walk_and_drop(c, t):
    for key in c:
        del c[key]


def _table_of(kind):
    return lambda items: kind({str(item): item for item in items})


def _shrunk(large, items):
    large.update(items)
    large.difference_update(range(40, 80))
    return large


ITEMS: dict[str, Operation] = {
    "len": lambda c, t: len(c),
    "truth": lambda c, t: bool(c),
    "first": lambda c, t: c[0],
    "last": lambda c, t: c[-1],
    "walk": lambda c, t: list(c),
    "sum": lambda c, t: t * sum(c),
    "has": lambda c, t: (2 in c, "no" in c),
    "append": lambda c, t: c.append(7),
    "append tensor": lambda c, t: c.append(len(t)),
    "extend": lambda c, t: c.extend([8, 9]),
    "extend by itself": lambda c, t: c.extend(c),
    "in place": lambda c, t: _add_in_place(c, (5, 6)),
    "set": lambda c, t: _assign(c, 0, 11),
    "set last": lambda c, t: _assign(c, -1, 12),
    "delete": lambda c, t: _delete(c, 0),
    "pop": lambda c, t: c.pop(),
    "remove": lambda c, t: c.remove(2),
    "index": lambda c, t: c.index(2),
    "count": lambda c, t: c.count(2),
    "clear": lambda c, t: c.clear(),
    "reverse": lambda c, t: c.reverse(),
    "reversed": lambda c, t: list(reversed(c)),
    "insert": lambda c, t: c.insert(1, 5),
    "copy": lambda c, t: c.copy(),
    "copied": lambda c, t: copy.copy(c),
    "zip": lambda c, t: [a * b for a, b in zip(c, c)],
    "enumerate": lambda c, t: [t * i + v for i, v in enumerate(c)],
    "unpack": lambda c, t: [*c, 1],
    "sorted": lambda c, t: sorted(c),
    "tuple": lambda c, t: tuple(c),
    "itself": lambda c, t: c,
    "nested": lambda c, t: {"it": (c, c)},
}
OPERATIONS: dict[str, dict[str, Operation]] = {
    "list": {
        **ITEMS,
        "slice": lambda c, t: c[1:],
        "set slice": lambda c, t: _assign(c, slice(0, 1), [3, 4]),
        "sort": lambda c, t: c.sort(reverse=True),
        "pop first": lambda c, t: c.pop(0),
        "plus": lambda c, t: c + [1],
        "times": lambda c, t: c * 2,
        "equal": lambda c, t: (c == [1, 2, 3], c < [1, 5], c != [4]),
    },
    "deque": {
        **ITEMS,
        "appendleft": lambda c, t: c.appendleft(7),
        "extendleft": lambda c, t: c.extendleft([8, 9]),
        "popleft": lambda c, t: c.popleft(),
        "rotate": lambda c, t: c.rotate(),
        "rotate back": lambda c, t: c.rotate(-2),
        "maxlen": lambda c, t: c.maxlen,
        "equal": lambda c, t: (c == collections.deque([1, 2, 3]), c < collections.deque([1, 5])),
        "replay": lambda c, t: (c.append(4), c.popleft()),
        "grow while walked": _walk_and_grow,
    },
}
OPERATIONS["set"] = {
    "len": lambda c, t: len(c),
    "truth": lambda c, t: bool(c),
    "walk": lambda c, t: list(c),
    "sum": lambda c, t: t * sum(c),
    "has": lambda c, t: (2 in c, "no" in c, 3 not in c),
    "add": lambda c, t: c.add(7),
    "add again": lambda c, t: c.add(2),
    "seen before": lambda c, t: 5 in c or c.add(5),
    "discard": lambda c, t: c.discard(2),
    "remove": lambda c, t: c.remove(2),
    "pop": lambda c, t: c.pop() if len(c) == 1 else None,
    "clear": lambda c, t: c.clear(),
    "update": lambda c, t: c.update([8, 9], {2}),
    "update from a dict": lambda c, t: c.update({8: 1, 2: 3}),
    "in place": lambda c, t: _or_in_place(c, {5, 6}),
    "less": lambda c, t: _take_in_place(c, {1, 2}),
    "keep": lambda c, t: c.intersection_update([2, 3, 4]),
    "drop": lambda c, t: c.difference_update([2, 3], (4,)),
    "toggle": lambda c, t: c.symmetric_difference_update({2, 50}),
    "or": lambda c, t: c | {4, 100},
    "ror": lambda c, t: {4, 100} | c,
    "and": lambda c, t: c & {2, 3, 5},
    "minus": lambda c, t: c - {2},
    "xor": lambda c, t: c ^ {2, 77},
    "union": lambda c, t: c.union([60, 7], "ab"),
    "intersection": lambda c, t: c.intersection([3, 2]),
    "difference": lambda c, t: c.difference([3], {9: 1}),
    "compare": lambda c, t: (c == {1, 2, 3}, c <= {1, 2, 3, 4}, c > {2}, c != frozenset((1,))),
    "tests": lambda c, t: (c.isdisjoint([5]), c.issubset([1, 2, 3]), c.issuperset([2])),
    "copy": lambda c, t: c.copy(),
    "copied": lambda c, t: copy.copy(c),
    "sorted": lambda c, t: sorted(c),
    "frozen": lambda c, t: frozenset(c),
    "max": lambda c, t: max(c, default=0),
    "unpack": lambda c, t: {*c, 9},
    "itself": lambda c, t: c,
    "nested": lambda c, t: {"it": (c, c)},
    "grow while walked": _set_and_walk,
}
OPERATIONS["frozenset"] = {
    name: operation
    for name, operation in OPERATIONS["set"].items()
    if name not in ("add", "add again", "seen before", "discard", "remove", "pop", "clear", "less",
                    "update", "update from a dict", "keep", "drop", "toggle", "grow while walked")
}  # fmt: skip
OPERATIONS["dict"] = {
    "len": lambda c, t: len(c),
    "truth": lambda c, t: bool(c),
    "walk": lambda c, t: list(c),
    "values": lambda c, t: sum(c.values()) * t,
    "items": lambda c, t: [(k, v) for k, v in c.items()],
    "has": lambda c, t: ("2" in c, "no" in c, 3 in c),
    "get": lambda c, t: (c.get("2"), c.get("no", 5)),
    "read": lambda c, t: t * c["2"],
    "missing": lambda c, t: c["missing"],
    "set": lambda c, t: _assign(c, "2", 11),
    "set new": lambda c, t: _assign(c, "new", len(c)),
    "add": lambda c, t: _assign(c, "2", c["2"] + 1),
    "delete": lambda c, t: _delete(c, "2"),
    "delete and set": lambda c, t: (_delete(c, "2"), _assign(c, "2", 4)),
    "come and go": lambda c, t: (_assign(c, "2", iter([1])), c.pop("2"))[0],
    "come, go, come": lambda c, t: (
        _delete(c, "2"),
        _assign(c, "2", 5),
        _delete(c, "2"),
        "2" in c,
        len(c),
        c.get("2"),
    ),
    "pop": lambda c, t: c.pop("2"),
    "pop perhaps": lambda c, t: (c.pop("1", None), c.pop("no", 4)),
    "pop item": lambda c, t: c.popitem(),
    "set default": lambda c, t: (c.setdefault("2", 5), c.setdefault("late", 6)),
    "update": lambda c, t: c.update({"2": 20, "u": 1}, v=2),
    "update by pairs": lambda c, t: c.update([("2", 21), ("w", 1)]),
    "in place": lambda c, t: _or_in_place(c, {"3": 5, "z": 6}),
    "clear": lambda c, t: c.clear(),
    "clear and set": lambda c, t: (c.clear(), _assign(c, "2", 3))[0],
    "copy": lambda c, t: c.copy(),
    "reversed": lambda c, t: list(reversed(c)),
    "equal": lambda c, t: (c == {"1": 1, "2": 2}, c != {"2": 2}),
    "unpack": lambda c, t: {**c, "x": 1},
    "sorted": lambda c, t: sorted(c),
    "key views": lambda c, t: sorted(c.keys() & {"2", "3"}),
    "itself": lambda c, t: c,
    "nested": lambda c, t: {"it": (c, c)},
    "drop while walked": _walk_and_drop,
}
OPERATIONS["ordered"] = {
    **OPERATIONS["dict"],
    "to the end": lambda c, t: c.move_to_end("1"),
    "to the start": lambda c, t: c.move_to_end("2", last=False),
    "pop first": lambda c, t: c.popitem(last=False),
}
OPERATIONS["vars"] = {
    name: (lambda c, t, operation=operation: operation(vars(c), t))
    for name, operation in OPERATIONS["dict"].items()
    if name not in ("itself", "nested")
} | {
    "attribute": lambda c, t: (getattr(c, "2", 0), vars(c).get("2")),
    "set attribute": lambda c, t: (setattr(c, "2", 8), vars(c)["2"]),
    "delete attribute": lambda c, t: (delattr(c, "2"), "2" in vars(c)),
    "same": lambda c, t: vars(c) is c.__dict__,
}  # fmt: skip
KINDS: dict[str, tuple[str, Callable[[list[int]], Any]]] = {
    "list": ("list", list),
    "deque": ("deque", collections.deque),
    "set": ("set", set),
    "set that shrank": ("set", lambda items: _shrunk(set(range(40, 80)), items)),
    "set of words": ("set", lambda items: {str(item) * 3 for item in items}),
    "frozenset": ("frozenset", frozenset),
    "dict": ("dict", _table_of(dict)),
    "ordered dict": ("ordered", _table_of(collections.OrderedDict)),
    "defaultdict": ("dict", lambda items: collections.defaultdict(int, _table_of(dict)(items))),
    "dict of the user's": ("dict", _table_of(Table)),
    "vars": ("vars", lambda items: _bag(**_table_of(dict)(items))),
    "bounded deque": ("deque", lambda items: collections.deque(items, 3)),
}
CONTENTS = ([1, 2, 3], [1, 2, 3], [2, 9], [], [1, 2, 3, 4], [3, 2, 1], [2])
HELD: Any = None


class Raised(NamedTuple):
    kind: type
    text: str


def _between(how: str) -> None:
    if how == "break":
        jitmagic.graph_break()
    elif how == "exception":
        try:
            raise KeyError("between")
        except KeyError:
            pass


def _program(way: str, operations: list[Operation], how: str, make: Any) -> Callable[..., Any]:
    """A function of a tensor and of what leads to the container."""

    def perform(t, one, other):
        seen = []
        for number, operation in enumerate(operations):
            seen.append(operation(other if number % 2 else one, t))
            if how != "nothing":
                _between(how)
        return seen, t + len(seen)

    def argument(t, c):
        return perform(t, c, c)

    def twice(t, c, d):
        return perform(t, c, d)

    def from_global(t, c):
        return perform(t, HELD, HELD)

    def attribute(t, holder):
        return perform(t, holder.c, holder.c)

    def nested(t, outer):
        return perform(t, outer[0]["in"], outer[0]["in"])

    def made_here(t, items):
        c = make(items)
        return perform(t, c, c), c

    return {"argument": argument, "twice": twice, "global": from_global, "attribute": attribute,
            "nested": nested, "made here": made_here}[way]  # fmt: skip


def _arguments(way: str, container: Any, contents: list[int]) -> tuple[Any, ...]:
    match way:
        case "twice":
            return container, container
        case "attribute":
            return (types.SimpleNamespace(c=container),)
        case "nested":
            return ([{"in": container}],)
        case "made here":
            return (list(contents),)
    return (container,)


def _outcome(run: Callable[..., Any], way: str, container: Any, contents: list[int]) -> Any:
    """What a call gives or raises, which of it is the container, and what that holds then."""
    global HELD
    HELD = container
    try:
        result = _plain(run(torch.ones(2), *_arguments(way, container, contents)), container)
    except Exception as error:
        result = Raised(type(error), str(error))
    return result, _plain(container, None)


def _plain(value: Any, container: Any) -> Any:
    if value is container and container is not None:
        return "the container"
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return type(value), [(key, _plain(one, container)) for key, one in value.items()]
    if isinstance(value, list | tuple | set | frozenset | collections.deque):
        kept = getattr(value, "maxlen", None)
        return type(value), kept, [_plain(one, container) for one in value]
    if isinstance(value, Bag):
        return _plain(vars(value), container)
    return value


pytestmark = pytest.mark.filterwarnings("ignore::jitmagic.errors.RecompileWarning")
WAYS = ("argument", "global", "attribute", "nested", "twice", "made here")
CASES = [(kind, seed) for kind in KINDS for seed in range(40)]


@pytest.mark.parametrize(("kind", "seed"), CASES)
def test_as_in_eager(kind: str, seed: int) -> None:
    draw = random.Random(f"{kind} {seed}")
    family, make = KINDS[kind]
    names = draw.choices(sorted(OPERATIONS[family]), k=draw.randint(1, 4))
    way, how = draw.choice(WAYS), draw.choice(("nothing", "nothing", "break", "exception"))
    function = _program(way, [OPERATIONS[family][name] for name in names], how, make)
    run = jitmagic.jit(function, backend="eager")
    for contents in (CONTENTS[0], *draw.choices(CONTENTS, k=4)):
        wanted = _outcome(function, way, make(contents), contents)
        assert _outcome(run, way, make(contents), contents) == wanted, (way, how, names, contents)


FOLLOWED = [(kind, name) for kind in KINDS for name in OPERATIONS[KINDS[kind][0]]]


@pytest.mark.parametrize(("kind", "name"), FOLLOWED)
def test_each_operation_of_a_live_container_is_traced(kind: str, name: str) -> None:
    family, make = KINDS[kind]
    if (kind, name) in LEFT_TO_PYTHON:
        pytest.skip("left to Python")
    function = _program("argument", [OPERATIONS[family][name]], "nothing", make)
    run = jitmagic.jit(function, backend="eager")
    for contents in ([1, 2], [1, 2]):
        wanted = _outcome(function, "argument", make(contents), contents)
        assert _outcome(run, "argument", make(contents), contents) == wanted
    assert isinstance(wanted[0], Raised) or counts_of(run).breaks + len(eager_of(run)) == 0


@pytest.mark.parametrize("kind", ["set", "set of words", "frozenset", "dict", "list", "vars"])
def test_loops_interrupted_by_a_break(kind: str) -> None:
    make = KINDS[kind][1]

    def function(t, c):
        seen = []
        for one in vars(c) if isinstance(c, Bag) else c:
            t = t * 1.5
            if not seen:
                jitmagic.graph_break()
            seen.append(one)
        return t, seen

    run = jitmagic.jit(function, backend="eager")
    for contents in ([3, 1, 2], [3, 1, 2], [3, 1, 2, 5], [1], [], [2, 9, 4]):
        container = make(contents)
        wanted = _outcome(function, "argument", container, contents)
        assert _outcome(run, "argument", container, contents) == wanted
        assert contents != [3, 1, 2] or counts_of(run).breaks == 1


NAMES = """
def program(t):
    table = globals()
    table["a"] = 5
    first = a, "a" in table, "b" in globals()
    globals().update(b=t, c=3)
    second = b * c
    table.setdefault("c", 9)
    table.setdefault("d", 9)
    taken = table.pop("a"), table.get("a", "none")
    del table["kept"]
    try:
        kept
    except NameError:
        taken = *taken, "gone"
    how()
    globals()["kept"] = d + c
    return second, first, taken, kept, table is globals(), t * other
"""


@pytest.mark.parametrize("how", ["nothing", "break", "exception"])
def test_names_of_a_module_as_a_dictionary(how: str) -> None:
    results = []
    for tag in (lambda f: f, lambda f: jitmagic.jit(f, backend="eager")):
        space: dict[str, Any] = {"kept": 1, "other": 2.0, "how": lambda: _between(how)}
        exec(NAMES, space)
        run = tag(space["program"])
        for other in (2.0, 2.0, 3.0):
            space["other"] = other
            results.append(_plain(run(torch.ones(2)), None))
            names = [name for name in space if len(name) < 6 and name != "how"]
            results.append([(name, str(space[name])) for name in names])
    assert results[: len(results) // 2] == results[len(results) // 2 :]


def test_mappingproxy_reads_current_entries() -> None:
    table: dict[str, Any] = {"a": 2.0, "b": 3.0}
    proxy = types.MappingProxyType(table)

    def function(t: Any) -> Any:
        return t * proxy["a"] + sum(proxy.values()), list(proxy), "c" in proxy, proxy.get("c")

    run = jitmagic.jit(function, backend="eager", fullgraph=True)
    for change in ({}, {}, {"c": 1.0}, {"a": 5.0}):
        table.update(change)
        assert str(run(torch.ones(2))) == str(function(torch.ones(2)))


def test_one_key_of_a_large_table_is_one_guard() -> None:
    table = {str(number): number for number in range(1000)}
    seen = set(range(1000))
    last = collections.deque(range(1000))

    def function(t, table, seen, last):
        table["fresh"] = 1
        seen.add(5000)
        last.append(t.sum())
        return t * table["7"], "no" in table, 3 in seen, 5000 in seen

    run = jitmagic.jit(function, backend="eager", fullgraph=True)
    for number in range(4):
        table[f"more {number}"] = number
        seen.add(-number)
        last.popleft()
        wanted = torch.ones(2) * 7, False, True, True
        torch.testing.assert_close(run(torch.ones(2), table, seen, last), wanted)
    assert counts_of(run).graphs == 1
    assert (table["fresh"], 5000 in seen, last[-1].item(), len(last)) == (1, True, 2.0, 1000)


LEFT_TO_PYTHON = {("vars", "come, go, come")}  # an attribute that was deleted and set again is last
