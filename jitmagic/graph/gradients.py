"""Computes gradients inside a graph as torch.autograd.grad and backward() do.

`gradients` is a call of the autograd engine that a graph can hold. `first_gradient` and
`copied_gradient` give what backward() stores in a leaf that has no gradient yet.

Input: outputs, inputs and the gradients of the outputs, as tensors of any kind with a history: real
tensors, meta tensors of the trace, or tensors of the joint trace, which records what the engine
runs. Output: a gradient for each input, None where no history leads to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from ..compat.autograd import run_backward
from .linked_history import history_of
from .node_meta import tensors_in
from .operators.tensor_iterator import dense
from .propagate import DataDependent

__all__ = [
    "copied_gradient",
    "first_gradient",
    "gradients",
    "has_freed_history",
    "history_of",
    "is_stale",
    "reachable_leaves",
    "refuse_sparse",
]


def gradients(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    incoming: Sequence[torch.Tensor],
    keep: bool,
    create: bool,
    unused: bool,
    hooked: Sequence[torch.Tensor] = (),
    replaced: Sequence[torch.Tensor] = (),
) -> tuple[torch.Tensor | None, ...]:
    """Compute torch.autograd.grad without its import of sympy (0.3 s). `replaced` are the gradients
    that hooks substitute for those of `hooked`.
    """
    pairs = zip(hooked, replaced, strict=True)
    handles = [tensor.register_hook(lambda _, new=new: new) for tensor, new in pairs]
    try:
        made = run_backward(outputs, incoming, inputs, keep=keep, create=create, unused=unused)
    finally:
        for handle in handles:
            handle.remove()
    found: tuple[torch.Tensor | None, ...] = tuple(made)
    return found


def first_gradient(gradient: torch.Tensor, leaf: torch.Tensor, own: bool) -> torch.Tensor:
    """Return the gradient as AccumulateGrad stores it: in the leaf's layout if that is dense, else
    row-major. A gradient that the engine created for this leaf alone (`own`) is not copied if its
    layout fits already.
    """
    with torch.no_grad():
        if own and _lies_like(gradient, leaf):
            return gradient.detach()
        if leaf.is_contiguous() or not dense(tuple(leaf.shape), leaf.stride()):
            return gradient.clone(memory_format=torch.contiguous_format)
        return torch.empty_like(leaf, memory_format=torch.preserve_format).copy_(gradient)


def copied_gradient(gradient: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    """Return the gradient as AccumulateGrad stores it under create_graph=True: a copy with a
    history, in the leaf's layout.
    """
    if not dense(tuple(leaf.shape), leaf.stride()):
        return gradient.clone(memory_format=torch.contiguous_format)
    return gradient.new_empty_strided(leaf.shape, leaf.stride()).copy_(gradient)


def _lies_like(gradient: torch.Tensor, leaf: torch.Tensor) -> bool:
    """Check torch's gradient layout contract (accumulate_grad.h); strides of extents 1 are
    ignored.
    """
    if not dense(tuple(leaf.shape), leaf.stride()):
        return gradient.is_contiguous()
    sides = zip(leaf.shape, gradient.stride(), leaf.stride(), strict=True)
    return all(extent == 1 or ours == wanted for extent, ours, wanted in sides)


def refuse_sparse(computed: object) -> None:
    """Raise DataDependent if a gradient is sparse: its number of rows depends on the data."""
    if any(tensor.layout is not torch.strided for tensor in tensors_in(computed)):
        raise DataDependent("a gradient is sparse")


def has_freed_history(result: torch.Tensor) -> bool:
    """Return whether a backward from the tensor raises because an earlier one freed part of its
    history.

    The autograd nodes are inspected instead of run: meta tensors have no data, and sizes may not be
    ints.
    """
    again = "backward through the graph a second time"
    return any(_refuses_saved(node, again) for node in history_of([result]))


def reachable_leaves(outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the leaves to which backward() of the outputs would add gradients, in the engine's
    order.
    """
    leaves = {id(t): t for t in outputs if t.grad_fn is None and t.requires_grad}
    for node in history_of(outputs):
        if (leaf := getattr(node, "variable", None)) is not None:
            leaves[id(leaf)] = leaf
    return list(leaves.values())


def is_stale(node: object) -> bool:
    """Return whether an autograd node has saved a tensor that was written to since, so that it
    raises when it runs.
    """
    return _refuses_saved(node, "modified by an inplace operation")


def _refuses_saved(node: Any, text: str) -> bool:
    """Return whether reading one of the node's saved tensors raises an error with this text."""
    return any(text in _refusal(node, name) for name in _names_of_saved(node.__class__))


@lru_cache(maxsize=4096)
def _names_of_saved(kind: type) -> tuple[str, ...]:
    """Return the attributes with saved tensors: one per tensor in C++ nodes, one in all for Python
    functions.
    """
    names = [name for name in dir(kind) if name.startswith("_saved_")]
    return tuple(names) if names or not hasattr(kind, "saved_tensors") else ("saved_tensors",)


def _refusal(node: object, name: str) -> str:
    """Return the error message of unpacking a saved tensor, which compares versions; "" if there is
    none.
    """
    try:
        getattr(node, name)
    except RuntimeError as error:
        return str(error)
    return ""
