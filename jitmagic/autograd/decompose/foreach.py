"""_foreach_* operations (optimizers): one plain operation per element of the lists."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...devices import row_of
from ...operators import SCALARS
from ...operators.operation import operation, rows
from ...torch_types import OpOverload
from ..recording.recorder import Recorder, Sym
from .registry import TABLE

__all__: list[str] = []

aten = torch.ops.aten
Choice = Callable[[tuple[object, ...]], OpOverload]  # chooses the operation for a row of arguments
_BINARY = {
    **{name: getattr(aten, name).Tensor for name, row in rows() if row.exact_numbers},
    "maximum": aten.maximum.default,
    "minimum": aten.minimum.default,
}
_CLAMPS = {"clamp_min": aten.clamp_min, "clamp_max": aten.clamp_max}
_UNARY = [
    str(row.packet)
    for row in SCALARS.values()
    if row.arity == 1 and hasattr(aten, f"_foreach_{row.packet}")
]


def _spread(value: object, count: int) -> list[object]:
    return value if isinstance(value, list) else [value] * count


# One operation per tensor lets horizontal fusion put a whole optimizer step into few kernels, which
# a single call of eager's foreach kernel would keep apart.
def _each(op_of: Choice) -> Callable[..., list[Sym] | None]:
    def rule(r: Recorder, first: list[Sym], *rest: object, **kwargs: object) -> list[Sym] | None:
        if _has_own_kernel(first):
            return None
        columns = [_spread(value, len(first)) for value in (first, *rest)]
        return [r.emit_one(op_of(row), *row, **kwargs) for row in zip(*columns, strict=True)]

    return rule


def _has_own_kernel(x: list[Sym]) -> bool:
    """Return whether the lists hold complex numbers on a GPU. The foreach kernels there treat
    infinities differently from the kernels of single tensors.
    """
    return any(part.dtype.is_complex and row_of(part.device).kernels == "cuda" for part in x)


def _always(op: OpOverload) -> Choice:
    return lambda row: op


# The clamps have no overload that takes both: the row decides.
def _binary(of_tensor: OpOverload, of_number: OpOverload) -> Choice:
    return lambda row: of_number if isinstance(row[1], (int, float)) else of_tensor


def _register() -> None:
    choices = {name: _binary(op, op) for name, op in _BINARY.items()}
    choices |= {name: _binary(p.Tensor, p.default) for name, p in _CLAMPS.items()}
    for name, choice in choices.items():
        packet = getattr(aten, f"_foreach_{name}")
        overloads: tuple[str, ...] = ("List", "Scalar", "ScalarList", "Tensor")
        if not operation(name).exact_numbers:
            overloads = ("List",) if name in _BINARY else ("List", "Scalar", "ScalarList")
        for overload in overloads:
            if overload in packet.overloads():
                TABLE[getattr(packet, overload)] = _each(choice)
    for name in _UNARY:
        op = getattr(aten, name).default
        TABLE[getattr(aten, f"_foreach_{name}").default] = _each(_always(op))
    for name in ("addcmul", "addcdiv"):
        packet = getattr(aten, f"_foreach_{name}")
        TABLE[packet.Scalar] = _fused(getattr(aten, name).default)
        TABLE[packet.ScalarList] = _fused(getattr(aten, name).default)
    TABLE[aten._foreach_lerp.Scalar] = _each(_always(aten.lerp.Scalar))
    TABLE[aten._foreach_lerp.List] = _each(_always(aten.lerp.Tensor))


def _fused(op: OpOverload) -> Callable[..., list[Sym] | None]:
    def rule(
        r: Recorder, x: list[Sym], a: list[Sym], b: list[Sym], value: object = 1
    ) -> list[Sym] | None:
        if _has_own_kernel(x):
            return None
        values = _spread(value, len(x))
        rows = zip(x, a, b, values, strict=True)
        return [r.emit_one(op, *row[:3], value=row[3]) for row in rows]

    return rule


_register()
