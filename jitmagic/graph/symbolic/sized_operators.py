"""Rules that run a call with symbolic sizes by other operators, for `sized_calls`.

A rule takes the arguments of a torch function and returns its result, or None if the function can
be called unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from itertools import groupby
from typing import Any

import torch
from torch.nn.functional import interpolate, max_pool1d, max_pool2d
from torch.types import Device

from .sized_calls import BY_OPERATORS
from .sym_node import sizes_in
from .symbolic_views import symbolic_view

__all__: list[str] = []

aten = torch.ops.aten
_EXACT = 1 << 21  # a numerator below it times a size is exact in float64
_LARGEST = 1 << 15  # for other fractions, float64 is compared with the exact product up to it


def _interpolate(
    x: torch.Tensor,
    size: object = None,
    scale_factor: object = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> torch.Tensor | None:
    """Run the overload without a list of factors, which takes only the sizes of the result; None
    for arguments that do not fit together.
    """
    if mode == "area" or next(sizes_in((x, size)), None) is None:
        return None
    dims = x.dim() - 2
    factors = scale_factor if isinstance(scale_factor, list | tuple) else [scale_factor] * dims
    wanted = list(size) if isinstance(size, list | tuple) else [size] * dims
    name = f"upsample_{mode.replace('-', '_')}{dims}d" + "_aa" * antialias
    operator = getattr(aten, "_" * (antialias or mode == "nearest-exact") + name, None)
    fit = len(factors) == len(wanted) == dims and (size is None) != (scale_factor is None)
    fit = fit and (align_corners is None or not mode.startswith("nearest"))
    if operator is None or not fit:
        return None
    corners = () if mode.startswith("nearest") else (bool(align_corners),)
    if size is None:
        wanted = [_times(*pair) for pair in zip(x.shape[2:], factors, strict=True)]
    if None in wanted:
        return None
    scales = [None] * dims if size is not None or recompute_scale_factor else factors
    made: torch.Tensor = operator.default(x, wanted, *corners, *scales)
    return made


def _max_pool1d(
    x: torch.Tensor, *args: object, return_indices: bool = False, **kwargs: object
) -> Any:
    """Run max_pool2d over rows of height one (ATen/native/Pooling.cpp), which reads no size."""
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if len(args) > len(names) or next(sizes_in(x), None) is None:
        return None
    neutral = {"kernel_size": 1, "stride": 1, "padding": 0, "dilation": 1}
    for name, beside in neutral.items():
        value = given.get(name)
        (along,) = value if isinstance(value, list | tuple) and value else (value,)
        given[name] = None if along in (None, ()) else (beside, along)
    wide = {name: value for name, value in given.items() if value is not None}
    pool: Any = max_pool2d
    made = pool(x.unsqueeze(-2), return_indices=return_indices, **wide)
    return tuple(one.squeeze(-2) for one in made) if return_indices else made.squeeze(-2)


def _times(n: Any, factor: object) -> object:
    """Return int(n * factor) of a size in exact integers; None if float64 rounds to another integer
    for this size, or may.
    """
    if not isinstance(factor, int | float) or not 0 < factor < _EXACT:
        return None
    if type(n) is int:
        return int(n * factor)
    exact = Fraction(factor)
    if max(exact.numerator, exact.denominator) >= _EXACT:
        exact = exact.limit_denominator(_EXACT)
        # Only integer products matter: others are farther from an integer than float64 rounds.
        least = _rounded_otherwise(factor, exact)
        if n >= _LARGEST or (least < _LARGEST and n % exact.denominator == 0 and n >= least):
            return None
    return n * exact.numerator // exact.denominator


@cache
def _rounded_otherwise(factor: float, exact: Fraction) -> int:
    """Return the least size whose exact product is an integer that float64 misses, like 45 * 1.4 <
    63.
    """
    whole = range(0, _LARGEST, exact.denominator)
    return next((n for n in whole if int(n * factor) != n * exact), _LARGEST)


def _fill_diagonal(x: torch.Tensor, fill_value: Any, wrap: bool = False) -> torch.Tensor | None:
    """Fill the elements whose indices are equal (ATen/native/Fill.cpp, which reads strides)."""
    is_cube = x.dim() == 2 or all(size == x.shape[0] for size in x.shape)
    if x.dim() < 2 or not is_cube or next(sizes_in(x), None) is None:
        return None
    if wrap and x.dim() == 2 and x.shape[0] > x.shape[1] + 1:  # the diagonal wraps around
        return None
    diagonal = x.diagonal()
    while diagonal.dim() > 1:
        diagonal = diagonal.diagonal()
    diagonal.fill_(fill_value)
    return x


def _diagonal(
    x: torch.Tensor, offset: object = 0, dim1: int = 0, dim2: int = 1
) -> torch.Tensor | None:
    """Take the diagonal of a narrowed tensor: torch's offset must be an int, a start need not."""
    if not isinstance(offset, torch.SymInt):
        return None
    rank = x.dim()
    if rank < 2 or not all(-rank <= dim < rank for dim in (dim1, dim2)):
        return None
    dim, start = (dim2, offset) if offset >= 0 else (dim1, -offset)
    size = x.shape[dim]
    # An empty diagonal has the storage offset of x.
    part = x.narrow(dim, start, size - start) if start < size else x.narrow(dim, 0, 0)
    return part.diagonal(0, dim1, dim2)


