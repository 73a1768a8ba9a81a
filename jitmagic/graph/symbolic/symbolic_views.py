"""Views of meta tensors with symbolic sizes, for which torch's C++ kernels need ints.

Input: a view operator and its arguments, at least one of them with a SymInt. Output: the view, an
`as_strided` of the same memory (which takes SymInts), or None if eager would raise or copy: then
torch's own operator runs or raises. Comparisons are decided and guarded by `Size`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...symbols.interval import Interval
from ...symbols.polynomial import divided
from ...symbols.size import (
    Dimension,
    Size,
    expr_of,
    hint_of,
    is_same,
    min_size,
    size_oblivious,
    size_of,
)
from ...torch_types import AnyFunction, Args, Kwargs, OpOverload
from .sym_node import (
    as_dimension,
    as_dimensions,
    as_torch,
    expected_to_hold,
    is_data_dependent,
    known_false,
)

__all__ = ["symbolic_view", "view_strides"]

aten = torch.ops.aten
Dimensions = Sequence[Dimension]
_NOT_NEGATIVE = Interval(0, math.inf)


def symbolic_view(func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Return the view, or None if no size is symbolic or no rule covers it."""
    rule = _RULES.get(func)
    if rule is None or kwargs or not _is_symbolic(args):
        return None
    return rule(*args)


def _is_symbolic(args: Sequence[Any]) -> bool:
    x, *rest = args
    numbers = (*x.shape, *x.stride(), x.storage_offset())
    for value in rest:
        numbers += tuple(value) if isinstance(value, list | tuple) else (value,)
    return any(type(number) is torch.SymInt for number in numbers)


def _strided(
    x: torch.Tensor, shape: Dimensions, stride: Dimensions, offset: Dimension
) -> torch.Tensor:
    return x.as_strided(
        [as_torch(n) for n in shape],
        [as_torch(n) for n in stride],
        as_torch(offset),
    )


def _layout(x: torch.Tensor) -> tuple[list[Dimension], list[Dimension], Dimension]:
    shape, stride = as_dimensions(x.shape), as_dimensions(x.stride())
    return list(shape), list(stride), as_dimension(x.storage_offset())


def _product(sizes: Dimensions) -> Dimension:
    made: Dimension = 1
    for size in sizes:
        made = size * made
    return made


def _whole(size: Sequence[Any], total: Dimension) -> list[Dimension] | None:
    """Return the sizes with -1 replaced; None if that is not a whole number."""
    wanted = list(as_dimensions(size))
    unknown = [place for place, n in enumerate(wanted) if not isinstance(n, Size) and n == -1]
    if len(unknown) > 1 or any(not isinstance(n, Size) and n < -1 for n in wanted):
        return None
    if unknown:
        rest = _product([n for place, n in enumerate(wanted) if place != unknown[0]])
        if (whole := _quotient(total, rest)) is None:
            return None
        wanted[unknown[0]] = whole
    return wanted if expected_to_hold("==", _product(wanted), total) else None


def _quotient(total: Dimension, part: Dimension) -> Dimension | None:
    """Return the exact quotient; None if it is not a whole number."""
    if not expected_to_hold("!=", part, 0):
        return None
    if isinstance(part, Size) and part.context.of_data(part.expr):
        exact = divided(expr_of(total), part.expr)
        return None if exact is None else size_of(exact, part.context)
    return total // part if expected_to_hold("==", total % part, 0) else None


def _view(x: torch.Tensor, size: Sequence[object]) -> torch.Tensor | None:
    shape, stride, offset = _layout(x)
    wanted = _whole(size, _product(shape))
    strides = None if wanted is None else view_strides(shape, stride, wanted)
    if wanted is None or strides is None:
        return None
    return _strided(x, wanted, strides, offset)


def view_strides(
    shape: Dimensions, stride: Dimensions, wanted: Dimensions
) -> list[Dimension] | None:
    """Return strides of a view with other sizes (ATen/TensorUtils.cpp, computeStride_impl)."""
    if not shape:
        return [1] * len(wanted)
    made: list[Dimension] = [0] * len(wanted)
    at, base = len(wanted) - 1, stride[-1]
    total: Dimension = 1
    covered: Dimension = 1
    for dim in reversed(range(len(shape))):
        total = shape[dim] * total
        ends = dim == 0 or (
            size_oblivious("!=", shape[dim - 1], 1)
            and size_oblivious("!=", stride[dim - 1], total * base)
        )
        if not ends:
            continue
        while at >= 0 and (
            size_oblivious("<", covered, total) or size_oblivious("==", wanted[at], 1)
        ):
            made[at] = covered * base
            covered = wanted[at] * covered
            at -= 1
        if size_oblivious("!=", covered, total):
            return None
        if dim:
            total, covered, base = 1, 1, stride[dim - 1]
    return made if at == -1 else None


