"""A dictionary with several names is one: what is written under one is read under all."""

from __future__ import annotations

import collections
import copy
import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import jitmagic

from .mutation import plainly
from .of_dictionaries import Counter, Counting, Other, Registered

Calls = Callable[[Any], Any]
Made = tuple[Calls, Callable[[], Any]]  # the program, and what is left of its state
PROGRAMS: dict[str, Callable[[], Made]] = {}
X = torch.linspace(0.25, 1.5, 3)


def program(make: Callable[[], Made]) -> Callable[[], Made]:
    PROGRAMS[make.__name__] = make
    return make


@program
def shallow_copy_counts_a_buffer() -> Made:
    module = Counting()
    twin = copy.copy(module)
    state = lambda: (module.count, twin.count, module.calls, twin.calls)  # noqa: E731
    return lambda x: module(x) + 10 * twin(x) + 100 * module(x), state


@program
def parameters_are_shared() -> Made:
    module, twin = nn.Linear(3, 3), nn.Linear(3, 3)
    twin._parameters = module._parameters

    def run(x: Any) -> Any:
        module.weight = nn.Parameter(module.weight.detach() + 1)
        return twin(x), [name for name, _ in twin.named_parameters()]

    return run, lambda: twin.weight.detach() is module.weight.detach()


@program
def two_objects_with_one_dict() -> Made:
    first, second = Counter(), Other()
    second.__dict__ = first.__dict__

    def run(x: Any) -> Any:
        first.count += 1
        second.count += 10
        first.count += 100
        second.more = first.count
        return x * first.count + second.count + first.more

    return run, lambda: dict(vars(first))


@program
def slots_beside_a_dict() -> Made:
    class Slotted(Counter):
        __slots__ = ("empty", "slot")

    owner = Slotted()
    owner.slot = 5

    def run(x: Any) -> Any:
        owner.slot += 1
        owner.empty = owner.slot  # type: ignore[attr-defined]
        vars(owner)["count"] += owner.empty
        return x * owner.count, list(vars(owner))

    return run, lambda: (owner.slot, owner.count)


@program
def names_come_and_go() -> Made:
    first, second = Counter(), Counter()
    second.__dict__ = first.__dict__

    def run(x: Any) -> Any:
        first.extra = 1
        del second.extra
        there = hasattr(first, "extra")
        second.late, first.count = 2, 3
        return x, there, list(vars(first)), len(second.__dict__)

    return run, lambda: list(vars(first).items())


@program
def dict_of_an_instance() -> Made:
    owner = Counter()
    table = owner.__dict__

    def run(x: Any) -> Any:
        owner.count += 1
        table["count"] += 10
        vars(owner)["count"] += 100
        table["more"] = owner.count
        return x * owner.count + owner.more, list(table), table.get("none", 1)

    return run, lambda: list(table.items())


@program
def methods_of_the_dict() -> Made:
    owner = Counter()

    def run(x: Any) -> Any:
        table = owner.__dict__
        table.update(count=owner.count + 1, late=2)
        popped = table.pop("late"), table.pop("none", 3), table.setdefault("more", owner.count)
        count = owner.count
        table.clear()
        owner.count = count + 1
        return x * owner.count, popped, hasattr(owner, "more"), list(table.items())

    return run, lambda: dict(vars(owner))


@program
def cached_property_of_a_shared_dict() -> Made:
    class Cached(Counter):
        @functools.cached_property
        def doubled(self) -> int:
            return self.count * 2

    first, second = Cached(), Cached()
    second.__dict__ = first.__dict__

    def run(x: Any) -> Any:
        first.count += 1
        return x * first.doubled + second.doubled, "doubled" in vars(second)

    return run, lambda: dict(vars(second))


@program
def attributes_of_an_ordered_dict() -> Made:
    owner: Any = collections.OrderedDict(key=1)
    owner.count = 0
    table = vars(owner)

    def run(x: Any) -> Any:
        owner.count += 1
        owner["key"] += 1
        return x * owner.count + table["count"] + owner["key"]

    return run, lambda: dict(table)


