"""Interval analysis of tensor elements: decides branches on data without a graph break.

Input: a node of a graph under construction. Output: the truth of a one-element tensor, if the
ranges of its operands leave one answer, whatever the inputs and random draws are; or the answer of
all but one draw in a million, which has to be asserted. The rule of each operation is in
range_rules.py; without a rule, and for inputs of the graph, an element is anything that its dtype
can hold.
"""

from __future__ import annotations

import math
import operator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Node

from ...symbols.interval import Interval
from ..target_names import target_name
from .intervals import rounded, whole_range
from .range_rules import RULES, Call
from .recorded import Recorded

__all__ = [
    "always_true",
    "element_range",
    "known_name",
    "known_truth",
    "likely_truth",
    "truth_if_finite",
]

_HARDLY_EVER = 2.0**-20  # the probability that a draw is closer than this to an end of its interval
_MOST_NODES = 64  # visited per query; the program is being traced meanwhile
_AUGMENTED = ("add", "sub", "mul", "truediv", "and", "or")  # operators with an in-place form


def known_truth(graph: Recorded, node: Node) -> bool | None:
    """Return `bool(tensor)` if the range of its one element decides it."""
    return _truth(graph, node, 0.0)


def likely_truth(graph: Recorded, node: Node) -> bool | None:
    """Return `bool(tensor)` if only draws at the ends of their intervals give another answer. A
    probability meant as never (1e-30) is still above the smallest draw, which is zero.
    """
    return _truth(graph, node, _HARDLY_EVER)


def truth_if_finite(graph: Recorded, node: Node) -> bool | None:
    """Return `bool(tensor)` if finite intermediate values decide it."""
    return _truth(graph, node, _HARDLY_EVER, finite=True)


def always_true(graph: Recorded, node: Node) -> bool:
    """Return whether no element of a tensor can be false."""
    return _Reader(graph, 0.0).at(node, None).truth is True


def element_range(graph: Recorded, node: Node, place: Node) -> Interval:
    """Return the range of a tensor's elements just before a call of a finished graph."""
    return _Reader(graph, 0.0).at(node, place)


def _truth(graph: Recorded, node: Node, margin: float, *, finite: bool = False) -> bool | None:
    if node.meta["val"].numel() != 1:
        return None  # eager raises
    return _Reader(graph, margin, finite=finite).at(node, None).truth


class _Reader:
    """Reads ranges of nodes at a point of the program: in-place writes change them."""

    def __init__(self, graph: Recorded, margin: float, *, finite: bool = False) -> None:
        self._graph = graph
        self._finite = finite
        self._margin = margin
        self._left = _MOST_NODES

    def at(self, node: Node, place: Node | None) -> Interval:
        """Return the range of a node's elements just before `place` (None: now)."""
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            return Interval(-math.inf, math.inf, nan=True)
        self._left -= 1
        writer = self._last_writer(node, place)
        found = None
        if self._left >= 0 and node.op != "placeholder":
            found = self._of_call(node if writer is None else writer, node, value)
        return whole_range(value.dtype) if found is None else rounded(found, value.dtype)

    def _last_writer(self, node: Node, place: Node | None) -> Node | None:
        """Return the last call that wrote to the node's memory, after it was made and before
        `place`.
        """
        for writer in reversed(self._graph.writes.to(node)):
            if place is None or writer < place:
                return writer if node < writer else None
        return None

    def _of_call(self, call: Node, node: Node, value: torch.Tensor) -> Interval | None:
        name = known_name(call.target)
        if call is not node:  # an in-place write, of all of the tensor if it is the first operand
            if not (call.args and call.args[0] is node and name.endswith("_")):
                return None
            name = name.removesuffix("_")
        rule = RULES.get(name)
        if rule is None or "out" in call.kwargs:
            return None
        read = partial(self._part, place=call)
        return rule(Call(name, call.args, call.kwargs, value, read, self._margin, self._finite))

    def _part(self, part: object, place: Node) -> Interval:
        if isinstance(part, Node):
            return self.at(part, place)
        is_nan = isinstance(part, float) and math.isnan(part)
        if isinstance(part, bool | int | float) and not is_nan:
            return Interval(part, part)
        return Interval(-math.inf, math.inf, nan=True)


def known_name(target: Any) -> str:
    """Return the name of a tensor method, an operator, or a function of torch; "" for others."""
    name = target_name(target)
    if isinstance(target, str):
        return name
    for namespace in (torch, F):
        if getattr(namespace, name, None) is target:
            return name
    if getattr(operator, name, None) is not target:
        return ""
    return f"{name[1:]}_" if name.startswith("i") and name[1:] in _AUGMENTED else name