def _differ(want: Dimension, have: Dimension) -> bool:
    """Return whether a dimension changes; one of extent 1 may become anything."""
    if is_same(want, have):
        return False
    if known_false("==", have, 1) and (is_data_dependent(want) or is_data_dependent(have)):
        return not expected_to_hold("==", want, have)
    return bool(want != have)


def _reshape_alias(x: torch.Tensor, size: Any, stride: Any) -> torch.Tensor:
    return _strided(x, as_dimensions(size), as_dimensions(stride), _layout(x)[2])


def _expand(x: torch.Tensor, size: Sequence[Any], *args: object) -> torch.Tensor | None:
    shape, stride, offset = _layout(x)
    wanted = list(as_dimensions(size))
    missing = len(wanted) - len(shape)
    if missing < 0:
        return None
    made: list[Dimension] = [0] * missing
    for place, (have, step) in enumerate(zip(shape, stride, strict=True), missing):
        want = wanted[place]
        if not isinstance(want, Size) and want == -1:
            wanted[place] = have
        elif not isinstance(have, Size) and have == 1:
            step = 0 if size_oblivious("!=", want, 1) else step  # noqa: PLW2901 - broadcast
        elif _differ(want, have):
            if have != 1:
                return None
            step = 0  # noqa: PLW2901 - broadcast
        made.append(step)
    if any(n == -1 for n in wanted[:missing]):
        return None
    for place in reversed(range(missing)):
        if shape and not size_oblivious("!=", wanted[place], 1):  # as unsqueeze
            made[place] = wanted[place + 1] * made[place + 1]
    return _strided(x, wanted, made, offset)


def _dim(dim: int, rank: int) -> int | None:
    return dim % rank if rank and -rank <= dim < rank else None


def _slice(
    x: torch.Tensor, dim: int = 0, start: Any = None, end: object = None, step: object = 1
) -> torch.Tensor | None:
    shape, stride, offset = _layout(x)
    place, by = _dim(dim, len(shape)), as_dimension(step)
    if place is None or not by > 0:
        return None
    size = shape[place]
    first = _bound(0 if start is None else as_dimension(start), size)
    last = size if _is_open(end) else _bound(as_dimension(end), size)
    length = _length(first, last)
    is_one = not isinstance(by, Size) and by == 1
    shape[place] = length if is_one else (length + (by - 1)) // by
    offset = offset + first * stride[place]
    stride[place] = stride[place] * by
    return _strided(x, shape, stride, offset)


def _length(first: Dimension, last: Dimension) -> Dimension:
    """Return the length of a slice. With a data-dependent start, the ranges of both ends do not
    show that it is non-negative.
    """
    length = last - min_size(first, last)
    if isinstance(length, Size) and length.context.of_data(length.expr):
        limits = length.context.range_of(length.expr)
        if limits is not None:
            length.context.assume_range(length.expr, limits.narrowed(_NOT_NEGATIVE))
    return length


def _is_open(end: object) -> bool:
    return end is None or (type(end) is int and end >= 2**63 - 1)


def _bound(at: Dimension, size: Dimension) -> Dimension:
    if at < 0:
        at = at + size
        return 0 if at < 0 else at
    return min_size(at, size)


def _select(x: torch.Tensor, dim: int, index: object) -> torch.Tensor | None:
    shape, stride, offset = _layout(x)
    place, at = _dim(dim, len(shape)), as_dimension(index)
    if place is None:
        return None
    if at < 0:  # compared first, so that this guard fixes the sign; later checks narrow it further
        at = at + shape[place]
    if not expected_to_hold(">=", at, 0) or not expected_to_hold("<", at, shape[place]):
        return None
    offset = offset + at * stride[place]
    del shape[place]
    strides = [n for i, n in enumerate(stride) if i != place]
    return _strided(x, shape, strides, offset)


def _permute(x: torch.Tensor, dims: Sequence[int]) -> torch.Tensor | None:
    shape, stride, offset = _layout(x)
    order = [_dim(dim, len(shape)) for dim in dims]
    if sorted(order, key=str) != sorted(range(len(shape)), key=str):
        return None
    return _strided(x, [shape[i] for i in order], [stride[i] for i in order], offset)  # type: ignore[index]


