"""Tracers of torch see tagged code as plain Python, before and after its first compiled call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.fx.experimental.proxy_tensor import make_fx

import jitmagic


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x).relu()


@jitmagic.jit
def double(x, factor=2):
    return x * factor + 1


class Outer(nn.Module):
    """A module with a tagged submodule and a call of a tagged function."""

    def __init__(self):
        super().__init__()
        self.inner, self.last = jitmagic.jit(Inner()), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(double(self.inner(x)))


@jitmagic.jit
class TaggedClass(Inner):
    pass


MODULES = {
    "parts are tagged": Outer,
    "all is tagged": lambda: jitmagic.jit(Outer()),
    "its class is tagged": TaggedClass,
}
modules = pytest.mark.parametrize("name", MODULES)
warm = pytest.mark.parametrize("is_warm", [False, True], ids=["cold", "warm"])


def made(name: str, is_warm: bool) -> Any:
    module = MODULES[name]()
    if is_warm:
        module(torch.randn(3, 4))
    return module


@modules
@warm
def test_jit_trace(name: str, is_warm: bool) -> None:
    module = made(name, is_warm)
    traced = torch.jit.trace(module, (torch.randn(3, 4),))
    x = torch.randn(5, 4)
    torch.testing.assert_close(traced(x), module(x))
    kinds = {node.kind() for node in traced.inlined_graph.nodes()}
    assert {"aten::linear", "aten::relu"} <= kinds


@warm
def test_jit_trace_of_functions(is_warm: bool) -> None:
    fn = jitmagic.jit(lambda x, n=3: torch.sin(double(x)) * n)
    if is_warm:
        fn(torch.randn(3))
    traced = torch.jit.trace(fn, (torch.randn(3),))
    x = torch.randn(3)
    torch.testing.assert_close(traced(x), fn(x))
    assert "aten::sin" in {node.kind() for node in traced.inlined_graph.nodes()}


@modules
@warm
@pytest.mark.parametrize("strict", [True, False], ids=["strict", "non-strict"])
def test_torch_export(name: str, is_warm: bool, strict: bool) -> None:
    module = made(name, is_warm)
    rows = ({0: Dim("rows", min=2, max=16)},)
    program = torch.export.export(
        module, (torch.randn(3, 4),), dynamic_shapes=rows, strict=strict
    )  # fmt: skip
    x = torch.randn(9, 4)
    torch.testing.assert_close(program.module()(x), module(x))
    assert set(program.state_dict) == set(module.state_dict())
    names = {getattr(node.target, "_opname", "") for node in program.graph.nodes}
    assert {"linear", "relu"} <= names


@modules
@warm
def test_make_fx_and_symbolic_trace(name: str, is_warm: bool) -> None:
    module = made(name, is_warm)
    x = torch.randn(3, 4)
    torch.testing.assert_close(make_fx(lambda x: module(x))(torch.randn(3, 4))(x), module(x))
    torch.testing.assert_close(torch.fx.symbolic_trace(module)(x), module(x))


@modules
@warm
def test_jitmagic_export_of_tagged_modules(name: str, is_warm: bool) -> None:
    module = made(name, is_warm)
    program = jitmagic.export(module, dynamic={"x": {0: (2, 16)}})(torch.randn(3, 4))
    x = torch.randn(9, 4)
    torch.testing.assert_close(program.module()(x), module(x))


def asks(x):
    if torch.compiler.is_exporting():
        return x + 1
    return x + 2 if torch.compiler.is_compiling() else x + 3


class Asks(nn.Module):
    def forward(self, x):
        return TAGGED(x)


TAGGED = jitmagic.jit(asks)


def test_is_exporting_says_who_traces() -> None:
    x = torch.zeros(1)
    assert asks(x) == 3
    assert TAGGED(x) == 2
    assert jitmagic.export(asks)(x).module()(x) == 1
    for strict in (True, False):
        assert torch.export.export(Asks(), (x,), strict=strict).module()(x) == 1
    assert TAGGED(x) == 2
