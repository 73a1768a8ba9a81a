"""Tagged code under torch.export, torch.jit.trace, symbolic_trace and make_fx runs as written."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import symbolic_trace
from torch.fx.experimental.proxy_tensor import make_fx

import jitmagic


def twice(x: Tensor) -> Tensor:
    return torch.sin(x) * 2


class Caller(nn.Module):
    """A layer followed by a call of a function or a module."""

    def __init__(self, called: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.called, self.layer = called, nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.called(self.layer(x))


class Methods(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    @jitmagic.jit
    def scaled(self, x: Tensor, *, k: int = 2) -> Tensor:
        return x * k

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(self.layer(x), k=3)


def wrapping(tagged: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(tagged)
    def wrapper(x: Tensor) -> Tensor:
        return tagged(x) + 100

    return wrapper


MODULES: dict[str, Callable[[], nn.Module]] = {
    "a function": lambda: Caller(jitmagic.jit(twice)),
    "a module within": lambda: Caller(jitmagic.jit(nn.Linear(3, 3))),
    "a module": lambda: jitmagic.jit(Caller(torch.relu)),
    "a method": Methods,
    "a wrapper of a function": lambda: Caller(wrapping(jitmagic.jit(twice))),
}
X = torch.randn(2, 3)


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("name", MODULES)
def test_exported_programs_compute_the_modules_results(
    name: str, strict: bool, is_compiled: bool
) -> None:
    module = MODULES[name]()
    if is_compiled:
        module(X)
    exported = torch.export.export(module, (X,), strict=strict).module()
    torch.testing.assert_close(exported(X), module(X))


@pytest.mark.parametrize("is_compiled", [False, True])
def test_tracers_see_the_operations_of_the_original(is_compiled: bool) -> None:
    tagged = jitmagic.jit(twice)
    if is_compiled:
        tagged(X)
    assert "aten::sin" in str(torch.jit.trace(tagged, (X,)).graph)
    assert "torch.sin" in symbolic_trace(tagged).code
    assert "aten.sin" in make_fx(tagged)(X).code
    assert "aten.sin" in make_fx(tagged, tracing_mode="symbolic")(X).code


def test_an_exported_function_follows_code_that_is_assigned() -> None:
    def first(x: Tensor) -> Tensor:
        return x * 2

    def second(x: Tensor) -> Tensor:
        return x * 7

    tagged = jitmagic.jit(first)
    first.__code__ = second.__code__
    module = Caller(tagged)
    torch.testing.assert_close(torch.export.export(module, (X,)).module()(X), module(X))
    torch.testing.assert_close(tagged(X), X * 7)
