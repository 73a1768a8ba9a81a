"""A dictionary with several names is one: what is written under one is read under all."""

from __future__ import annotations

import copy
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
        Config.count += 1
        Config.more = table["count"] + 10  # type: ignore[attr-defined]
        return x * table["count"] + vars(Config)["more"], Config.__dict__.get("none", 7)

    return run, lambda: (Config.count, "more" in table)


# What is not modelled: a graph break, and the right result.


@program
def globals_by_two_names() -> Made:
    names: dict[str, Any] = {"count": 0}
    text = "def run(x):\n global count\n count += 1\n alias['count'] += 10\n return x * count"
    exec(text, names)
    names["alias"] = names
    return names["run"], lambda: names["count"]


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


_BROKEN = ("globals_by_two_names", "dict_of_the_thread")


def _run(name: str, tag: Callable[[Calls], Calls]) -> Any:
    torch.manual_seed(0)
    run, state = PROGRAMS[name]()
    tagged = tag(run)
    return [(plainly(tagged(X)), plainly(state())) for _ in range(3)]


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_writes_are_seen_under_all_names(name: str, backend: str) -> None:
    whole = name not in _BROKEN
    compiled = _run(name, lambda run: jitmagic.jit(run, backend=backend, fullgraph=whole))
    assert compiled == _run(name, lambda run: run)
