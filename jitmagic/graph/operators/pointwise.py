"""The pointwise ATen operations, by how they choose the dtype of their result.

Names are packets; `overloads` gives each functional overload with the number of its operands. Used
for shape rules and by the partitioner, to find operations that are cheap to recompute.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

import torch

from ...operators.scalar import SCALARS
from ...torch_types import Args, OpOverload

__all__ = [
    "BOOLEAN",
    "FLOATING",
    "KEEPING",
    "PROMOTING",
    "is_pointwise",
    "is_transcendental",
    "overloads",
    "promoted_categories",
    "takes_wrapped_number",
]

aten = torch.ops.aten


def _packets(rules: Container[str], unary: bool | None = None) -> dict[str, int]:
    """Return the packets whose rows have these rules, each with the number of its operands, which
    take part in broadcasting and promotion.
    """
    rows = [row for row in SCALARS.values() if row.packet and row.rule in rules]
    return {str(row.packet): row.arity for row in rows if unary in (None, row.arity == 1)}


_PROMOTING = ("arith", "arith_wide", "integral")
PROMOTING: Mapping[str, int] = {
    **_packets(_PROMOTING, unary=False),
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max"), 3),
}
FLOATING: Mapping[str, int] = _packets(("float", "float_wide"))
BOOLEAN: Mapping[str, int] = _packets(("compare", "logic", "predicate"))
KEEPING: Mapping[str, int] = _packets(_PROMOTING, unary=True)
_OVERLOADS = ("default", "Tensor", "Scalar", "Tensor_Tensor", "Tensor_Scalar", "self")


def overloads(names: Mapping[str, int]) -> Iterator[tuple[OpOverload, int]]:
    """Yield the functional tensor-first overloads of the named packets."""
    for name, operands in names.items():
        packet = getattr(aten, name)
        for overload in packet.overloads():
            if overload in _OVERLOADS:
                yield getattr(packet, overload), operands


_POINTWISE = {op for table in (PROMOTING, FLOATING, BOOLEAN, KEEPING) for op, _ in overloads(table)}
_POINTWISE |= {aten.where.self, aten._to_copy.default, aten.clone.default}
# A transcendental function costs at least as much as exp, ten additions.
_COSTLY = {str(row.packet): row.arity for row in SCALARS.values() if row.packet and row.cost >= 10}
_TRANSCENDENTAL = {op for op, _ in overloads(_COSTLY)}


def is_pointwise(op: object) -> bool:
    return op in _POINTWISE


def is_transcendental(op: object) -> bool:
    """Return whether it costs tens of instructions an element rather than one or two."""
    return op in _TRANSCENDENTAL


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
