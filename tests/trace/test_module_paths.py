"""Module paths and calls in the lines of nodes."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

import jitmagic
from jitmagic.errors import UserLine
from jitmagic.graph.node_meta import lines_of


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) + 1


def wrapped(fn: Any) -> Any:
    @functools.wraps(fn)
    def wrapper(self: Any, *args: Any) -> Any:
        return fn(self, *args)

    return wrapper


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([Inner(), Inner()])

    @wrapped
    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x.sin()


def nodes_of(fn: Any, *args: Any) -> list[tuple[str, str, str]]:
    """Return (call, path of the module, its class) of each operation."""
    found = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        for node in gm.graph.nodes:
            if node.op in ("call_function", "call_method"):
                line = lines_of(node)[0]
                found.append((line.operation, *(line.module or ("", ""))))
        return gm.forward

    jitmagic.jit(fn, backend=backend)(*args)
    return found


def test_each_operation_has_the_innermost_module_and_its_call() -> None:
    expected = [
        (call, f"self.parts.{number}{path}", kind)
        for number in (0, 1)
        for call, path, kind in (
            ("linear", ".layers.0", "Linear"),
            ("relu", ".layers.1", "ReLU"),
            ("add", "", "Inner"),
        )
    ]
    assert nodes_of(Outer(), torch.randn(2, 4)) == [*expected, ("sin", "self", "Outer")]


def test_a_module_that_a_function_calls_has_its_name_there() -> None:
    model = Inner()

    def step(x: Tensor) -> Tensor:
        return model(x).sum()

    calls = nodes_of(step, torch.randn(2, 4))
    assert calls[0] == ("linear", "model.layers.0", "Linear")
    assert calls[-1] == ("sum", "", "")


def test_lines_of_one_place_are_equal_whatever_module_runs_there() -> None:
    first, second = UserLine("a.py", 3, "forward"), UserLine("a.py", 3, "forward", None, "relu")
    assert first == second and hash(first) == hash(second)
