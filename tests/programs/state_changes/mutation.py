"""Mutations of state between two calls: how one is described and run.

A `Mutation` builds a program of one tensor and a change, a context manager that makes it when
entered and takes it back when left. `observe` calls the program before, during and after the
change, twice with one object and once with a function that was first called during it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

Program = Callable[[torch.Tensor], Any]
Change = Callable[[], AbstractContextManager[Any]]
Build = Callable[[], tuple[Program, Change]]
MUTATIONS: list[Mutation] = []


@dataclass(frozen=True)
class Mutation:
    """`build` makes the program and its change anew."""

    name: str
    build: Build

    def __str__(self) -> str:
        return self.name


def mutation(build: Build) -> Build:
    """Register a mutation under the name of its function."""
    add(build.__name__, build)
    return build


def add(name: str, build: Build) -> None:
    """Register one of a generated family."""
    MUTATIONS.append(Mutation(name, build))


NOTHING = object()


@contextlib.contextmanager
def put(owner: Any, name: str, value: Any) -> Iterator[None]:
    """`owner.name = value` for a while."""
    table = owner.__dict__ if hasattr(owner, "__dict__") else {name: getattr(owner, name)}
    old = table.get(name, NOTHING)
    setattr(owner, name, value)
    try:
        yield
    finally:
        delattr(owner, name) if old is NOTHING else setattr(owner, name, old)


@contextlib.contextmanager
def without(owner: Any, name: str) -> Iterator[None]:
    """`del owner.name` for a while."""
    old = owner.__dict__[name]
    delattr(owner, name)
    try:
        yield
    finally:
        setattr(owner, name, old)


@contextlib.contextmanager
def entry(table: MutableMapping[Any, Any], key: Any, value: Any) -> Iterator[None]:
    """`table[key] = value` for a while; the order of the keys comes back too."""
    old = dict(table)
    table[key] = value
    try:
        yield
    finally:
        table.clear()
        table.update(old)


@contextlib.contextmanager
def switched(change: Callable[[Any], Any], to: Any, back: Any) -> Iterator[None]:
    """`change(to)` for a while."""
    change(to)
    try:
        yield
    finally:
        change(back)


@contextlib.contextmanager
def both(do: Callable[[], Any], undo: Callable[[], Any]) -> Iterator[None]:
    """`do()`, and `undo()` at the end."""
    do()
    try:
        yield
    finally:
        undo()


def plainly(value: Any) -> Any:
    """What can be compared: tensors as dtype and numbers."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), str(value.detach().tolist())  # nan is nan
    if isinstance(value, tuple | list):
        return [plainly(item) for item in value]
    return value


def seen(program: Program) -> Any:
    """What a call gives, or the class of what it raises."""
    try:
        return plainly(program(torch.linspace(0.25, 1.5, 6).reshape(2, 3)))
    except Exception as error:
        return type(error)


def observe(made: Mutation, tag: Callable[[Program], Program]) -> list[Any]:
    """Before, during, after; then during, after, during of one called during it first."""
    torch.manual_seed(0)
    program, change = made.build()
    first = tag(program)
    results = [seen(first)]
    with change():
        results.append(seen(first))
    results.append(seen(first))
    second = tag(lambda x: program(x))
    with change():
        results.append(seen(second))
    results.append(seen(second))
    with change():
        results.append(seen(second))
    return results
