"""Creates the meta tensors that shape rules return, row-major unless strides are given.

A tensor of symbolic sizes costs torch 50 to 75 Python calls (150 us), and asking whether it is
row-major as many again. Within `sharing`, tensors of equal layout are therefore one object; that is
safe where memory is not identified by meta tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import local
from typing import Any

import torch

from ..symbols.size import Size, is_same
from .symbolic.sym_node import (
    as_dimension,
    as_dimensions,
    as_torch,
    expected_to_hold,
    in_layout,
    is_data_dependent,
    known_false,
)

__all__ = [
    "META", "Metas", "broadcast", "fresh_meta", "has_elements", "joins_to_rows", "refuse_empty",
    "same_shape", "sharing",
]  # fmt: skip

META = torch.device("meta")
Metas = dict[object, torch.Tensor]


class _Shared(local):
    """The stack of shared metas, per thread: compiles in other threads have other sizes."""

    def __init__(self) -> None:
        self.stack: list[Metas] = []


_shared = _Shared()


@contextmanager
def sharing(metas: Metas) -> Iterator[None]:
    """Let `fresh_meta` reuse the symbolic metas in `metas` and add new ones to it."""
    _shared.stack.append(metas)
    try:
        yield
    finally:
        _shared.stack.pop()


def fresh_meta(
    shape: Sequence[int], dtype: torch.dtype, strides: Sequence[int] | None = None
) -> torch.Tensor:
    if not _shared.stack or all(type(size) is int for size in shape):
        return _made(shape, dtype, strides)
    metas, key = _shared.stack[-1], (_key(shape), None if strides is None else _key(strides), dtype)
    if key not in metas:
        metas[key] = made = _made(shape, dtype, strides)
        if strides is None:
            metas[key[0], _key(made.stride()), dtype] = made
    return metas[key]


def _made(shape: Sequence[int], dtype: torch.dtype, strides: Sequence[int] | None) -> torch.Tensor:
    sizes = tuple(map(as_torch, shape))
    if strides is None:
        return torch.empty(sizes, dtype=dtype, device=META)
    return torch.empty_strided(sizes, tuple(map(as_torch, strides)), dtype=dtype, device=META)


def _key(numbers: Sequence[object]) -> tuple[object, ...]:
    """Return sizes by their expressions: comparing the sizes themselves would add guards."""
    sizes = as_dimensions(numbers)
    return tuple([size.expr if isinstance(size, Size) else size for size in sizes])


def same_shape(a: Sequence[int], b: Sequence[int]) -> bool:
    """Return whether two shapes are equal, comparing ranks first: comparing symbolic sizes adds
    guards. Data-dependent sizes are equal only if that is known.
    """
    return len(a) == len(b) and all(map(_are_same, a, b))


def _are_same(a: Any, b: Any) -> bool:
    if type(a) is type(b) is int:
        return bool(a == b)
    a, b = as_dimension(a), as_dimension(b)  # comparing SymInts takes 20 times as long
    if is_same(a, b):
        return True
    if is_data_dependent(a) or is_data_dependent(b):
        return known_false("!=", a, b)
    return bool(a == b)


def has_elements(x: torch.Tensor) -> bool:
    """Return whether the tensor is non-empty; for data-dependent sizes that is assumed."""
    return expected_to_hold("!=", x.numel(), 0)


def refuse_empty(shape: Sequence[int], dim: object = None) -> None:
    """Raise as eager's kernels do if a maximum is taken over no elements. `dim` None means all
    dimensions.
    """
    named = [dim] if type(dim) is int else dim
    sizes = tuple(shape) or (1,)  # a 0-dim tensor accepts dim=0
    if not isinstance(named, list | tuple) or not named:
        named = range(len(sizes))
    for each in named:
        if not -len(sizes) <= each < len(sizes) or not expected_to_hold("!=", sizes[each], 0):
            raise IndexError(f"a reduction over dimension {each}, which has no elements")


def _is_one(extent: int) -> bool:
    """Return whether an extent is the constant 1; adds no guard."""
    return type(extent) is int and extent == 1


def _must_be_equal(a: object, b: object) -> bool:
    """Return whether a data-dependent size has to equal the other, as neither is 1."""
    if type(a) is type(b) is int or not (known_false("==", a, 1) and known_false("==", b, 1)):
        return False
    return (is_data_dependent(a) or is_data_dependent(b)) and expected_to_hold("==", a, b)


def broadcast(shapes: Sequence[Sequence[int]]) -> list[int]:
    """Return the shape of an elementwise result."""
    rank = max(map(len, shapes))
    made = [1] * rank
    for shape in shapes:
        for i, extent in enumerate(shape, rank - len(shape)):
            if _is_one(made[i]) or (not _is_one(extent) and _must_be_equal(made[i], extent)):
                made[i] = extent
            elif not _is_one(extent) and extent not in (made[i], 1):
                if made[i] != 1:
                    raise RuntimeError(f"shapes {[list(s) for s in shapes]} do not broadcast")
                made[i] = extent
    return made


def joins_to_rows(tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether the result of joining the tensors is certainly row-major. Eager keeps
    channels_last only if all have such strides, and then the last stride spans the channels.
    """
    if tensors[0].dim() not in (4, 5):
        return True
    return any(in_layout("<", t.stride(-1), t.stride(1) * t.shape[1]) for t in tensors)
