"""Computes tensors whose values the trace knows: those made from constants alone.

Input: a node of a graph under construction. Output: the tensor that eager would have there, or
None. It is computed on the CPU by the calls that produce it: a mask that a library makes and then
tests, a size that is stored in a tensor. Not known are inputs, draws, uninitialised memory, written
tensors, symbolic sizes and calls that are not torch's own. GPU tensors are known only if their
values are bools or small integers, which are the same on every device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from ...late import late_names
from ...torch_types import Kwargs, OpOverload
from ..dispatch_mode import DispatchMode
from ..nested import map_nodes
from ..node_meta import device_of
from ..operators.foreign import is_random_op
from .recorded import Recorded

if TYPE_CHECKING:
    from .ranges import known_name
else:
    late_names(globals(), {"graph.symbolic.ranges": "known_name"})

__all__ = ["known_mask", "known_number", "known_tensor", "known_value"]

_MOST_NODES = 64  # computed per query; the program is being traced meanwhile
_MOST_ELEMENTS = 1 << 16
_MOST_OF_A_MASK = 1 << 24  # elements; each call on that many takes 20 ms
_SMALL = 256  # bfloat16 has all integers up to here
_CPU = torch.device("cpu")


class _Unknown(Exception):
    """Raised if a part of the value is not constant."""


class _Pure(DispatchMode):
    """Lets through operators with one possible result; raises _Unknown for others."""

    def run_operator(self, op: OpOverload, args: tuple[object, ...], kwargs: Kwargs) -> object:
        if is_random_op(op) or "empty" in op._schema.name:
            raise _Unknown
        return super().run_operator(op, args, kwargs)


def known_value(graph: Recorded, node: Node) -> torch.Tensor | None:
    """Return the node's current tensor if it is on the CPU and its values are known."""
    if _is_elsewhere(node):
        return None
    return _Computation(graph, _MOST_ELEMENTS).of(node)


def known_mask(graph: Recorded, node: Node) -> torch.Tensor | None:
    """Return a bool tensor of any device as one on the CPU; it may be large."""
    return known_tensor(graph, node) if node.meta["val"].dtype is torch.bool else None


def known_tensor(graph: Recorded, node: Node, is_exact: bool = True) -> torch.Tensor | None:
    """Return a tensor of any device as one on the CPU; it may be large. Unless `is_exact`, another
    device may round it in another way.
    """
    return _Computation(graph, _MOST_OF_A_MASK, is_exact).of(node)


def known_number(graph: Recorded, node: Node) -> bool | int | float | None:
    """Return the number in a one-element tensor, if it is known."""
    if node.meta["val"].numel() != 1 or (value := known_value(graph, node)) is None:
        return None
    number: bool | int | float | complex = value.item()
    return None if isinstance(number, complex) else number


class _Computation:
    """Runs the calls that produce one node, on the CPU."""

    def __init__(self, graph: Recorded, most_elements: int, is_exact: bool = True) -> None:
        self._graph = graph
        self._must_be_exact = is_exact
        self._most_elements = most_elements
        self._known: dict[Node, object] = {}

    def of(self, node: Node) -> torch.Tensor | None:
        if not isinstance(node.meta["val"], torch.Tensor) or self._graph.modes_vary:
            return None
        try:
            with torch.no_grad(), _Pure():
                found: torch.Tensor = self._computed(node)
        except Exception:  # eager raises the error when it runs the call
            return None
        return found

    def _computed(self, node: Node) -> Any:
        known = self._known
        if node in known:
            return known[node]
        if len(known) >= _MOST_NODES or not self._is_plain(node):
            raise _Unknown
        args, kwargs = map_nodes((node.args, node.kwargs), self._computed)
        if _is_elsewhere(node):
            args, kwargs = _on_cpu(args), _on_cpu(kwargs)
        if isinstance(node.target, str):
            made = getattr(args[0], node.target)(*args[1:], **kwargs)
        else:
            made = node.target(*args, **kwargs)  # type: ignore[operator]
        if isinstance(made, torch.Tensor):
            _check(node.meta["val"], made)
            if self._must_be_exact and _is_elsewhere(node) and not _is_exact(made):
                raise _Unknown
        known[node] = made
        return made

    def _is_plain(self, node: Node) -> bool:
        """Return whether the node is a pure torch call with constants or nodes as arguments."""
        if node.op not in ("call_function", "call_method") or not known_name(node.target):
            return False
        if node.graph is not self._graph.graph:
            return False
        if node.meta.get("random") or node.meta.get("mutates"):
            return False
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            return True
        if any(type(size) is not int for size in value.shape):
            return False
        if value.numel() > self._most_elements:
            return False
        return not self._graph.writes.to(node)


def _is_elsewhere(node: Node) -> bool:
    return isinstance(node.meta["val"], torch.Tensor) and device_of(node) != _CPU


def _is_exact(made: torch.Tensor) -> bool:
    """Return whether the values are the same on any device: bools, integers, small whole floats."""
    if not made.is_floating_point():
        return not made.is_complex()
    return bool((made == made.round()).all()) and float(made.abs().amax()) <= _SMALL


def _on_cpu(value: object) -> object:
    """Return the arguments of a call on another device, adapted to the CPU."""
    if isinstance(value, dict):
        return {
            name: _CPU if name == "device" and part is not None else _on_cpu(part)
            for name, part in value.items()
        }
    if isinstance(value, tuple | list):
        return type(value)(_on_cpu(part) for part in value)
    return _CPU if isinstance(value, torch.device) else value


def _check(meta: torch.Tensor, made: torch.Tensor) -> None:
    """Raise _Unknown if the result does not match the graph's, which autocast may change."""
    if (made.dtype, made.shape, made.device.type) != (meta.dtype, meta.shape, "cpu"):
        raise _Unknown
