"""Gradients of tensor subclasses are read natively where that runs no Python of the subclass."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from jitmagic.bytecode import FrameSnapshot
from jitmagic.frame.native import GuardProgram, lower_guards
from jitmagic.guards.check import holds
from jitmagic.guards.guard import TypeIs
from jitmagic.guards.source import Argument, Gradient


class Plain(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


class Own(Plain):
    @property
    def grad(self) -> Any:
        return None


class Python(torch.Tensor):
    pass


GUARD = TypeIs(Gradient(Argument(0, "x")), torch.Tensor)


@pytest.mark.parametrize(
    ("kind", "is_native"),
    [
        (torch.Tensor, True),
        (torch.nn.Parameter, True),
        (Plain, True),
        (Own, False),
        (Python, False),
    ],
)
def test_the_class_decides_how_a_gradient_is_read(kind: Any, is_native: bool) -> None:
    leaf = torch.randn(3).as_subclass(kind).requires_grad_()
    torch.Tensor.sum(leaf).as_subclass(torch.Tensor).backward()
    program = GuardProgram(lower_guards([GUARD], (), {}, {})[0])
    assert program.check((leaf,)) == is_native
    if is_native:
        assert holds(GUARD, FrameSnapshot.of_call(lambda x: x, (leaf,)))
