"""Builds the score function of attention with a bias, for kernels that are generated.

In: the tensors that the function reads, in four dimensions (batch, head, query, key) of which each
is whole or 1. Out: the Form of a flex_attention call, whose function adds the bias to a score. Sums
are in float32, as the kernels' scores are. `added_bias` finds such a bias in a program's function.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

from ...symbols.size import Dimension, is_same
from ..lazy_module import LazyModule, add_node
from ..targets.attention_operators import Form
from ..targets.control_flow import Body

__all__ = ["Captured", "added_bias", "biased_scores"]

_SUMS = (operator.add, torch.add)
_GIVEN = ("score", "batch", "head", "query", "key")


class Captured(NamedTuple):
    """A tensor that the function reads. `role`: "bias" is added; "shift" is subtracted from it;
    scores are not kept where "kept" is false, and lost beside the bias where "absorbed" is true.
    """

    role: str
    node: Node
    shape: tuple[Dimension, ...]


def biased_scores(captured: Sequence[Captured], scale: float) -> Form:
    """Return the form of a call whose scores these tensors change."""
    graph = Graph()
    given = {name: graph.placeholder(name) for name in _GIVEN}
    axes = [given[name] for name in _GIVEN[1:]]
    held = {one.role: graph.placeholder(one.role) for one in captured}

    def call(target: Any, *args: Any) -> Node:
        op = "call_method" if isinstance(target, str) else "call_function"
        return add_node(graph, op, target, args, {})

    def element(one: Captured) -> Node:
        sizes = zip(axes, one.shape, strict=True)
        index = tuple(0 if is_same(size, 1) else axis for axis, size in sizes)
        return call(operator.getitem, held[one.role], index)

    element_of = {one.role: element(one) for one in captured}
    score, bias = given["score"], call("to", element_of["bias"], torch.float32)
    if "absorbed" in element_of:
        lost = call(torch.where, element_of["absorbed"], call("detach", score), 0.0)
        score = call("sub", score, lost)
    if "shift" in element_of:
        bias = call("sub", bias, element_of["shift"])
    made = call("add", score, bias)
    if "kept" in element_of:
        made = call(torch.where, element_of["kept"], made, -math.inf)
    graph.output((made,))
    places = [("given", n) for n in range(len(_GIVEN))]
    places += [("captured", n) for n in range(len(captured))]
    body = Body(LazyModule({}, graph), tuple(places), (0,))
    number = next(n for n, one in enumerate(captured) if one.role == "bias")
    return Form(body, None, scale, bias=number)


def added_bias(score: Body) -> tuple[int, tuple[int, ...]] | None:
    """Return which captured tensor a function adds to the score, and along which of the axes
    (batch, head, query, key) its dimensions lie; None for a function that does anything else.
    """
    graph = score.graph.graph
    places = dict(zip(graph.find_nodes(op="placeholder"), score.feeds, strict=True))
    outputs: Any = graph.output_node().args[0]
    made = outputs[score.returns[0]]
    if made.target not in _SUMS or made.kwargs:
        return None
    for one, other in (made.args, made.args[::-1]):
        if places.get(one) != ("given", 0) or getattr(other, "target", None) != operator.getitem:
            continue
        held, index = other.args
        group, number = places.get(held, ("", 0))
        parts = index if isinstance(index, tuple) else (index,)
        taken = [places.get(part, ("", 0)) for part in parts if isinstance(part, Node)]
        if group == "captured" and [name for name, _ in taken] == ["given"] * len(parts):
            return number, tuple(n - 1 for _, n in taken)
    return None
