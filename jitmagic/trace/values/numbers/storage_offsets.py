"""Guards calls with an offset from the start of a storage: as_strided and similar operators.

Input: a call about to be recorded. Output: a guard that a graph input has storage offset 0, so that
offsets into the storage equal offsets into the input; otherwise a graph break. An omitted offset
counts from the tensor's first element and needs no guard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch.fx import Node

from ....graph.propagate import Target, call_name, target_name
from ....guards.guard import SizesRelate
from ....symbols.expr import Integer
from ....symbols.interval import INT64
from ....symbols.scalar import Symbol
from ....symbols.size import OffsetOf
from ...breaks import GraphBreak, RefusedTorchCall
from ..base import Machine

__all__ = ["guard_storage_offsets"]


def guard_storage_offsets(
    machine: Machine, target: Target, given: Sequence[Any], named: Mapping[str, Any]
) -> None:
    """Guard the storage offset of inputs that share memory with the tensor of such a call."""
    index = _offset_index(target_name(target))
    if index is None:
        return
    offset = given[index] if len(given) > index else named.get("storage_offset")
    tensor = given[0] if given else named.get("input")
    if offset is None or not isinstance(tensor, Node):
        return
    graph = machine.graph
    for node in graph.inputs_sharing(tensor):
        if graph is not graph.root or node.meta["spec"].storage_offset:
            why = "its offset counts from the start of a storage that begins before the tensor"
            raise GraphBreak(RefusedTorchCall.of(name=call_name(target), why=why))
        begin = Symbol("offset", int, INT64, OffsetOf(machine.notes.inputs[node].source))
        machine.guard(SizesRelate("==", begin, Integer(0)))


@cache
def _offset_index(name: str) -> int | None:
    """Return the index of the `storage_offset` argument of an operator, or None."""
    packet = getattr(torch.ops.aten, name, None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return None
    arguments = getattr(packet, packet.overloads()[0])._schema.arguments
    names = [argument.name for argument in arguments]
    return names.index("storage_offset") if "storage_offset" in names[1:] else None
