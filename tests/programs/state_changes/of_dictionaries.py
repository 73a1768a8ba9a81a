"""Dictionaries under several names: entries that hide registered names, and `__dict__`s and tables
that become shared between two calls.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from .mutation import Change, Program, add, switched


class Registered(nn.Module):
    """A submodule, a parameter and a buffer beside a parameter of the submodule."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.sub = nn.Linear(3, 3)
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x: Any) -> Any:
        return self.sub(x) * self.weight + self.shift


_WAYS: dict[str, Callable[[Any, str, Any], object]] = {
    "object.__setattr__": object.__setattr__,
    "__dict__ item": lambda owner, name, value: owner.__dict__.__setitem__(name, value),
    "update": lambda owner, name, value: owner.__dict__.update({name: value}),
    "vars": lambda owner, name, value: vars(owner).__setitem__(name, value),
}
_HIDING: dict[str, Callable[[], Any]] = {
    "sub": nn.Tanh,
    "weight": lambda: nn.Parameter(torch.full((3,), 2.0)),
    "shift": lambda: 0.5,
}


@contextlib.contextmanager
def _hidden(owner: Any, name: str, way: Callable[[Any, str, Any], object]) -> Iterator[None]:
    way(owner, name, _HIDING[name]())
    try:
        yield
    finally:
        del owner.__dict__[name]


def _hides(name: str, label: str, *, nested: bool) -> None:
    def build() -> tuple[Program, Change]:
        model: Any = Registered()
        owner = model
        if nested:
            model = nn.Sequential(model)
        return (lambda x: model(x)), lambda: _hidden(owner, name, _WAYS[label])

    add(f"entry over {name} by {label}{' in a container' * nested}", build)


for _name in _HIDING:
    for _label in _WAYS:
        _hides(_name, _label, nested=_label == "vars")


def _table_hides(earlier: str, name: str, value: Callable[[], Any]) -> None:
    """A table that is asked earlier gets the name."""

    def build() -> tuple[Program, Change]:
        model: Any = Registered()

        @contextlib.contextmanager
        def change() -> Iterator[None]:
            getattr(model, earlier)[name] = value()
            yield
            del getattr(model, earlier)[name]

        return (lambda x: model(x)), change

    add(f"{name} in {earlier} too", build)


_table_hides("_parameters", "shift", lambda: nn.Parameter(torch.zeros(3)))
_table_hides("_buffers", "sub", lambda: torch.tanh)


# ----------------------------------------------------------------------------------------- sharing


class Counter:
    def __init__(self) -> None:
        self.count = 0


class Other:
    def __init__(self) -> None:
        self.count = 0


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.calls = 0

    def forward(self, x: Any) -> Any:
        self.count = self.count + 1
        self.calls += 1
        return x * self.count + self.calls


def _both_count(first: Any, second: Any) -> Program:
    def program(x: Any) -> Any:
        first.count += 1
        second.count += 10
        return x * first.count + second.count

    return program


def _shares_dict(second: Callable[[], Any]) -> Callable[[], tuple[Program, Change]]:
    def build() -> tuple[Program, Change]:
        a, b = Counter(), second()
        change = lambda: switched(  # noqa: E731
            lambda table: setattr(b, "__dict__", table), a.__dict__, dict(b.__dict__)
        )
        return _both_count(a, b), change

    return build


add("__dict__ of another", _shares_dict(Counter))
add("__dict__ of another class's", _shares_dict(Other))


def _shares_table() -> tuple[Program, Change]:
    a, b = Counting(), Counting()
    change = lambda: switched(  # noqa: E731
        lambda table: setattr(b, "_buffers", table), a._buffers, dict(b._buffers)
    )
    return (lambda x: a(x) + 10 * b(x)), change


add("_buffers of another module", _shares_table)


def _becomes_a_copy() -> tuple[Program, Change]:
    a, box = Counting(), [Counting()]
    change = lambda: switched(  # noqa: E731
        lambda one: box.__setitem__(0, one), copy.copy(a), box[0]
    )
    return (lambda x: a(x) + 10 * box[0](x)), change


add("a shallow copy of the module", _becomes_a_copy)


def _alias_of(table: Callable[[Any], Any]) -> Callable[[], tuple[Program, Change]]:
    """A dictionary in a list that becomes that of an object."""

    def build() -> tuple[Program, Change]:
        owner, box = Counter(), [{"count": 0}]

        def program(x: Any) -> Any:
            owner.count += 1
            box[0]["count"] += 10
            return x * owner.count + box[0]["count"]

        return program, lambda: switched(
            lambda one: box.__setitem__(0, one), table(owner), {"count": 0}
        )

    return build


add("a dictionary becomes __dict__", _alias_of(vars))
