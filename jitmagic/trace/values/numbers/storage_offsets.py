"""Calls that address the storage of a tensor by offsets from its start: as_strided and its like.

Comes in: a call about to be recorded. Goes out: a guard that a graph input begins where its storage
does, so that offsets from there are offsets into its elements; or a break where it does not. An
offset left out counts from the tensor's first element and needs no guard.
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
    """Fix where the tensor of a call with `storage_offset=` begins, if its memory is an input's."""
    place = _offset_place(target_name(target))
    if place is None:
        return
    offset = given[place] if len(given) > place else named.get("storage_offset")
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
def _offset_place(name: str) -> int | None:
    """Which argument of the operator of that name is an offset into the storage of the first."""
    packet = getattr(torch.ops.aten, name, None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return None
    arguments = getattr(packet, packet.overloads()[0])._schema.arguments
    names = [argument.name for argument in arguments]
    return names.index("storage_offset") if "storage_offset" in names[1:] else None
