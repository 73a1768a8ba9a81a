"""The pointwise ATen operations, by how they choose the dtype of their result.

Names are packets; `overloads` gives each functional overload with the number of its operands. Used
for shape rules and by the partitioner, to find operations that are cheap to recompute.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

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

# name -> number of operands that take part in broadcasting and promotion
PROMOTING: Mapping[str, int] = {
    **dict.fromkeys(("add", "sub", "mul", "maximum", "minimum", "fmax", "fmin"), 2),
    **dict.fromkeys(("remainder", "fmod", "floor_divide", "pow", "hypot"), 2),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor"), 2),
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max"), 3),
}
FLOATING: Mapping[str, int] = {
    **dict.fromkeys(("div", "atan2", "copysign"), 2),
    **dict.fromkeys(("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt"), 1),
    **dict.fromkeys(("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh"), 1),
    **dict.fromkeys(("asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "lgamma", "sigmoid"), 1),
    "reciprocal": 1,
}
BOOLEAN: Mapping[str, int] = {
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), 2),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor"), 2),
    **dict.fromkeys(("logical_not", "isnan", "isinf", "isfinite", "signbit"), 1),
}
KEEPING: Mapping[str, int] = {
    **dict.fromkeys(("neg", "relu", "floor", "ceil", "round", "trunc", "sign", "abs", "frac"), 1),
    "bitwise_not": 1,
}
_OVERLOADS = ("default", "Tensor", "Scalar", "Tensor_Tensor", "Tensor_Scalar", "self")


def overloads(names: Mapping[str, int]) -> Iterator[tuple[OpOverload, int]]:
    """Yield the functional tensor-first overloads of the named packets."""
    for name, operands in names.items():
        packet = getattr(aten, name)
        for overload in packet.overloads():
            if overload in _OVERLOADS:
                yield getattr(packet, overload), operands


_TRANSCENDENTAL_NAMES = {
    *(name for name in FLOATING if name not in ("div", "sqrt", "rsqrt", "reciprocal")),
    "pow",
}
_POINTWISE = {op for table in (PROMOTING, FLOATING, BOOLEAN, KEEPING) for op, _ in overloads(table)}
_POINTWISE |= {aten.where.self, aten._to_copy.default, aten.clone.default}
_TRANSCENDENTAL = {
    op
    for table in (PROMOTING, FLOATING)
    for op, _ in overloads({k: v for k, v in table.items() if k in _TRANSCENDENTAL_NAMES})
}


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
