"""Torch function modes that the frame enters are followed; those outside leave calls to eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import jitmagic

from ..counts import breaks_of, counts_of, eager_of
from .compared import assert_same


class Doubling(TorchFunctionMode):
    """Doubles sines."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        return made * 2 if func is torch.sin else made


class Swapping(TorchFunctionMode):
    """Subtracts where the program adds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.add:
            return torch.sub(*args)
        return func(*args, **(kwargs or {}))


class Naming(TorchFunctionMode):
    """Notes the names of functions."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


LINEAR = nn.Linear(8, 3)


def _one(x: Tensor) -> Any:
    with Doubling():
        y = torch.sin(x) + 1
    return y * torch.sin(x)


def _within_another(x: Tensor) -> Any:
    with Doubling():
        with Doubling():
            y = torch.sin(x)
        return y + torch.sin(x)


def _operators(x: Tensor) -> Any:
    with Swapping():
        y, z = x + 1, x.add(2)
    return y, z, x + 1


def _names(x: Tensor) -> Any:
    mode = Naming()
    with mode:
        y = F.relu(x).sum() + LINEAR(x) * x.shape[0]
        z = torch.ones(3) + torch.arange(3)
    return y + z, mode.names


def _left_by_an_error(x: Tensor) -> Any:
    try:
        with Doubling():
            y = torch.sin(x)
            raise ValueError
    except ValueError:
        pass
    return y + torch.sin(x)


def _depth(x: Tensor) -> Any:
    with Doubling():
        inside = torch._C._len_torch_function_stack()
    return x + inside - torch._C._len_torch_function_stack()


@pytest.mark.parametrize(
    "program", [_one, _within_another, _operators, _names, _left_by_an_error, _depth]
)
def test_modes_inside_are_one_graph(program: Callable[[Tensor], Any]) -> None:
    tagged = jitmagic.jit(program, options={"on_error": "raise"})
    for _ in range(2):
        x = torch.randn(4, 8)
        assert_same(tagged(x), program(x))
    assert (breaks_of(tagged), eager_of(tagged)) == ([], [])
    assert counts_of(tagged).graphs == 1


def test_a_break_inside_a_mode_goes_on_under_it(capsys: pytest.CaptureFixture[str]) -> None:
    def run(x: Tensor) -> Tensor:
        with Doubling():
            y = torch.sin(x)
            print("inside", torch._C._len_torch_function_stack())
            y = y + torch.sin(x)
        return y + torch.sin(x)

    tagged, x = jitmagic.jit(run), torch.randn(4)
    torch.testing.assert_close(tagged(x), run(x))
    assert capsys.readouterr().out == "inside 1\n" * 2
    assert torch._C._len_torch_function_stack() == 0


def test_a_mode_around_the_call_sees_what_eager_calls() -> None:
    tagged = jitmagic.jit(lambda x: torch.sin(x) + 1)
    x = torch.randn(4)
    plain = tagged(x)
    with Doubling():
        torch.testing.assert_close(tagged(x), plain + x.sin())
    with Naming() as mode:
        tagged(x)
    assert mode.names == ["sin", "add"]
    torch.testing.assert_close(tagged(x), plain)
