"""Lets kernels choose the strides of values that only the backward reads.

In: a Partition, and the layouts in which the built forward returns such values. Out: a Partition
whose backward takes them in those layouts. Results and inputs, which the user sees, never change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch.fx import Graph

from .nodes import module_of
from .result import Partition

__all__ = ["SavedLayouts"]


class SavedLayouts:
    """The last `count` outputs of a partition's forward, which only its backward reads."""

    __slots__ = ("_parts", "_strides", "count")

    def __init__(self, parts: Partition) -> None:
        self._parts, self.count = parts, parts.saved_intermediates
        self._strides: Mapping[int, tuple[int, ...]] = {}

    def set_strides(self, strides: Mapping[int, tuple[int, ...]]) -> None:
        """Set the strides of forward outputs (by position) that kernels lay out differently."""
        self._strides = strides

    def with_final_strides(self) -> Partition:
        """Return the partition with the backward's placeholders laid out as the forward returns
        them.
        """
        parts = self._parts
        if not self._strides or parts.backward is None:
            return parts
        old, graph = parts.backward.graph, Graph()
        graph.output(graph.graph_copy(old, {}))
        graph.output_node().meta.update(old.output_node().meta)
        holders = [node for node in graph.nodes if node.op == "placeholder"]
        first = len(parts.saved_inputs) + len(parts.saved_results) - parts.results
        for place, stride in self._strides.items():
            node = holders[first + place]
            spec = node.meta["spec"]
            node.meta.update(traced_stride=spec.stride, spec=replace(spec, stride=stride))
        constants = dict(parts.backward.named_buffers())
        return replace(parts, backward=module_of(graph, constants, "Backward"))
