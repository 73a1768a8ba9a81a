"""Probes kernels while tracing, to find calls whose error the graph could not reproduce.

Meta functions accept some arguments that kernels refuse. That matters for two kinds of calls. A
call that dead-code elimination drops never runs its kernel, so its error would be lost. And a graph
that has written to its inputs cannot start over as plain Python when a kernel raises. For both,
this module runs the kernel on stand-in inputs. If it raises, CannotRebuild ends the frame before
the call, and eager raises the error. Calls that raise depending on data stay in the graph, whose
writes are undone then (residual/undo.py).
"""

from __future__ import annotations

import math
import operator

from torch.fx import Node

from ..graph.builder import GraphBuilder
from ..graph.memory import storage_of
from ..graph.nested import map_nodes
from ..graph.node_meta import specs_in, value_of
from ..graph.operators.kernel_refusals import kernel_refusal
from ..graph.passes import dead_calls
from ..graph.symbolic.sym_node import as_torch
from ..graph.target_names import call_name, target_name
from ..symbols.size import hint_of
from .breaks import TorchCallFailed
from .residual.undo import may_raise
from .values.base import CannotRebuild

__all__ = ["check_dead_calls"]

_MOST = 1 << 14  # elements of a probed call, so that its stand-ins cost only microseconds


def check_dead_calls(graph: GraphBuilder) -> None:
    """Raise CannotRebuild where eager would raise at a call that the graph may not reach."""
    for node in (*reversed(dead_calls(graph.graph, graph.is_output)), *_without_return(graph)):
        if node.op not in ("call_function", "call_method") or _is_part(node) or _is_view(node):
            continue
        error = _refusal(node)
        if error is not None:
            what = f"{type(error).__name__}: {error}"
            reason = TorchCallFailed.of(name=call_name(node.target), error=what)
            raise CannotRebuild("a call", node.meta["step"], reason)


def _without_return(graph: GraphBuilder) -> list[Node]:
    """Return the calls whose error plain Python cannot reproduce from the frame's start, in order.

    Large calls are skipped, and all calls under autocast: there kernels get other dtypes than the
    nodes have.
    """
    nodes: list[Node] = list(graph.graph.nodes)
    starts_over = not graph.mutated_inputs or any(map(may_raise, nodes))
    # A graph that only reads starts over as plain Python, which raises the error itself. For the
    # others the probes cost 0.12 s of the 4 s that a training step of 1,706 nodes with 246 written
    # inputs compiles.
    if starts_over or graph.has_cast:
        return []
    asked = [node for node in nodes if not _is_part(node)]
    return [n for n in asked if sum(map(_elements, (n, *n.all_input_nodes))) <= _MOST]


def _elements(node: Node) -> int:
    return sum(math.prod(map(hint_of, spec.shape)) for spec in specs_in(node))


def _refusal(node: Node) -> Exception | None:
    spec = next(specs_in(node), None)
    if spec is None:
        return None
    args, kwargs = map_nodes((node.args, node.kwargs), lambda arg: as_torch(value_of(arg)))
    name = target_name(node.target)  # type: ignore[arg-type]
    return kernel_refusal(node.target, name, args, kwargs, spec.device)  # type: ignore[arg-type]


def _is_part(node: Node) -> bool:
    """Return whether the node selects one of many results, which involves no kernel.

    Probing each would look at all of them again.
    """
    # x.split(2)[-1] of 4,096 elements took 16 s to trace when each part was probed, 0.26 s without.
    whole = node.args[0] if node.target is operator.getitem else None
    return isinstance(whole, Node) and isinstance(value_of(whole), tuple | list)


def _is_view(node: Node) -> bool:
    """Return whether the node shares memory: its meta function has checked its strides already."""
    memory = storage_of(node)
    return any(storage_of(source) == memory for source in node.all_input_nodes)
