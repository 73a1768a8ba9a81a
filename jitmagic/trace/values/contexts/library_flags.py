"""`with torch.backends.cudnn.flags(enabled=False):` around what runs on a CPU.

Comes in: such a call with constants. Goes out: a block in which nothing is set, as the library is
not asked about tensors of a CPU; a call on another device in it breaks. A graph break inside leaves
a real block, entered, on the stack.
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
"""Noted of a graph while it is in such a block, where nobody may read them."""


class _Flags(Value):
    """What `flags()` gives, which is entered once."""

    __slots__ = ("given",)

    def __init__(self, given: tuple[tuple[str, Value], ...]) -> None:
        super().__init__()
        self.given = given

    def enter(self, machine: Machine) -> tuple[Value, Value]:
        machine.notes.marks.add(FLAGS_ARE_SET)
        return _EndOfFlags(self.given, len(machine.graph.graph.nodes)), machine.constant(None)

    def recipe(self, builder: Builder) -> Recipe:
        given = {name: builder(value) for name, value in self.given}
        return builder.invoke(torch.backends.cudnn.flags, (), **given)


class _EndOfFlags(Value):
    """The `__exit__` of an entered block. `nodes`: how many there were before."""

    __slots__ = ("given", "nodes")

    def __init__(self, given: tuple[tuple[str, Value], ...], nodes: int) -> None:
        super().__init__()
        self.given, self.nodes = given, nodes

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        machine.notes.marks.discard(FLAGS_ARE_SET)
        nodes = list(machine.graph.graph.nodes)[self.nodes :]
        if any(spec.device.type != "cpu" for node in nodes for spec in specs_in(node)):
            why = "it sets what kernels of a device are asked for"
            raise GraphBreak(RefusedTorchCall.of(name="torch.backends.cudnn.flags", why=why))
        return machine.constant(None)

    def truth(self, machine: Machine) -> bool:
        return True

    def recipe(self, builder: Builder) -> Recipe:
        given = {name: builder(value) for name, value in self.given}
        return builder.invoke(entered_flags, (), **given)


def entered_flags(**given: Any) -> Callable[..., Any]:
    """The `__exit__` of a real block that has been entered."""
    block = torch.backends.cudnn.flags(**given)
    block.__enter__()
    return block.__exit__


@handles(torch.backends.cudnn.flags)
def _flags(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    names = ("enabled", "benchmark", "benchmark_limit", "deterministic", "allow_tf32")
    if len(args) > len(names):
        raise GraphBreak(RefusedTorchCall.of(name="torch.backends.cudnn.flags", why="so called"))
    given = (*zip(names, args, strict=False), *kwargs.items())
    for _, value in given:
        value.as_constant(machine)
    return _Flags(given)
