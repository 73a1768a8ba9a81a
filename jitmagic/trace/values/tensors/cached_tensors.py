"""Tensors that a functools.lru_cache keeps: the frame asks the cache before its graph runs.

Comes in: a cached function called with constants, and the tensor, or tuple of them, that the
function beneath was found to make, under guards for what it reads. Goes out: inputs of the graph,
which the cache gives at each call. They are everybody's: an exit that would hand one out, or a
write to one, ends the trace before the call. A cache that was filled while torch's state was
another (the default dtype, say) may hold another kind of tensor: that is looked up now, and checked
at each call. A call that finds another kind starts over in eager and leaves the entry dead, so
that the next one compiles for what the cache holds: a break.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from ....graph.builder import GraphBuilder
from ....graph.memory import storage_of
from ....graph.node_meta import device_of
from ....guards.function_cache import cached_result
from ....guards.guard import StateRead
from ....spec import TensorSpec, spec_of
from ...breaks import GraphBreak
from ...result import BreakReason
from ..base import Args, Builder, Kwargs, Machine, Unrestorable, Value
from ..containers.sequences import TupleValue
from ..contexts.random_streams import constant_argument, drawn_tensor
from .tensor import TensorValue

__all__ = ["tensors_of_cache"]


@dataclass(eq=False, slots=True)
class _Ask:
    """The call of the cached function, whose result has to be what the graph was made for."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    key: object
    item: int | None  # of a tuple
    spec: TensorSpec
    refused: bool = False

    def __call__(self, cached: Any) -> object:
        kept = _item(self._result_of(cached), self.item)
        if not _is(kept, self.spec):
            self.refused = True
            name, now = cached.__name__, _described(kept)
            raise RuntimeError(f"the cache of {name}() holds {now} now, not {self.spec}")
        return kept

    def _result_of(self, cached: Any) -> object:
        """Only the first item of a tuple asks by a call, which counts."""
        if not self.item:
            return cached(*self.args, **self.kwargs)
        return cached_result(cached, self.key)

    def cache_holds_another_kind(self) -> bool:
        """Whether a call has found so; for a guard."""
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
    """The cache's tensors, where the nodes beneath, which made some, tell nothing against asking
    for them before the graph runs; GraphBreak for that reason else. None: there are no tensors.
    """
    parts = made.realized(machine) if type(made) is TupleValue else [made]
    tensors = [part for part in parts if isinstance(part, TensorValue) and part.source is None]
    if not tensors or len(tensors) < len(parts):
        return None
    graph, broken = machine.graph, GraphBreak(reason)
    if machine.effects.has_effects_besides_gradients() or not _is_early(graph, beneath):
        raise broken
    args = tuple(constant_argument(machine, arg, broken) for arg in call[0])
    kwargs = {name: constant_argument(machine, arg, broken) for name, arg in call[1].items()}
    found: list[Value] = []
    for number, tensor in enumerate(tensors):
        item = None if tensor is made else number
        spec = _spec(graph, tensor)
        if spec is None:
            raise broken
        ask = _Ask(args, kwargs, key, item, spec)
        machine.guard(StateRead(ask.cache_holds_another_kind, False, True))
        name = f"{cached.live.__name__}()"
        drawn = drawn_tensor(machine, name, machine.effects.draw(cached, ask, name), spec)
        _keep_inside(machine, drawn, reason)
        found.append(drawn)
    return TupleValue(found) if type(made) is TupleValue else found[0]


def _spec(graph: GraphBuilder, made: TensorValue) -> TensorSpec | None:
    """What the cache has to hold; None where only the call tells."""
    meta = made.meta
    as_at_entry = (graph.grad_enabled, graph.autocast) == graph.entry_modes
    certain = as_at_entry and made.node not in graph.unknown_strides
    plain = type(meta) is torch.Tensor and meta.layout == torch.strided and not meta.requires_grad
    if graph is not graph.root or graph.inference.is_on or not certain or not plain:
        return None
    shape, strides = tuple(meta.shape), tuple(meta.stride())
    if any(type(number) is not int for number in (*shape, *strides)) or meta.storage_offset():
        return None
    return TensorSpec(shape, strides, meta.dtype, device_of(made.node))


def _is_early(graph: GraphBuilder, nodes: Sequence[Node]) -> bool:
    """Whether these give before the graph what they give in it: they draw no random numbers, and
    read no memory that the graph writes to.
    """
    read = dict.fromkeys(source for node in nodes for source in (node, *node.all_input_nodes))
    return not any(n.meta.get("random") for n in nodes) and not any(map(graph.writes.to, read))


def _keep_inside(machine: Machine, tensor: TensorValue, reason: BreakReason) -> None:
    graph = machine.graph
    born = machine.step
    memory = storage_of(tensor.node)

    def check(builder: Builder) -> None:
        over = [node for node in graph.graph.nodes if storage_of(node) == memory]
        if any(map(graph.is_output, over)) or graph.writes.to(tensor.node):
            raise Unrestorable("a tensor that a cache keeps", born, reason)

    machine.at_exit(check)


def _item(kept: Any, item: int | None) -> object:
    """The cache's tensor, or the one at that place of its tuple."""
    if item is None:
        return kept
    return kept[item] if type(kept) is tuple and item < len(kept) else None


def _is(kept: object, spec: TensorSpec) -> bool:
    return type(kept) is torch.Tensor and spec_of(kept) == spec


def _described(kept: object) -> str:
    return str(spec_of(kept)) if isinstance(kept, torch.Tensor) else type(kept).__name__
