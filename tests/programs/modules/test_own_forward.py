"""An instance with a forward of its own, put there by a library: the class's is compiled."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import jitmagic
from tests.programs.counts import counts_of


class Users(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x).relu()


MODULES: dict[str, Callable[[], nn.Module]] = {
    "user's": Users,
    "container": lambda: nn.Sequential(nn.Linear(4, 4), nn.GELU(), Users()),
    "layer": lambda: nn.Linear(4, 4),
}
WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "autocast": torch.autocast("cpu", dtype=torch.bfloat16),
    "no grad": torch.no_grad(),
    "partial": functools.partial,
}


def put_forward(module: nn.Module, wrap: Callable[[Any], Any]) -> None:
    """As accelerate does."""
    inner = module.forward.__func__  # type: ignore[attr-defined]
    module.forward = types.MethodType(wrap(inner), module)


@pytest.mark.parametrize("before", [True, False], ids=["tagged before", "tagged after"])
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_class_forward_is_one_graph(kind: str, wrapper: str, before: bool, backend: str) -> None:
    torch.manual_seed(0)
    module, x = MODULES[kind](), torch.randn(3, 4)
    put_forward(module, WRAPPERS[wrapper])
    expected = module(x)
    if before:
        del module.forward
        jitmagic.jit(module, backend=backend)
        put_forward(module, WRAPPERS[wrapper])
    else:
        jitmagic.jit(module, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(module(x), expected, rtol=2e-2, atol=2e-2)
        assert module(x).requires_grad is expected.requires_grad
    counts = counts_of(module)
    assert (counts.graphs, counts.breaks) == (1, 0)


def test_eager_container_of_one_family_does_not_affect_others() -> None:
    """A family that leaves a container to eager does not decide for those that tagged one."""

    @jitmagic.jit(backend="eager")
    def other(x: torch.Tensor) -> torch.Tensor:
        print(end="")
        return outside(x)

    outside = nn.Sequential(nn.Linear(4, 4))
    outside.register_forward_hook(lambda *given: print(end=""))
    x = torch.randn(3, 4)
    other(x)
    for _ in range(3):
        module = jitmagic.jit(nn.Sequential(nn.Linear(4, 4)), backend="eager")
        put_forward(module, torch.no_grad())
        module(x)
        other(x)
        module(x)
        assert counts_of(module).graphs == 1