def _unfold(x: torch.Tensor, dimension: int, size: object, step: object) -> torch.Tensor | None:
    """Build the view directly: torch reads both numbers as ints."""
    if not any(isinstance(number, torch.SymInt) for number in (size, step)):
        return None
    view: torch.Tensor | None = symbolic_view(aten.unfold.default, (x, dimension, size, step), {})
    return view


def _unsafe_chunk(x: torch.Tensor, chunks: int, dim: int = 0) -> Sequence[torch.Tensor] | None:
    """Split as ATen/native/TensorShape.cpp does, which reads the size."""
    if type(chunks) is not int or chunks <= 0 or not -x.dim() <= dim < x.dim():
        return None
    size = x.shape[dim]
    if not isinstance(size, torch.SymInt):
        return None
    return torch.unsafe_split(x, (size + (chunks - 1)) // chunks, dim)


def _tensor(
    data: Any, dtype: torch.dtype | None = None, device: Device = None, **others: object
) -> torch.Tensor | None:
    """Make a tensor for each size among constants: torch reads the numbers of a list as ints."""
    flat = _flat(data) if next(sizes_in(data), None) is not None else None
    if flat is None or any(others.values()):
        return None
    numbers, shape = flat
    is_float = any(isinstance(number, float) for number in numbers)
    kind = dtype or (torch.get_default_dtype() if is_float else torch.int64)
    parts: list[torch.Tensor] = []
    for is_size, run in groupby(numbers, lambda number: isinstance(number, torch.SymInt)):
        if is_size:
            parts += [torch.full((1,), size, dtype=kind, device=device) for size in run]
        else:
            parts.append(torch.tensor([*run], dtype=kind, device=device))
    return (torch.cat(parts) if len(parts) > 1 else parts[0]).reshape(shape)


def _flat(data: object) -> tuple[list[Any], tuple[int, ...]] | None:
    """Return the numbers in nested lists and their shape; None for other data."""
    if isinstance(data, int | float | torch.SymInt):
        return [data], ()
    items = [_flat(item) for item in data] if isinstance(data, list | tuple) else []
    shapes = {None if item is None else item[1] for item in items}
    if None in shapes or len(shapes) != 1:
        return None
    numbers = [number for item in items if item for number in item[0]]
    return numbers, (len(items), *shapes.pop())  # type: ignore[misc]


BY_OPERATORS.update(
    {
        interpolate: _interpolate,
        torch.as_tensor: _tensor,
        torch.tensor: _tensor,
        max_pool1d: _max_pool1d,
        torch.Tensor.fill_diagonal_: _fill_diagonal,
        torch.Tensor.diagonal: _diagonal,
        torch.diagonal: _diagonal,
        torch.Tensor.unfold: _unfold,
        torch.unsafe_chunk: _unsafe_chunk,
        torch.Tensor.unsafe_chunk: _unsafe_chunk,
    }
)
