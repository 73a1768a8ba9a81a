"""Models `with torch.backends.cudnn.flags(enabled=False):` around CPU code.

Input: such a call with constants. Output: a block that sets nothing, since CPU operations do not
use cuDNN. An operation on another device in it breaks the graph. At a graph break inside, a block
that is already entered is built on the stack.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ....graph.node_meta import specs_in
from ...breaks import GraphBreak, RefusedTorchCall
from ...builtins.registry import handles
from ...result import Recipe
from ..base import Args, Builder, Kwargs, Machine, Value

__all__ = ["FLAGS_ARE_SET", "entered_flags"]

FLAGS_ARE_SET = "flags of cudnn"
"""Marks a graph inside such a block, where a read of the flags breaks."""


class _Flags(Value):
    """The context manager that `flags()` returns."""

    __slots__ = ("arguments",)

    def __init__(self, arguments: tuple[tuple[str, Value], ...]) -> None:
        super().__init__()
        self.arguments = arguments

    def enter(self, machine: Machine) -> tuple[Value, Value]:
        machine.notes.marks.add(FLAGS_ARE_SET)
        return _FlagsExit(self.arguments, len(machine.graph.graph.nodes)), machine.constant(None)

    def recipe(self, builder: Builder) -> Recipe:
        named = {name: builder(value) for name, value in self.arguments}
        return builder.invoke(torch.backends.cudnn.flags, (), **named)


class _FlagsExit(Value):
    """The `__exit__` of an entered block; `nodes` counts the graph's nodes before it."""

    __slots__ = ("arguments", "nodes")

    def __init__(self, arguments: tuple[tuple[str, Value], ...], nodes: int) -> None:
        super().__init__()
        self.arguments, self.nodes = arguments, nodes

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        machine.notes.marks.discard(FLAGS_ARE_SET)
        nodes = list(machine.graph.graph.nodes)[self.nodes :]
        if any(spec.device.type != "cpu" for node in nodes for spec in specs_in(node)):
            why = "it selects kernels of a device"
            raise GraphBreak(RefusedTorchCall.of(name="torch.backends.cudnn.flags", why=why))
        return machine.constant(None)

    def truth(self, machine: Machine) -> bool:
        return True

    def recipe(self, builder: Builder) -> Recipe:
        named = {name: builder(value) for name, value in self.arguments}
        return builder.invoke(entered_flags, (), **named)


def entered_flags(**arguments: Any) -> Callable[..., Any]:
    """Enter a `flags()` block and return its `__exit__`."""
    block = torch.backends.cudnn.flags(**arguments)
    block.__enter__()
    return block.__exit__


@handles(torch.backends.cudnn.flags)
def _flags(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    names = ("enabled", "benchmark", "benchmark_limit", "deterministic", "allow_tf32")
    if len(args) > len(names):
        why = "it has too many arguments"
        raise GraphBreak(RefusedTorchCall.of(name="torch.backends.cudnn.flags", why=why))
    arguments = (*zip(names, args, strict=False), *kwargs.items())
    for _, value in arguments:
        value.as_constant(machine)
    return _Flags(arguments)
