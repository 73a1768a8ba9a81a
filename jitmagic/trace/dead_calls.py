"""Calls whose results nothing reads: they go only where eager's kernels would take them.

Comes in: the graph of a frame, before dead code is dropped. Goes out: nothing, or Unrestorable, so
that the frame ends before the call and eager raises. Meta functions let pass what kernels refuse,
and what is dropped is never refused by a kernel. What may raise because of its data stays anyway.
"""

from __future__ import annotations

from torch.fx import Node

from ..graph.builder import GraphBuilder, storage_of
from ..graph.nested import map_nodes
from ..graph.node_meta import specs_in, value_of
from ..graph.passes import dead_calls
from ..graph.probe import why_refused
from ..graph.propagate import call_name, target_name
from ..graph.sym_node import as_torch, with_hints
from .breaks import TorchCallFailed
from .values.base import Unrestorable

__all__ = ["check_dead_calls"]


def check_dead_calls(graph: GraphBuilder) -> None:
    """Raise Unrestorable where eager would raise at a call that is about to be dropped."""
    for node in reversed(dead_calls(graph.graph, graph.is_output)):
        if node.op not in ("call_function", "call_method") or _is_view(node):
            continue
        error = _refusal(node)
        if error is not None:
            what = f"{type(error).__name__}: {error}"
            reason = TorchCallFailed.of(name=call_name(node.target), error=what)
            raise Unrestorable("a call", node.meta["step"], reason)


def _refusal(node: Node) -> Exception | None:
    spec = next(specs_in(node), None)
    if spec is None:
        return None
    args, kwargs = map_nodes((node.args, node.kwargs), lambda arg: as_torch(value_of(arg)))
    name = target_name(node.target)  # type: ignore[arg-type]
    given, named = with_hints(args), with_hints(kwargs)
    return why_refused(node.target, name, given, named, spec.device)  # type: ignore[arg-type]


def _is_view(node: Node) -> bool:
    """It shares memory, so the meta function has looked at each of its strides as a kernel does."""
    memory = storage_of(node)
    return any(storage_of(source) == memory for source in node.all_input_nodes)
