"""Offers the partition copies of inputs, to save in place of larger values.

In: a joint graph. `offer_copies` puts a copy between inputs that backward cannot read and their
readers; `withdraw_copies` takes those away that the partition does not save. Eager lets the caller
write to these inputs before backward, so that the input itself cannot be saved:

  - one in half precision that is cast to a wider dtype. The copy has half the bytes of any value
    that follows, and is written by the kernel that reads the input (cross-entropy from bfloat16
    logits: 2 bytes an element for the copy, 4 for the log-probabilities);
  - a small one that is spread over a large tensor, as a norm's bias. With it the large tensor can
    be computed again: the mask of relu after batch norm, which is then not read from its result.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.fx import Node

from ..devices import row_of
from ..operators.operation import work_of
from ..spec import TensorSpec
from .memory_budget import spec_elements
from .nodes import is_view, placeholders
from .result import Joint

__all__ = ["offer_copies", "withdraw_copies"]

aten = torch.ops.aten
_NARROW = (torch.float16, torch.bfloat16)
_WIDE = (torch.float32, torch.float64)
# Elements of a result: reading so many twice takes as long as the kernel that writes the copy.
_LARGE = 2**22
_SPREAD = 64  # and for one of the input


def offer_copies(joint: Joint) -> list[Node]:
    """Copy the inputs that backward cannot read and that it may need, in place; return the
    copies.
    """
    inputs = placeholders(joint.module)[: len(joint.inputs)]
    made = []
    for place, node in enumerate(inputs):
        if node in joint.eager_saved or place in joint.mutated_inputs or "spec" not in node.meta:
            continue
        readers = [user for user in node.users if _widens(user, node) or _spreads(user, node)]
        if readers:
            made.append(_copy_for(node, readers))
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


def _spreads(user: Node, source: Node) -> bool:
    """Return whether an operation over a much larger tensor reads the input, maybe by a view or a
    cast of it.
    """
    spec = source.meta["spec"]
    if not row_of(spec.device).rereads or not spec.dtype.is_floating_point:
        return False
    if is_view(user) or user.target is aten._to_copy.default:
        return any(_spreads(reader, source) for reader in user.users)
    made = user.meta.get("spec")
    if not isinstance(made, TensorSpec) or not work_of(user.target):
        return False
    count = spec_elements(made)
    return count >= _LARGE and count >= _SPREAD * spec_elements(spec)


def _copy_for(node: Node, readers: list[Node]) -> Node:
    first = min(readers)
    graph = node.graph
    with graph.inserting_before(first):
        copied = graph.call_function(aten.clone.default, (node,))
    copied.meta.update(spec=node.meta["spec"], lines=first.meta.get("lines", ()))
    for reader in readers:
        reader.replace_input_with(node, copied)
    return copied
