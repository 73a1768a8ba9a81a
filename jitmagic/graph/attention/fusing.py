"""Replaces the attention of a graph by calls of scaled_dot_product_attention or flex_attention.

In: a torch-level graph, before autograd sees it. Out: `Fused`: an edited copy, or the graph itself,
and a sentence about each attention. A kernel may refuse its arguments when it is chosen, which is
while the graph is traced: `index_of` says which attention to leave out then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

from torch.fx import Graph, GraphModule, Node

from ...late import late_names
from ..lazy_module import LazyModule, copy_with
from ..nested import map_nodes
from .reading import NotFusible, Program

if TYPE_CHECKING:
    from .matching import Attention, attention_at
    from .writing import write
else:
    late_names(
        globals(), {"graph.attention.matching": "attention_at", "graph.attention.writing": "write"}
    )

__all__ = ["Fused", "fuse_attention"]

_PRODUCTS = frozenset({"matmul", "bmm", "mm", "einsum"})
REFUSED = "no fused kernel takes its arguments"


class Fused(NamedTuple):
    """A graph with fused attention. `index_of`: the number of the attention of each call."""

    module: GraphModule
    notes: tuple[str, ...] = ()
    index_of: Mapping[Node, int] = {}


def fuse_attention(gm: GraphModule, is_exact: bool, refused: Collection[int] = ()) -> Fused:
    """Fuse what is written out. `is_exact`: no bias is rounded to fewer digits.
    `refused`: numbers of attentions to leave as they are.
    """
    if not any(_name(node) == "softmax" for node in gm.graph.nodes):
        return Fused(gm)
    program = Program(gm)
    copies: dict[Node, Node] = {}
    graph = _copied(gm.graph, copies)
    notes: list[str] = []
    index_of: dict[Node, int] = {}
    number = 0
    for node in gm.graph.nodes:
        if _name(node) not in _PRODUCTS:
            continue
        try:
            found = attention_at(program, node)
        except NotFusible as why:
            notes += [f"attention stays written out: {why}"] if str(why) else []
            continue
        number += 1
        try:
            if number in refused:
                raise NotFusible(REFUSED)
            made = write(program, found, graph, copies, is_exact)
        except NotFusible as why:
            notes.append(_note(found, f"stays: {why}"))
            continue
        index_of[made] = number
        notes.append(_note(found, f"-> {_name(made)}"))
    notes = list(dict.fromkeys(notes))
    if not index_of:
        return Fused(gm, tuple(notes))
    graph.lint()
    return Fused(LazyModule(gm, graph), tuple(notes), index_of)


def _note(found: Attention, text: str) -> str:
    return f"attention written out at line {found.line} {text}"


def _name(node: Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _copied(graph: Graph, copies: dict[Node, Node]) -> Graph:
    copied = Graph()
    for node in graph.nodes:
        args, kwargs = map_nodes((node.args, node.kwargs), copies.__getitem__)
        copy = copies[node] = copy_with(copied, node, args, kwargs)
        copy.meta = dict(node.meta)
    return copied