@program
def attribute_becomes_a_parameter() -> Made:
    module: Any = nn.Linear(3, 3)
    module.late = None
    twin = copy.copy(module)

    def run(x: Any) -> Any:
        if module.late is None:
            module.late = nn.Parameter(torch.full((3,), 2.0))
        return x * module.late, "late" in module.__dict__, twin._parameters["late"] is module.late

    return run, lambda: [name for name, _ in twin.named_parameters()]


@program
def graph_breaks_between_the_writes() -> Made:
    first, second = Counter(), Counter()
    second.__dict__ = first.__dict__
    module = Counting()
    twin = copy.copy(module)

    def run(x: Any) -> Any:
        first.count += 1
        module.count = module.count + 1
        jitmagic.graph_break()
        second.count += 10
        twin.count = twin.count + 10
        y = x * first.count + module.count
        jitmagic.graph_break()
        second.count += 100
        return y + first.count + twin.count

    return run, lambda: (first.count, module.count)


@program
def dict_of_a_property_class() -> Made:
    class Hiding:
        count = property(lambda self: vars(self)["count"] + 1000)

    owner = Hiding()
    vars(owner)["count"] = 0

    def run(x: Any) -> Any:
        vars(owner)["count"] += 1
        return x * owner.count

    return run, lambda: dict(vars(owner))


@program
def dict_of_a_new_object() -> Made:
    kept: list[Any] = []

    def run(x: Any) -> Any:
        made = Counter()
        table = vars(made)
        table["count"] += 5
        made.more = 7
        kept.append(made)
        return x * made.count + table["more"], list(table)

    return run, lambda: [list(vars(one).items()) for one in kept]


@program
def tables_of_a_module() -> Made:
    module = Counting()
    table = module._buffers

    def run(x: Any) -> Any:
        module.count = module.count + 1
        table["count"] = table["count"] + 10
        module._buffers["more"] = module.count + 100
        return x * module.count + module.more, list(table), list(module.state_dict())

    return run, lambda: list(table.values())


def _writes_in_module(write: Callable[[Any, str], None], name: str) -> Callable[[], Made]:
    def make() -> Made:
        module: Any = Registered()

        def run(x: Any) -> Any:
            before = getattr(module, name)
            write(module, name)
            hidden = getattr(module, name) * x
            del module.__dict__[name]
            return hidden, getattr(module, name) is before

        return run, lambda: [sorted(part) for part in (module._buffers, module._modules)]

    return make


for _name in ("sub", "weight", "shift"):
    PROGRAMS[f"entry_over_{_name}"] = _writes_in_module(
        lambda module, name: object.__setattr__(module, name, torch.ones(3)), _name
    )
    PROGRAMS[f"item_over_{_name}"] = _writes_in_module(
        lambda module, name: module.__dict__.__setitem__(name, 3.0), _name
    )


@program
def dict_of_a_function() -> Made:
    def holder() -> None: ...

    holder.count = 0  # type: ignore[attr-defined]
    table = holder.__dict__

    def run(x: Any) -> Any:
        holder.count += 1
        table["count"] += 10
        holder.__dict__["count"] += 100
        vars(holder)["more"] = holder.count
        return x * table["count"] + holder.more, list(table)

    return run, lambda: dict(table)


@program
def names_of_a_class() -> Made:
    class Config:
        count = 0

    table = vars(Config)

    def run(x: Any) -> Any:
        seen = table.get("more", 5), table["count"]
        Config.count += seen[0]
        Config.more = table["count"] + 10  # type: ignore[attr-defined]
        return x * table["count"] + vars(Config)["more"], Config.__dict__.get("none", 7)

    return run, lambda: (Config.count, "more" in table)


