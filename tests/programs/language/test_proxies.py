"""Objects that answer themselves what class they are and what they have, as proxies and mocks do.

Compared with eager: values, what is raised, and every attribute that the object was asked for: what
compiles a function looks at objects without running code of theirs.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import jitmagic

Program = Callable[[Tensor], Any]
X = torch.arange(1.0, 4)


class Asked:
    """Keeps what it was asked for."""

    def __init__(self) -> None:
        object.__setattr__(self, "asked", [])
        object.__setattr__(self, "a", 2.0)

    def __getattribute__(self, name: str) -> Any:
        object.__getattribute__(self, "asked").append(name)
        return object.__getattribute__(self, name)


class Unbound:
    """Has nothing but `a` until it is bound."""

    def __init__(self) -> None:
        self.a = 2.0

    def __getattribute__(self, name: str) -> Any:
        if name == "a":
            return object.__getattribute__(self, name)
        raise RuntimeError(f"unbound: {name}")


class Unclassed:
    a = 2.0

    @property
    def __class__(self) -> Any:
        raise RuntimeError("unbound")


def says_that_it_is(kind: type) -> type:
    class Disguised:
        a = 2.0
        __class__ = property(lambda self: kind)

        def __call__(self, x: Tensor) -> Tensor:
            return x * 3

    return Disguised


OBJECTS: dict[str, Callable[[], Any]] = {
    "asked": Asked,
    "unbound": Unbound,
    "unclassed": Unclassed,
    **{
        kind.__name__: says_that_it_is(kind)
        for kind in (dict, list, float, type, Tensor, nn.Module, types.FunctionType)
    },
    "mock": lambda: mock.MagicMock(a=2.0),
    "mock of a layer": lambda: mock.Mock(spec=nn.Linear, a=2.0),
}
PROGRAMS: dict[str, Callable[[Any], Program]] = {
    "attribute": lambda o: lambda x: x * o.a,
    "argument": lambda o: lambda x, p=o: x * p.a,
    "identity": lambda o: lambda x: x * 2 if o is not None else x * 3,
    "truth": lambda o: lambda x: x * 2 if o else x * 3,
    "isinstance": lambda o: lambda x: x * 2 if isinstance(o, dict | Tensor | type) else x * 3,
    "isinstance of its type": lambda o: lambda x, kind=type(o): x * (1 + isinstance(o, kind)),
    "held": lambda o: lambda x, held={"k": [o]}: x * len(held["k"]),
    "returned": lambda o: lambda x: (x * 2, o),
    "type": lambda o: lambda x: x * len(type(o).__name__),
}


def seen(make: Callable[[], Any], build: Callable[[Any], Program], wrap: Any) -> list[Any]:
    """Of three calls, the last after the attribute was set: values, what was raised and asked."""
    owner = make()
    fn, results = wrap(build(owner)), []
    for value in (None, None, 7.0):
        if value is not None and not isinstance(vars(type(owner)).get("a"), float):
            object.__setattr__(owner, "a", value)
        try:
            result = fn(X)
            results.append(result[0] if type(result) is tuple else result)
        except (RuntimeError, TypeError) as error:
            results.append(f"{type(error).__name__}: {error}")
    asked = object.__getattribute__(owner, "asked") if type(owner) is Asked else []
    return [*(part.tolist() if type(part) is Tensor else part for part in results), list(asked)]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("name", OBJECTS)
def test_proxy_receives_the_same_calls_as_in_eager(name: str, program: str) -> None:
    make, build = OBJECTS[name], PROGRAMS[program]
    eager = seen(make, build, lambda fn: fn)
    assert seen(make, build, lambda fn: jitmagic.jit(fn, backend="eager")) == eager


def test_module_getattr_runs_as_in_eager() -> None:
    """Why a call missed is told in words, which name the module."""
    asked: list[str] = []
    module = types.ModuleType("answering")
    module.__dict__["table"] = {"a": 2.0}

    def answer(name: str) -> float:
        asked.append(name)
        return module.__dict__["table"][name]

    module.__dict__["__getattr__"] = answer
    fn = jitmagic.jit(lambda x: x * module.a, backend="eager")
    for value in (2.0, 5.0, 7.0):
        module.__dict__["table"]["a"] = value
        assert torch.equal(fn(X), X * value)
    other = types.ModuleType("answering")
    holder = types.SimpleNamespace(module=module)
    fn = jitmagic.jit(lambda x: x * 2 if holder.module is not None else x, backend="eager")
    for held in (module, other, module):
        holder.module = held
        assert torch.equal(fn(X), X * 2)
    assert set(asked) <= {"a"}
