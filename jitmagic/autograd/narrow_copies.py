"""Offers the partition copies of inputs in their narrow dtype, to save in place of wide values.

In: a joint graph. `offer_copies` puts a copy between each half-precision input and its casts to a
wider dtype; `withdraw_copies` takes those away that the partition does not save. Eager saves the
wide values that follow from such a cast, and lets the caller write to the input before backward: so
the input itself cannot be saved, but a copy has half the bytes of any value that follows. It is
written by the kernel that reads the input (cross-entropy from bfloat16 logits: 2 bytes an element
for the copy, 4 for the log-probabilities).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.fx import Node

from .nodes import placeholders
from .result import Joint

__all__ = ["offer_copies", "withdraw_copies"]

aten = torch.ops.aten
_NARROW = (torch.float16, torch.bfloat16)
_WIDE = (torch.float32, torch.float64)


def offer_copies(joint: Joint) -> list[Node]:
    """Copy the inputs that backward cannot read and whose wide forms it may need, in place; return
    the copies.
    """
    inputs = placeholders(joint.module)[: len(joint.inputs)]
    made = []
    for place, node in enumerate(inputs):
        is_free = node not in joint.eager_saved and place not in joint.mutated_inputs
        casts = [user for user in node.users if _widens(user, node)] if is_free else []
        if casts:
            made.append(_copy_for(node, casts))
    return made


def withdraw_copies(copies: Iterable[Node]) -> None:
    """Let the casts read the inputs again."""
    for copied in copies:
        (source,) = copied.all_input_nodes
        copied.replace_all_uses_with(source)
        copied.graph.erase_node(copied)


def _widens(user: Node, source: Node) -> bool:
    if user.target is not aten._to_copy.default:
        return False
    return source.meta["spec"].dtype in _NARROW and user.meta["spec"].dtype in _WIDE


def _copy_for(node: Node, casts: list[Node]) -> Node:
    first = min(casts)
    graph = node.graph
    with graph.inserting_before(first):
        copied = graph.call_function(aten.clone.default, (node,))
    copied.meta.update(spec=node.meta["spec"], lines=first.meta.get("lines", ()))
    for cast in casts:
        cast.replace_input_with(node, copied)
    return copied
