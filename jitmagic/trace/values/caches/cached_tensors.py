"""Makes tensors in a functools.lru_cache inputs of the graph, read from the cache at each call.

Input: a cached function called with constants, and the tensors that the wrapped function returned
while it was traced, under guards for its reads. Output: graph inputs. Other callers share the
tensors, so returning one from the frame, or writing to one, is a graph break before the call.

A cache that was filled under another state of torch (another default dtype) may hold a tensor of
another spec, so each call checks it. On a mismatch eager runs the call from its start, the variant
becomes invalid, and the next call compiles with a graph break at the cached call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from ....graph.builder import GraphBuilder
from ....graph.memory import storage_of
from ....graph.node_meta import device_of
from ....guards.function_cache import cached_result
from ....guards.guard import StateRead
from ....lazy_dataclass import dataclass
from ....spec import TensorSpec, spec_of
from ...breaks import GraphBreak
from ...result import BreakReason
from ..base import Args, Builder, CannotRebuild, Kwargs, Machine, Value
from ..containers.sequences import TupleValue
from ..tensors.draws import constant_argument, drawn_tensor
from ..tensors.tensor import TensorValue

__all__ = ["tensors_of_cache"]


@dataclass(eq=False, slots=True)
class _CacheRead:
    """A call of the cached function, which checks that the result has the traced spec."""

    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    key: object
    item: int | None  # of a tuple
    spec: TensorSpec
    refused: bool = False

    def __call__(self, cached: Any) -> object:
        held = _item(self._result_of(cached), self.item)
        if not _is(held, self.spec):
            self.refused = True
            name, now = cached.__name__, _described(held)
            raise RuntimeError(f"the cache of {name}() holds {now} now, not {self.spec}")
        return held

    def _result_of(self, cached: Any) -> object:
        """Return the cached result.

        For a tuple, only the read of the first item calls the function, so that the statistics of
        the cache count one call.
        """
        if not self.item:
            return cached(*self.args, **self.kwargs)
        return cached_result(cached, self.key)

    def cache_holds_another_kind(self) -> bool:
        """Return whether a call has found another kind of tensor; read by a guard."""
        return self.refused


def tensors_of_cache(
    machine: Machine,
    cached: Any,
    call: tuple[Args, Kwargs],
    key: object,
    made: Value,
    beneath: Sequence[Node],
    reason: BreakReason,
) -> Value | None:
    """Return the cached tensors as inputs, or None if the result is no tensor or tuple of tensors.

    `beneath` has the nodes that tracing the call recorded. Raises GraphBreak with `reason` if they
    do not allow the cache to be read before the graph runs.
    """
    parts = made.realized(machine) if type(made) is TupleValue else [made]
    tensors = [part for part in parts if isinstance(part, TensorValue) and part.source is None]
    if not tensors or len(tensors) < len(parts):
        return None
    graph, broken = machine.graph, GraphBreak(reason)
    # The cache is read before the graph runs: an effect of the program that precedes this call
    # would come after the read.
    if machine.effects.has_effects_besides_gradients() or not _is_early(graph, beneath):
        raise broken
    args = tuple(constant_argument(machine, arg, broken) for arg in call[0])
    kwargs = {name: constant_argument(machine, arg, broken) for name, arg in call[1].items()}
    found: list[Value] = []
    for number, tensor in enumerate(tensors):
        # A guard reads `refused`: after a mismatch the variant never matches again, and the next
        # call compiles with a visible break at the cached call.
        item = None if tensor is made else number
        spec = _spec(graph, tensor)
        if spec is None:
            raise broken
        read = _CacheRead(args, kwargs, key, item, spec)
        machine.guard(StateRead(read.cache_holds_another_kind, False, True))
        name = f"{cached.live.__name__}()"
        drawn = drawn_tensor(machine, name, machine.effects.draw(cached, read, name), spec)
        _break_if_escaping(machine, drawn, reason)
        found.append(drawn)
    return TupleValue(found) if type(made) is TupleValue else found[0]


def _spec(graph: GraphBuilder, made: TensorValue) -> TensorSpec | None:
    """Return the spec that the cached tensor must have; None if the trace cannot know it."""
    meta = made.meta
    as_at_entry = (graph.grad_enabled, graph.autocast) == graph.entry_modes
    # A miss fills the cache in the state at entry, where autocast or grad mode may differ from
    # here.
    certain = as_at_entry and made.node not in graph.unknown_strides
    plain = type(meta) is torch.Tensor and meta.layout == torch.strided and not meta.requires_grad
    if not graph.is_frame or graph.inference.is_on or not certain or not plain:
        return None
    shape, strides = tuple(meta.shape), tuple(meta.stride())
    if any(type(number) is not int for number in (*shape, *strides)) or meta.storage_offset():
        return None
    return TensorSpec(shape, strides, meta.dtype, device_of(made.node))


def _is_early(graph: GraphBuilder, nodes: Sequence[Node]) -> bool:
    """Return whether nodes compute the same result before the graph as in it.

    That is so if they draw no random numbers and read no memory that the graph writes to.
    """
    read = dict.fromkeys(source for node in nodes for source in (node, *node.all_input_nodes))
    return not any(n.meta.get("random") for n in nodes) and not any(map(graph.writes.to, read))


def _break_if_escaping(machine: Machine, tensor: TensorValue, reason: BreakReason) -> None:
    graph = machine.graph
    created_at_step = machine.step
    memory = storage_of(tensor.node)

    def check(builder: Builder) -> None:
        aliases = [node for node in graph.graph.nodes if storage_of(node) == memory]
        if any(map(graph.is_output, aliases)) or graph.writes.to(tensor.node):
            raise CannotRebuild("a tensor in a functools cache", created_at_step, reason)

    machine.at_exit(check)


def _item(held: object, item: int | None) -> object:
    """Return the cached object, or the item of a cached tuple at that index."""
    if item is None:
        return held
    return held[item] if type(held) is tuple and item < len(held) else None


def _is(held: object, spec: TensorSpec) -> bool:
    return type(held) is torch.Tensor and spec_of(held) == spec


def _described(held: object) -> str:
    return str(spec_of(held)) if isinstance(held, torch.Tensor) else type(held).__name__
