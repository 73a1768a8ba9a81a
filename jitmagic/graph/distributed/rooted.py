"""Defines operators for collectives of which torch has no functional form.

Each returns what the collective writes to its argument, including what it leaves there on ranks
other than the root; it calls torch.distributed on a copy, and waits. Tensors that only one rank has
are an empty list on the others. Roots are ranks in the group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...compat.distributed import group_named, reductions
from ...torch_types import OpOverload
from ..operators.operator_library import DEFINED, LIBRARY, defines_operators, is_registered

__all__ = ["rooted_operator"]

Tensor = torch.Tensor


def _reduce(tensor: Tensor, root: int, reduction: str, group: str) -> Tensor:
    made = tensor.clone()
    op = next(op for op, name in reductions().items() if name == reduction)
    torch.distributed.reduce(made, group_dst=root, op=op, group=group_named(group))
    return made


def _gather(tensor: Tensor, count: int, root: int, group: str) -> Tensor:
    made = tensor.new_empty((count, *tensor.shape))
    parts = list(made.unbind()) or None
    torch.distributed.gather(tensor, parts, group_dst=root, group=group_named(group))
    return made


def _scatter(like: Tensor, parts: Sequence[Tensor], root: int, group: str) -> Tensor:
    made = torch.empty_like(like)
    torch.distributed.scatter(made, list(parts) or None, group_src=root, group=group_named(group))
    return made


def _barrier(_: Tensor, group: str) -> None:
    torch.distributed.barrier(group_named(group))


_Run = Callable[..., Any]
# name -> its signature, its kernel, and its results without data
_OPERATORS: dict[str, tuple[str, _Run, _Run]] = {
    "reduce": (
        "(Tensor tensor, int root, str reduction, str group) -> Tensor",
        _reduce,
        lambda tensor, *_: tensor.clone(),
    ),
    "gather": (
        "(Tensor tensor, SymInt count, int root, str group) -> Tensor",
        _gather,
        lambda tensor, count, *_: tensor.new_empty((count, *tensor.shape)),
    ),
    "scatter": (
        "(Tensor like, Tensor[] parts, int root, str group) -> Tensor",
        _scatter,
        lambda like, *_: torch.empty_like(like),
    ),
    # Operators without a tensor argument run their kernel while a graph is made.
    "barrier": ("(Tensor any, str group) -> ()", _barrier, lambda *_: None),
}


@defines_operators
def rooted_operator(name: str) -> OpOverload:
    """Return the operator for the function of this name of torch.distributed."""
    signature, run, without_data = _OPERATORS[name]
    own = f"rooted_{name}"
    if not is_registered(own):
        LIBRARY.define(f"{own}{signature}")
        LIBRARY.impl(own, run, "CompositeExplicitAutograd")
        LIBRARY.impl(own, without_data, "Meta")
    made: OpOverload = getattr(torch.ops.jitmagic, own).default
    DEFINED[made] = rooted_operator, (name,)
    return made