def _transpose(x: torch.Tensor, a: int, b: int) -> torch.Tensor | None:
    rank = x.dim()
    left, right = _dim(a, rank), _dim(b, rank)
    if left is None or right is None:
        return None
    order = list(range(rank))
    order[left], order[right] = right, left
    return _permute(x, order)


def _parts(x: torch.Tensor, sizes: Dimensions, dim: int) -> list[torch.Tensor] | None:
    place = _dim(dim, x.dim())
    if place is None or not expected_to_hold("==", sum(sizes), x.shape[place]):
        return None
    shape, stride, offset = _layout(x)
    made = []
    for size in sizes:
        shape[place] = size
        made.append(_strided(x, shape, stride, offset))
        offset = offset + size * stride[place]
    return made


def _split_with_sizes(
    x: torch.Tensor, sizes: Sequence[Any], dim: int = 0
) -> list[torch.Tensor] | None:
    return _parts(x, as_dimensions(sizes), dim)


def _split(x: torch.Tensor, size: Any, dim: int = 0) -> list[torch.Tensor] | None:
    """Split a dimension; the number of parts is guarded."""
    place, each = _dim(dim, x.dim()), as_dimension(size)
    if place is None or each <= 0:
        return None
    total = as_dimension(x.shape[place])
    whole = (total + (each - 1)) // each
    if whole != (count := hint_of(whole)):
        return None
    count = max(count, 1)
    return _parts(x, [each] * (count - 1) + [total - each * (count - 1)], dim)


def _unbind(x: torch.Tensor, dim: int = 0) -> list[torch.Tensor] | None:
    place = _dim(dim, x.dim())
    if place is None:
        return None
    count = operator.index(as_dimension(x.shape[place]))
    made = [_select(x, place, index) for index in range(count)]
    return None if None in made else made  # type: ignore[return-value]


def _unfold(x: torch.Tensor, dim: int, size: int, step: int) -> torch.Tensor | None:
    shape, stride, offset = _layout(x)
    place = _dim(dim, len(shape))
    if place is None or size < 0 or step <= 0 or size > shape[place]:
        return None
    strides = [*stride, stride[place]]
    shape[place] = (shape[place] - size) // step + 1
    strides[place] = strides[place] * step
    return _strided(x, [*shape, size], strides, offset)


def _diagonal(x: torch.Tensor, shift: int = 0, dim1: int = 0, dim2: int = 1) -> torch.Tensor | None:
    shape, stride, offset = _layout(x)
    a, b = _dim(dim1, len(shape)), _dim(dim2, len(shape))
    if a is None or b is None or a == b:
        return None
    rows, columns = (shape[a], shape[b] - shift) if shift >= 0 else (shape[a] + shift, shape[b])
    length = rows if rows <= columns else columns
    if length < 0:
        return None
    offset = offset + (shift * stride[b] if shift >= 0 else -shift * stride[a])
    kept = [i for i in range(len(shape)) if i not in (a, b)]
    shapes = [*(shape[i] for i in kept), length]
    return _strided(x, shapes, [*(stride[i] for i in kept), stride[a] + stride[b]], offset)


def _alias(x: torch.Tensor) -> torch.Tensor:
    return _strided(x, *_layout(x))


def _copied(rule: AnyFunction) -> AnyFunction:
    """Return the rule of `split_copy` and similar: the view's results, each in memory of its
    own.
    """

    def copies(*args: object) -> object:
        made = rule(*args)
        if made is None or isinstance(made, torch.Tensor):
            return made if made is None else _fresh(made)
        return list(map(_fresh, made))

    return copies


def _fresh(view: torch.Tensor) -> torch.Tensor:
    return torch.empty(view.shape, dtype=view.dtype, device=view.device)


_RULES: Mapping[OpOverload, AnyFunction] = {
    aten.view.default: _view,
    aten._unsafe_view.default: _view,
    aten._reshape_alias.default: _reshape_alias,
    aten.expand.default: _expand,
    aten.slice.Tensor: _slice,
    aten.select.int: _select,
    aten.permute.default: _permute,
    aten.transpose.int: _transpose,
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split_with_sizes,
    aten.unbind.int: _unbind,
    aten.unfold.default: _unfold,
    aten.diagonal.default: _diagonal,
    aten.alias.default: _alias,
    aten.detach.default: _alias,
    aten.unsafe_split.Tensor: _split,
    aten.unsafe_split_with_sizes.default: _split_with_sizes,
    aten.split_copy.Tensor: _copied(_split),
    aten.split_with_sizes_copy.default: _copied(_split_with_sizes),
    aten.unbind_copy.int: _copied(_unbind),
    aten.diagonal_copy.default: _copied(_diagonal),
}
