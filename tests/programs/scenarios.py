"""Scenarios: programs that change something between calls and answer with all that they saw.

Each builds everything anew, tags what it tags with the given function, and runs once with functions
left as they are and once with `jitmagic.jit`: the answers must be equal. Here are the registry, the
one test over it, and what scenarios are written with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitmagic

Tag = Callable[[Any], Any]
Scenario = Callable[[Tag], list[Any]]
Change = tuple[type, str, Any]


def collection(**options: Any) -> tuple[Callable[[Scenario], Scenario], Callable[..., None]]:
    """A decorator that collects a file's scenarios, and the test that runs them all."""
    found: list[Scenario] = []

    def scenario(made: Scenario) -> Scenario:
        found.append(made)
        return made

    @pytest.mark.parametrize("made", found, ids=lambda made: made.__name__)
    def test_as_plain(made: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("JITMAGIC_VERIFY", "1")
        assert made(jitmagic.jit(options=options)) == made(lambda fn: fn)

    return scenario, test_as_plain


def seen(fn: Callable[..., Any], *args: Any) -> Any:
    """What a call gives: tensors as lists, an exception as its type."""
    try:
        return plainly(fn(*args))
    except Exception as error:
        return type(error)


def plainly(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, tuple | list):
        return [plainly(item) for item in value]
    return value


def x3() -> torch.Tensor:
    return torch.arange(3.0) + 1


def through(ask: Any, *changes: Change) -> list[Any]:
    """What `ask()` answers before, during and after each change of a class."""
    results = [ask()]
    for owner, name, value in changes:
        old = vars(owner).get(name, owner)
        setattr(owner, name, value)
        results.append(ask())
        delattr(owner, name) if old is owner else setattr(owner, name, old)
        results.append(ask())
    return results


class Fixed:
    """A data descriptor; its class may lose what makes it one."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __get__(self, instance: object, owner: object = None) -> float:
        return self.value

    def __set__(self, instance: object, value: float) -> None:
        instance.__dict__["set"] = value


def two(self: object) -> float:
    return 2.0
