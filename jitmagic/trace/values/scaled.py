"""Tensor operations that take a number which is data: `x.mul_(s)`, `x.addcdiv_(a, b, value=s)`, ...

Comes in: a call whose arguments hold nodes and, at the top level, FloatValues. Goes out: the same
result by calls that take 0-dim tensors. ATen casts a number to the dtype it computes in (float32
for the 16-bit floats, whose results are rounded once, at the end), so the casts are spelled out
here. None: no rule says how such a number enters this call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from ...graph.builder import GraphBuilder
from ...graph.node_meta import device_of
from ...graph.propagate import Target, target_name
from .base import Machine
from .numbers import FloatValue

__all__ = ["call_with_numbers"]

_CPU = torch.device("cpu")
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_OPERATORS = {
    "mul": ("mul", False), "imul": ("mul", True), "truediv": ("div", False),
    "itruediv": ("div", True), "add": ("add", False), "iadd": ("add", True),
    "sub": ("sub", False), "isub": ("sub", True),
}  # fmt: skip


def call_with_numbers(
    machine: Machine, target: Target, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Node | None:
    """The node of the result (the target itself for an in-place call), or None."""
    name, in_place = _name(target)
    form = _FORMS.get(name)
    args = list(args)
    if name in ("mul", "add") and len(args) == 2 and isinstance(args[0], FloatValue):
        args.reverse()
    tensors = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, Node)]
    if form is None or not args or not tensors or args[0] is not tensors[0]:
        return None
    dtype = tensors[0].meta["val"].dtype
    device = device_of(tensors[0])
    alike = all(node.meta["val"].dtype is dtype and device_of(node) == device for node in tensors)
    if not alike or dtype not in _FLOATS:
        return None
    made: Node | None = form(_Call(machine, name, dtype, device, in_place), args, dict(kwargs))
    return made


def _name(target: Target) -> tuple[str, bool]:
    """The operation, and whether it writes to its first operand."""
    name = target_name(target)
    if getattr(target, "__module__", "") == "_operator":
        return _OPERATORS.get(name, ("", False))
    name = {"true_divide": "div", "divide": "div", "multiply": "mul"}.get(name, name)
    return (name[:-1], True) if name.endswith("_") else (name, False)


class _Call:
    """One call to be recorded: the operation, the dtype and device of its tensors, whether in
    place.
    """

    def __init__(
        self, machine: Machine, name: str, dtype: torch.dtype, device: torch.device, in_place: bool
    ) -> None:
        self.graph: GraphBuilder = machine.graph
        self.lines = machine.lines()
        self.name, self.dtype, self.device, self.in_place = name, dtype, device, in_place
        self.narrow = dtype in (torch.float16, torch.bfloat16)
        self.wide = torch.float32 if self.narrow else dtype

    def method(self, name: str, *args: Any) -> Node:
        made: Node = self.graph.call(name, args, {}, self.lines)
        return made

    def number(self, value: Any, dtype: torch.dtype) -> Node:
        """A FloatValue rounded to a dtype, beside the tensors."""
        node = self.method("to", value.node, dtype)
        return node if self.device == _CPU else self.method("to", node, self.device)

    @property
    def term(self) -> torch.dtype:
        """What a number that is added is rounded to: GPU kernels compute with it as it is."""
        return self.dtype if self.device == _CPU else self.wide

    def widened(self, node: Node) -> Node:
        return self.method("to", node, self.wide) if self.narrow else node

    def finish(self, name: str, target: Node, *args: Node) -> Node:
        """`target.name(*args)` computed in the wide dtype, rounded once, in place if asked."""
        if not self.narrow:
            return self.method(f"{name}_" if self.in_place else name, target, *args)
        made = self.method(name, self.widened(target), *args)
        if self.in_place:
            return self.method("copy_", target, made)
        return self.method("to", made, self.dtype)


def _times(call: _Call, args: list[Any], kwargs: dict[str, Any]) -> Node | None:
    """x * s, x / s: the number is not rounded to 16 bits."""
    if len(args) != 2 or kwargs or not isinstance(args[1], FloatValue):
        return None
    return call.finish(call.name, args[0], call.number(args[1], call.wide))


def _plus(call: _Call, args: list[Any], kwargs: dict[str, Any]) -> Node | None:
    """x + s, and x + alpha * y where alpha is the number."""
    if len(args) != 2 or set(kwargs) - {"alpha"}:
        return None
    alpha = kwargs.get("alpha", 1)
    if isinstance(args[1], FloatValue):
        if alpha != 1:
            return None
        number = call.number(args[1], call.term)
        return call.finish(call.name, args[0], call.widened(number))
    if not isinstance(alpha, FloatValue):
        return None
    factor = call.widened(call.number(alpha, call.term))
    if call.name == "sub":
        factor = call.method("neg", factor)
    return call.finish("addcmul", args[0], call.widened(args[1]), factor)


def _value(call: _Call, args: list[Any], kwargs: dict[str, Any]) -> Node | None:
    """x + value * a * b, x + value * a / b."""
    value = kwargs.pop("value", None)
    if len(args) != 3 or kwargs or not isinstance(value, FloatValue):
        return None
    first, second = call.widened(args[1]), call.widened(args[2])
    product = call.method("mul", first, call.number(value, call.wide))
    return call.finish(call.name, args[0], product, second)


def _weight(call: _Call, args: list[Any], kwargs: dict[str, Any]) -> Node | None:
    """lerp(x, end, weight)."""
    given = [*args, *(kwargs.pop("weight", ()) for _ in range(len(args) == 2))]
    if len(given) != 3 or kwargs or not isinstance(given[2], FloatValue):
        return None
    weight = call.number(given[2], call.wide)
    return call.finish("lerp", given[0], call.widened(given[1]), weight)


_FORMS: Mapping[str, Callable[[_Call, list[Any], dict[str, Any]], Node | None]] = {
    "mul": _times,
    "div": _times,
    "add": _plus,
    "sub": _plus,
    "addcmul": _value,
    "addcdiv": _value,
    "lerp": _weight,
}
