"""Annotates what user-defined autograd functions record, whose backward need not be linear.

Torch's own backward formulas are linear in their tangents: values that depend on missing tangents
alone are zero. Eager runs a user-defined backward if any gradient reaches it, passes zeros for the
missing ones, and the backward may compute anything from them. Each node that such a backward
records is therefore annotated with the tangents it depends on (`meta["tangents"]`), taken from the
autograd history and not from data flow. So are the zeros that some torch formulas return without
reading the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Sequence

from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node as GradNode
from torch.fx import Node

from ...compat.autograd import current_node
from ...errors import CompileFailed
from ...graph.linked_history import history_of
from ...graph.reach import ancestors
from .sym import Sym
from .traced import Traced

__all__ = [
    "TangentsByNode",
    "check_gradients",
    "check_unwritten",
    "custom_nodes",
    "tangents_by_node",
]

TangentsByNode = dict[GradNode, tuple[int, ...]]


def custom_nodes(results: Sequence[Traced], hooked: Container[GradNode]) -> TangentsByNode:
    """Return the autograd nodes of user-defined functions in the history of the results, and the
    `hooked` ones.
    """
    return tangents_by_node(results, lambda node: node in hooked or _is_programs(node))


def _is_programs(node: object) -> bool:
    # Python autograd functions only: nodes of C++ functions are torch's formulas, which are linear.
    return isinstance(node, BackwardCFunction) and not getattr(node, "is_linear", False)


def tangents_by_node(
    results: Sequence[Traced], wanted: Callable[[GradNode], bool]
) -> TangentsByNode:
    """Return the `wanted` autograd nodes of the history, each with the positions of its results."""
    found: dict[GradNode, tuple[int, ...]] = {}
    for place, result in enumerate(results):
        for node in filter(wanted, history_of([result])):
            found[node] = (*found.get(node, ()), place)
    return found


# If every result always gets its tangent, a gradient that depends on none of them is simply right.
def check_gradients(nodes: TangentsByNode, tangents: Collection[Node]) -> None:
    """Make each node refuse gradients that depend on no tangent, if the backward may run without
    it. In such a backward the node would not know that its gradients are missing.
    """
    for node, own in nodes.items():
        if len(own) < len(tangents):
            node.register_hook(lambda made, given: _finish(nodes, made, tangents))


def check_unwritten(given: Sequence[Sym], now: Sequence[Sym]) -> None:
    """Refuse a backward that has written to the gradients that its caller passes, and may read."""
    if [sym.node for sym in given] != [sym.node for sym in now]:
        raise CompileFailed("it writes to the gradient of a result, which others may read")


def _finish(nodes: TangentsByNode, made: Sequence[object], tangents: Collection[Node]) -> None:
    # The engine then adds the gradients to those of other nodes, while this is the current node.
    nodes.pop(current_node(), None)
    _refuse_independent(made, tangents)


def _refuse_independent(made: Sequence[object], tangents: Collection[Node]) -> None:
    for gradient in made:
        if not isinstance(gradient, Traced):
            continue
        if ancestors([gradient.sym.node]).isdisjoint(tangents):
            raise CompileFailed(
                "an autograd function returns a gradient that depends on no tangent"
            )
