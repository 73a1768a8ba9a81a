"""The pointwise ATen operations: their overloads, their cost, and how operands are promoted."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ...operators.operation import overloads_named, rows
from ...torch_types import Args, OpOverload

__all__ = [
    "promoted_categories",
    "takes_wrapped_number",
    "tensor_first",
    "work_of",
]

_OVERLOADS = ("default", "Tensor", "Scalar", "Tensor_Tensor", "Tensor_Scalar", "self")


def tensor_first(name: str) -> list[OpOverload]:
    """Return the functional overloads of a packet whose first operand is a tensor."""
    return [op for op in overloads_named(name) if op._overloadname in _OVERLOADS]


_WORK: Mapping[object, int] = {
    op: row.work for name, row in rows() if row.work for op in tensor_first(name)
}


def work_of(op: object) -> int:
    """Return the additions that an element of a pointwise operation costs; 0 for all others."""
    return _WORK.get(op, 0)


def promoted_categories(
    sized: torch.dtype | None, scalar: torch.dtype | None, number: torch.dtype | None
) -> torch.dtype | None:
    """Return the common dtype of c10's categories: tensors with dimensions, 0-dim tensors, Python
    numbers; None for those without operands.
    """
    return _over(sized, _over(scalar, number))


def _over(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    """Combine two categories: the lower one counts only if it is of a higher kind of number."""
    if higher is None or lower is None:
        return lower if higher is None else higher
    if higher.is_floating_point:
        return higher
    if higher is torch.bool or lower.is_floating_point:
        return torch.promote_types(higher, lower)
    return higher


def takes_wrapped_number(op: OpOverload, args: Args) -> bool:
    """Return whether the only tensor is a wrapped number, which dispatch modes see as a number.

    jvp and vmap copy and expand such numbers. Kernels accept them, jitmagic's rules do not.
    """
    return (
        bool(args)
        and isinstance(args[0], int | float | complex | torch.SymInt)
        and isinstance(op._schema.arguments[0].type, torch.TensorType)
        and not any(isinstance(arg, torch.Tensor) for arg in args)
    )