@program
def attributes_of_a_new_function() -> Made:
    kept: list[Any] = []

    def run(x: Any) -> Any:
        def made(y: Any) -> Any:
            return y * made.count  # type: ignore[attr-defined]

        made.count = 2  # type: ignore[attr-defined]
        table = made.__dict__
        table["count"] += 1
        vars(made)["more"] = 4
        kept.append((made, table))
        return made(x), list(table), made.more, table is made.__dict__  # type: ignore[attr-defined]

    return run, lambda: [(vars(one), vars(one) is table, one(2)) for one, table in kept]


@program
def attributes_of_a_wrapper() -> Made:
    def inner(x: Any) -> Any:
        """Multiply."""
        return x * 2

    inner.count = 3  # type: ignore[attr-defined]

    def run(x: Any) -> Any:
        @functools.wraps(inner)
        def outer(y: Any) -> Any:
            return inner(y) + outer.count  # type: ignore[attr-defined]

        outer.__dict__["count"] += 1
        return outer(x), outer.__name__, outer.__doc__, list(vars(outer))

    return run, lambda: inner.count  # type: ignore[attr-defined]


@program
def attributes_of_a_partial() -> Made:
    live: Any = functools.partial(torch.add)
    live.count = 1
    table = vars(live)

    def run(x: Any) -> Any:
        live.count += 1
        table["count"] += 10
        made: Any = functools.partial(live, x)
        made.count = live.count
        made.__dict__["more"] = 2
        return made(made.more) * live.count, list(table), vars(made)

    return run, lambda: live.count


@program
def attributes_of_a_new_ordered_dict() -> Made:
    kept: list[Any] = []

    def run(x: Any) -> Any:
        made: Any = collections.OrderedDict(key=1)
        made.count = 3
        made.__dict__["count"] += made["key"]
        kept.append(made)
        return x * made.count, vars(made)

    return run, lambda: [(list(one.items()), vars(one)) for one in kept]


@program
def attributes_of_an_exception() -> Made:
    kept: list[Any] = []

    def run(x: Any) -> Any:
        made: Any = ValueError("text")
        made.count = 3
        made.__dict__["count"] += 1
        vars(made)["more"] = 2
        kept.append(made)
        return x * made.count * made.more, list(made.__dict__)

    return run, lambda: [(one.args, vars(one)) for one in kept]


@program
def entries_come_and_go_in_a_new_object() -> Made:
    class Slotted:
        __slots__ = ("__dict__", "slot")

    kept: list[Any] = []

    def run(x: Any) -> Any:
        made: Any = Slotted()
        table = made.__dict__
        table["last"], made.slot, made.first = 1, 2, 3
        made.__dict__.update(late=4)
        del made.last
        table.pop("first")
        made.first = 9
        made.__dict__ |= {"more": made.slot}
        kept.append(table)  # the object itself is not alive later
        return x * made.late, list(table.items()), made.__dict__ is table, len(vars(made))

    return run, lambda: kept


# What is not modelled: a graph break, and the right result.


@program
def dict_of_the_thread() -> Made:
    local = threading.local()
    local.count = 0
    table = local.__dict__

    def run(x: Any) -> Any:
        local.count += 1
        table["count"] += 10
        local.__dict__["count"] += 100
        return x * table["count"] + local.count

    return run, lambda: local.count


_BROKEN = ("graph_breaks_between_the_writes", "dict_of_the_thread")


def run_program(make: Callable[[], Made], tag: Callable[[Calls], Calls]) -> Any:
    """Return what three calls return, and the state after each."""
    torch.manual_seed(0)
    run, state = make()
    tagged = tag(run)
    return [(plainly(tagged(X)), plainly(state())) for _ in range(3)]


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_writes_are_seen_under_all_names(name: str, backend: str) -> None:
    whole = name not in _BROKEN
    tag = jitmagic.jit(backend=backend, fullgraph=whole)
    assert run_program(PROGRAMS[name], tag) == run_program(PROGRAMS[name], lambda run: run)
