"""Packs what several collectives send into one tensor, and takes their results out of the joined
one's.

In: collectives of one kind, and the nodes that they read in a new graph. Out: ATen calls there.
Parts are flat. What a scatter reads, and what a gather returns, has a row for each rank, in which
all its parts are. Results are copies, as they may leave the graph, where each has memory of its
own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch.fx import Graph, Node

from ...lazy_dataclass import replace
from ...spec import TensorSpec, contiguous_strides
from ...symbols.size import Dimension, is_same
from ..lazy_module import add_node

__all__ = ["PACKED", "is_contiguous", "write_joined"]

aten = torch.ops.aten
_GATHERS, _SCATTERS = "all_gather_into_tensor", "reduce_scatter_tensor"
PACKED = (_GATHERS, _SCATTERS, "all_reduce", "broadcast")
"""Kinds of collectives that can be packed."""


def is_contiguous(spec: TensorSpec) -> bool:
    """Return whether a tensor is row-major in every call, without adding a guard."""
    sides = zip(spec.shape, spec.stride, contiguous_strides(spec.shape), strict=True)
    return all(
        (type(extent) is int and extent < 2) or is_same(step, wanted)
        for extent, step, wanted in sides
    )


def write_joined(
    graph: Graph, kind: str, members: Sequence[Node], sent: Sequence[Node]
) -> list[Node]:
    """Add the collective that does what `members` do with the nodes `sent`; return the results."""
    write, first = _Writer(graph, members[0]), members[0]
    gathers, scatters = kind == _GATHERS, kind == _SCATTERS
    parts = [_numel(node) for node in (sent if gathers else members)]
    ranks, total = _ranks(first) if gathers or scatters else 1, sum(parts)
    rows = (ranks,) if scatters else ()
    flat = [write.view(one, (*rows, n)) for one, n in zip(sent, parts, strict=True)]
    packed = write.call(aten.cat.default, (flat, len(rows)), (*rows, total))
    if scatters:
        packed = write.view(packed, (ranks * total,))
    size = ranks * total if gathers else total
    joined = write.call(first.target, (packed, *first.args[1:]), (size,), name=f"joined_{kind}")
    if gathers:
        joined = write.view(joined, (ranks, total))
    starts = accumulate(parts, initial=0)
    places = zip(starts, parts, strict=False)  # the last of the starts is the end
    return [write.part(joined, node, *place) for node, place in zip(members, places, strict=True)]


def _numel(node: Node) -> Any:
    return math.prod(node.meta["spec"].shape)


def _ranks(node: Node) -> int:
    """Return the argument `group_size`."""
    target: Any = node.target
    names = [argument.name for argument in target._schema.arguments]
    count: Any = node.args[names.index("group_size")]
    return int(count)


class _Writer:
    """Adds calls with their specs, and the lines of one of the collectives."""

    def __init__(self, graph: Graph, like: Node) -> None:
        spec: TensorSpec = like.meta["spec"]
        self._graph, self._lines = graph, like.meta.get("lines", ())
        self._spec = TensorSpec((), (), spec.dtype, spec.device)

    def call(
        self, op: Any, args: tuple[Any, ...], shape: tuple[Any, ...], name: str | None = None
    ) -> Node:
        """Add a call whose result is contiguous."""
        node = add_node(self._graph, "call_function", op, args, {}, name=name)
        spec = replace(self._spec, shape=shape, stride=contiguous_strides(shape))
        node.meta.update(spec=spec, lines=self._lines)
        return node

    def view(self, node: Node, shape: tuple[Any, ...], name: str | None = None) -> Node:
        """Add a view of a tensor, or of a contiguous copy."""
        if not is_contiguous(node.meta["spec"]):
            node = self._copy(node)
        return self.call(aten.view.default, (node, list(shape)), shape, name)

    def part(self, joined: Node, member: Node, start: Dimension, size: Dimension) -> Node:
        """Add the result of a member: a copy of a slice of the last dimension."""
        whole: TensorSpec = joined.meta["spec"]
        place = len(whole.shape) - 1
        shape = (*whole.shape[:-1], size)
        cut = self.call(aten.slice.Tensor, (joined, place, start, start + size), shape)
        cut.meta["spec"] = replace(cut.meta["spec"], stride=whole.stride, storage_offset=start)
        return self.view(self._copy(cut), member.meta["spec"].shape, member.name)

    def _copy(self, node: Node) -> Node:
        made = self.call(aten.clone.default, (node,), node.meta["spec"].shape)
        made.kwargs = {"memory_format": torch.contiguous_format}
        return made
