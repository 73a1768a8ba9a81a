"""Builds the score function of attention with a bias, for kernels that are generated.

In: the tensors that the function reads, in four dimensions (batch, head, query, key) of which each
is whole or 1. Out: the Form of a flex_attention call, whose function adds the bias to a score. Sums
are in float32, as the kernels' scores are.
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

__all__ = ["Captured", "biased_scores"]

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
    score = given["score"]
    lost = call(torch.where, element_of["absorbed"], call("detach", score), 0.0)
    bias = call("sub", call("to", element_of["bias"], torch.float32), element_of["shift"])
    made = call("add", call("sub", score, lost), bias)
    if "kept" in element_of:
        made = call(torch.where, element_of["kept"], made, -math.inf)
    graph.output((made,))
    places = [("given", n) for n in range(len(_GIVEN))]
    places += [("captured", n) for n in range(len(captured))]
    body = Body(LazyModule({}, graph), tuple(places), (0,))
    number = next(n for n, one in enumerate(captured) if one.role == "bias")
    return Form(body, None, scale, bias=number)
