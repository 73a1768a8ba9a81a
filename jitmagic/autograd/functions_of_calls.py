"""Traces the functions that operators of a joint graph take, with their derivatives.

In: the nodes of flex_attention's operators. Out: `meta["functions"]` of each: the score function
and the mask function as functional ATen graphs of scalars (None without one). Placeholders are
named score, batch, head, query, key, captured0, captured1 and so on, and tangent. A graph returns
the result, and the gradient of the score if the node is of a backward and it differs from the
tangent. A function that such a graph cannot express leaves its node as it is: the operator then
runs as a call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ..errors import CompileFailed
from ..graph.targets.attention_operators import (
    FLEX_ATTENTION,
    FLEX_OPERATORS,
    form_of,
    working_dtype,
)
from ..graph.targets.control_flow import Body
from ..spec import TensorSpec
from ..symbols.size import Size
from .nodes import module_of, node_spec, placeholders
from .result import FromInput, Joint, Result

__all__ = ["trace_functions"]

Trace = Callable[..., Joint]
_GIVEN = ("score", "batch", "head", "query", "key")


def trace_functions(graph: Graph, trace: Trace) -> None:
    """Set the functions of each node; `trace` is trace_joint."""
    known: dict[object, tuple[GraphModule | None, ...]] = {}
    for node in graph.nodes:
        if node.target not in FLEX_OPERATORS:
            continue
        differentiates = node.target is not FLEX_ATTENTION
        *_, captured, _, _, number = node.args
        key = number, differentiates, tuple(captured)
        try:
            if key not in known:
                known[key] = _functions(node, number, captured, differentiates, trace)
        except CompileFailed:
            continue
        node.meta["functions"] = known[key]


def _functions(
    node: Node, number: int, captured: Sequence[Node], differentiates: bool, trace: Trace
) -> tuple[GraphModule | None, ...]:
    form = form_of(number)
    query = node_spec(node.args[-8])  # type: ignore[arg-type]
    # A bias's gradient is that of the score.
    specs = [replace(node_spec(one), storage_offset=0, requires_grad=False) for one in captured]
    traced = []
    for body, differentiable in ((form.score, differentiates), (form.mask, False)):
        one = body and _function(body, query, specs, differentiable, trace)
        traced.append(one or None)
    return tuple(traced)


def _function(
    body: Body,
    query: TensorSpec,
    captured: Sequence[TensorSpec],
    differentiates: bool,
    trace: Trace,
) -> GraphModule:
    if not isinstance(body.graph, GraphModule):  # a function of a script
        raise CompileFailed("a function of flex_attention is no graph")
    wide, one = working_dtype(query.dtype), (1, 1, 1, 1)
    axis = TensorSpec(one, one, torch.int64, query.device)
    score = replace(axis, dtype=wide, requires_grad=differentiates, is_leaf=not differentiates)
    groups = {"given": [score, axis, axis, axis, axis], "captured": captured}
    names = {"given": _GIVEN, "captured": [f"captured{n}" for n in range(len(captured))]}
    specs = [groups[group][n] for group, n in body.feeds]
    is_sized = any(isinstance(n, Size) for spec in specs for n in (*spec.shape, *spec.stride))
    joint = trace(body.graph, specs, grad_enabled=differentiates, is_sized=is_sized)
    holders = placeholders(joint.module)
    flat: Any = joint.module.graph.output_node().args[0]
    match joint.outputs[body.returns[0]]:
        case FromInput(index):
            results = [holders[index]]
        case Result(index):
            results = [flat[index], *flat[len(joint.results) :]]
        case _:
            raise CompileFailed("a function of flex_attention returns a view")
    wanted = [names[group][n] for group, n in body.feeds]
    return _renamed(joint, holders, [*wanted, "tangent"], results)


def _renamed(
    joint: Joint, holders: Sequence[Node], names: Sequence[str], results: Sequence[Node]
) -> GraphModule:
    """Return the graph with these names of its placeholders, and these results."""
    graph, known = Graph(), dict[Node, Node]()
    for holder, name in zip(holders, names, strict=False):
        known[holder] = graph.placeholder(name)
        known[holder].meta = dict(holder.meta)
    for node in joint.module.graph.nodes:
        if node.op not in ("placeholder", "output"):
            known[node] = graph.node_copy(node, known.__getitem__)
    graph.output(tuple(known[node] for node in results))
    return module_of(graph, dict(joint.module.named_buffers()), "Function")
