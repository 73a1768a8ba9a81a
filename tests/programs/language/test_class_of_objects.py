"""`x.__class__` is a question about every kind of object, answered as `type(x)` is."""

from __future__ import annotations

import collections
import enum
import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import jitmagic

from ..counts import counts_of


class Colour(enum.Enum):
    RED = 1


class Plain:
    def method(self) -> None: ...


class Disguised:
    """As mocks and proxies do."""

    @property
    def __class__(self) -> Any:
        return dict


class Point(collections.namedtuple("Point", "x y")):
    pass


LIVE = Plain()
DISGUISED = Disguised()
LAYER = nn.Linear(2, 2)

OBJECTS: dict[str, Callable[[Tensor], Any]] = {
    "int": lambda x: 3,
    "bool": lambda x: True,
    "None": lambda x: None,
    "list": lambda x: [x],
    "dict": lambda x: {"a": x},
    "ordered dict": lambda x: collections.OrderedDict(a=x),
    "set": lambda x: {1},
    "tuple": lambda x: (x,),
    "named tuple": lambda x: Point(x, 1),
    "size": lambda x: x.shape,
    "slice": lambda x: slice(1),
    "deque": lambda x: collections.deque([x]),
    "dtype": lambda x: x.dtype,
    "tensor": lambda x: x * 2,
    "parameter": lambda x: LAYER.weight,
    "array": lambda x: np.arange(3),
    "number of an array": lambda x: np.float32(3),
    "function": lambda x: test_class_attribute_is_the_type,
    "function made here": lambda x: lambda: x,
    "method": lambda x: x.sum,
    "method of an object": lambda x: LIVE.method,
    "partial": lambda x: functools.partial(torch.add, x),
    "zip": lambda x: zip([1], [2], strict=True),
    "chain": lambda x: itertools.chain([1], [x]),
    "module of Python": lambda x: torch,
    "layer": lambda x: LAYER,
    "object": lambda x: LIVE,
    "object made here": lambda x: Plain(),
    "class": lambda x: Plain,
    "member": lambda x: Colour.RED,
    "exception": lambda x: KeyError("a"),
    "no_grad": lambda x: torch.no_grad(),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_class_attribute_is_the_type(name: str) -> None:
    make = OBJECTS[name]

    def fn(x: Tensor) -> Any:
        found = make(x)
        kind = found.__class__
        return x + len(kind.__name__), kind is type(found), getattr(found, "__class__", 0) is kind

    compiled = jitmagic.jit(fn, fullgraph=True)
    for x in (torch.arange(3.0), torch.tensor([float("nan"), -0.0])):
        assert repr(compiled(x)) == repr(fn(x))


def test_overridden_class_attribute_is_called() -> None:
    def fn(x: Tensor) -> Any:
        return x + 1, DISGUISED.__class__ is dict

    compiled = jitmagic.jit(fn)
    assert compiled(torch.ones(2))[1] is True
    assert compiled(torch.ones(2))[1] is True


def test_call_of_the_class_attribute() -> None:
    def fn(x: Tensor) -> Any:
        with torch.no_grad().__class__():
            y = x * 2
        with type(torch.enable_grad())():
            made = LIVE.__class__().__class__ is Plain, [x].__class__((x, y))[1]
            return x * y, *made

    compiled = jitmagic.jit(fn, fullgraph=True)
    x = torch.ones(2, requires_grad=True)
    found, wanted = compiled(x), fn(x)
    assert torch.equal(found[0], wanted[0])
    assert repr(found[1:]) == repr(wanted[1:])
    assert torch.equal(*(torch.autograd.grad(one[0].sum(), x)[0] for one in (found, wanted)))


def test_exception_reraised_through_its_class() -> None:
    def inner(x: Tensor) -> Tensor:
        try:
            raise ValueError("a")
        except ValueError as error:
            raise error.__class__("b") from error

    def fn(x: Tensor) -> Any:
        try:
            return inner(x)
        except ValueError as error:
            return x + len(error.__class__.__name__)

    compiled = jitmagic.jit(fn, fullgraph=True)
    assert torch.equal(compiled(torch.ones(2)), fn(torch.ones(2)))
    assert counts_of(compiled).graphs == 1
