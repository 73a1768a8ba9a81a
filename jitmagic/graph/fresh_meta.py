"""What shape rules make: tensors on the meta device, row-major unless strides are given.

Of symbolic sizes one takes torch 50 to 75 calls of our Python, 150 us, and whether it is row-major
as many again. Where nobody tells memory by its meta tensor, those that lie alike are one
(`sharing`).
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
    in_layout,
    may_be,
    never,
    of_data,
)

__all__ = [
    "META", "Metas", "broadcast", "fresh_meta", "has_elements", "joins_to_rows", "refuse_nothing",
    "same_shape", "sharing",
]  # fmt: skip

META = torch.device("meta")
Metas = dict[Any, torch.Tensor]


class _Shared(local):
    """Those of the compiles of one thread: another one's lie alike by other sizes."""

    def __init__(self) -> None:
        self.stack: list[Metas] = []


_shared = _Shared()


@contextmanager
def sharing(metas: Metas) -> Iterator[None]:
    """In here `fresh_meta` gives those of symbolic sizes that there are, and adds to them."""
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


def _key(numbers: Sequence[Any]) -> tuple[Any, ...]:
    """Sizes by their expressions: comparing them would ask and guard."""
    sizes = as_dimensions(numbers)
    return tuple([size.expr if isinstance(size, Size) else size for size in sizes])


def same_shape(a: Sequence[int], b: Sequence[int]) -> bool:
    """The number of dimensions first: comparing symbolic sizes makes guards. Those that data decide
    are not the same unless that is known.
    """
    return len(a) == len(b) and all(map(_are_same, a, b))


def _are_same(a: Any, b: Any) -> bool:
    if type(a) is type(b) is int:
        return bool(a == b)
    a, b = as_dimension(a), as_dimension(b)  # through torch it takes 20 times as long
    if is_same(a, b):
        return True
    if of_data(a) or of_data(b):
        return never("!=", a, b)
    return bool(a == b)


def has_elements(x: torch.Tensor) -> bool:
    """Most calls want some; of a size that data decide it shows when that is there."""
    return may_be("!=", x.numel(), 0)


def refuse_nothing(shape: Sequence[int], dim: Any = None) -> None:
    """Raise as eager's kernels do where what a maximum is taken of, all of it where no dimension is
    named, has no elements.
    """
    named = [dim] if type(dim) is int else dim
    sizes = tuple(shape) or (1,)  # a number has a dimension 0 too
    if not isinstance(named, list | tuple) or not named:
        named = range(len(sizes))
    for each in named:
        if not -len(sizes) <= each < len(sizes) or not may_be("!=", sizes[each], 0):
            raise IndexError(f"a reduction over dimension {each}, which has no elements")


def _is_one(extent: int) -> bool:
    """What is known: a size that data decide is not asked."""
    return type(extent) is int and extent == 1


def _must_be_equal(a: Any, b: Any) -> bool:
    """Whether a size that data decide has to be the other one, as neither is 1."""
    if type(a) is type(b) is int or not (never("==", a, 1) and never("==", b, 1)):
        return False
    return (of_data(a) or of_data(b)) and may_be("==", a, b)


def broadcast(shapes: Sequence[Sequence[int]]) -> list[int]:
    """The shape of an elementwise result."""
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
    """Whether what they are joined to is surely row-major. Only where all of them have strides like
    channels_last does eager keep that, and then the last stride spans the channels.
    """
    if tensors[0].dim() not in (4, 5):
        return True
    return any(in_layout("<", t.stride(-1), t.stride(1) * t.shape[1]) for t in tensors)
