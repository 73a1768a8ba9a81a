"""What a tagged function read and somebody changed between its calls: each scenario
answers with all it saw, plainly and compiled.
"""

# ruff: noqa: B018
from __future__ import annotations

import types
from typing import Any

import torch

from ..scenarios import Tag, collection, seen, x3

scenario, test_as_plain = collection(recompile_limit=32)  # of many kinds each


@scenario
def classes_of_modules_change(tag: Tag) -> list[Any]:
    class Layer(torch.nn.Identity):
        pass

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = Layer()

        def forward(self, t):
            t = t + 1 if self else t - 1
            t = self.helper(t) if hasattr(self, "helper") else t
            return self.layer(t), getattr(self, "scale", 1), self == self

    model = Model()

    @tag
    def f(t):
        return model(t)

    results = [seen(f, x3())]
    for owner, name, value in (
        (Layer, "forward", lambda self, t: t * 100),
        (Layer, "__call__", lambda self, t: t * 1000),
        (Model, "__bool__", lambda self: False),
        (Model, "__len__", lambda self: 0),
        (Model, "scale", 5),
        (Model, "helper", lambda self, t: t * 7),
        (Model, "__eq__", lambda self, other: False),
    ):
        setattr(owner, name, value)
        results.append(seen(f, x3()))
        delattr(owner, name)
        results.append(seen(f, x3()))
        if name == "__eq__":
            owner.__hash__ = torch.nn.Module.__hash__
    return results


@scenario
def lengths_that_are_none(tag: Tag) -> list[Any]:
    class Thing:
        def __init__(self, length):
            self.length = length

        def __len__(self):
            return self.length

    @tag
    def f(thing, t):
        return len(thing), t + 1

    return [seen(f, Thing(length), x3()) for length in (1, 2.5, -1, True, "a") * 2]


@scenario
def what_was_there_is_gone(tag: Tag) -> list[Any]:
    """That a name leads anywhere is all that these ask."""

    class Thing:
        pass

    class Slotted:
        __slots__ = ("there",)

    class Defaulted:
        there = 0

    def function() -> None: ...

    box = 1

    @tag
    def asked(o, t):
        return t + 1 if hasattr(o, "there") else t

    @tag
    def tried(o, t):
        try:
            unused = o.there  # noqa: F841
        except AttributeError:
            return t * 5
        return t

    @tag
    def named(t):
        try:
            NAME_THAT_GOES  # noqa: F821
        except NameError:
            return t * 5
        return t

    @tag
    def enclosed(t):
        box  # noqa: F821 - deleted below
        return t

    owners = [Thing(), Slotted(), torch.nn.Module(), types.ModuleType("space"), x3(), function]
    results = []
    for owner in (*owners, Defaulted):
        asked_of = Defaulted() if owner is Defaulted else owner
        owner.there = 1
        results += [seen(asked, asked_of, x3()), seen(tried, asked_of, x3())]
        del owner.there
        results += [seen(asked, asked_of, x3()), seen(tried, asked_of, x3())]
    globals()["NAME_THAT_GOES"] = 1
    results += [seen(named, x3()), seen(enclosed, x3())]
    del box, globals()["NAME_THAT_GOES"]
    return [*results, seen(named, x3()), seen(enclosed, x3())]


@scenario
def dictionaries_that_a_loop_changes(tag: Tag) -> list[Any]:
    def moves_to_the_end(d, t):
        for k in d:
            v = d.pop(k)
            d[k] = v + 1
            t = t * v
        return t

    def moves_another(d, t):
        for k in d:
            print(end="")
            if k == "a":
                d["b"] = d.pop("b") * 3
            t = t * d[k]
        return t

    def goes_on_behind_a_break(d, t):
        keys = iter(d)
        first = next(keys)
        d[first] = d.pop(first) + t.sum().item()
        return t + len(d), list(d), first

    results = []
    for loop in (moves_to_the_end, moves_another, goes_on_behind_a_break):
        table = {"a": 2, "b": 3, "c": 5}
        results += [seen(tag(loop), table, x3()), list(table.items())]
    return results
