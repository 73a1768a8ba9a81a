"""Chooses which dimensions of a tensor become symbols, and which numbers the options name.

Input: the option `dynamic`, marks on the tensor (jitmagic's, and torch._dynamo's attributes of
fixed names), and the differences from earlier variants. Output: dimensions with the range that they
are compiled for.

    dynamic=False   none
    dynamic=None    marked dimensions, and those whose size differed in an earlier variant
    dynamic=True    also every dimension of an argument tensor that is no parameter; in a resume
                    function not those that were constants at the break (residual/resume_facts.py)
    dynamic={...}   as None, and the named ones: {"x": {0: (1, 4096), 1: None}} gives bounds by
                    argument and dimension; {"x": ...} means every dimension of x, or the number x

A mark of mark_unbacked takes precedence over all of these; mark_static is weaker than mark_dynamic.
A size outside the requested range gets a variant of its own.

A dimension counts as differing only from a variant that fits the call except for sizes and numbers.
A variant for another dtype or mode is another use of the function and gives no evidence about
sizes. Strides are treated like sizes, each under its own index (symbols/size.py).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from types import EllipsisType

import torch

from ..errors import UsageError
from ..guards.check import is_number
from ..guards.read import is_input_of_call
from ..guards.source import Argument, Source
from ..options import Options
from ..symbols.interval import INT64, Interval, UnbackedRange
from ..symbols.size import stride_place

__all__ = [
    "declared_numbers", "dynamic_dims", "mark_dynamic", "mark_static",
    "mark_unbacked", "marked_static",
]  # fmt: skip

# dim -> (smallest, largest, whether it is unbacked), or None: static. Builtin types, so that a
# marked tensor can be pickled.
_MARKS = "_jitmagic_sizes"

Dims = dict[int, Interval]


def mark_dynamic(
    tensor: torch.Tensor, dim: int, *, min: int | None = None, max: int | None = None
) -> None:
    """Compile code for this tensor that serves every size of dimension `dim` in [min, max].

    `min` defaults to 2. Raises IndexError if there is no such dimension.
    """
    _mark(tensor, dim, 2 if min is None else min, max, unbacked=False)


def mark_unbacked(
    tensor: torch.Tensor, dim: int, *, min: int | None = None, max: int | None = None
) -> None:
    """Like mark_dynamic, for every size from 0 on: nothing is specialised on it, not even 0 and 1.

    A branch on it in the program is a graph break (an error if fullgraph=True).
    """
    _mark(tensor, dim, 0 if min is None else min, max, unbacked=True)


def _mark(tensor: torch.Tensor, dim: int, low: int, high: int | None, *, unbacked: bool) -> None:
    low, high = _int("min=", low), int(INT64.high) if high is None else _int("max=", high)
    if low < 0:
        raise UsageError(f"min={low} is not a size")
    if low > high:
        raise UsageError(f"min={low} is greater than max={high}")
    _marks_of(tensor)[_wrapped(tensor, dim)] = low, high, unbacked


def mark_static(tensor: torch.Tensor, dim: int | None = None) -> None:
    """Compile a dimension (None: every one) as a constant even if it varies."""
    marks = _marks_of(tensor)
    dims = range(tensor.dim()) if dim is None else (_wrapped(tensor, dim),)
    marks.update(dict.fromkeys(dims))


def marked_static(tensor: torch.Tensor) -> set[int]:
    """Return the dimensions marked static, by jitmagic's marks or torch._dynamo's."""
    marks = tensor.__dict__.get(_MARKS, {})
    of_dynamo = tensor.__dict__.get("_dynamo_static_indices", ())
    return {*(dim for dim, limits in marks.items() if limits is None), *of_dynamo}


def _wrapped(tensor: torch.Tensor, dim: int) -> int:
    dim = _int("a dimension: ", dim)
    if not -tensor.dim() <= dim < tensor.dim():
        raise IndexError(f"dimension {dim} of a tensor with {tensor.dim()} dimensions")
    return dim % tensor.dim()


def _int(name: str, value: object) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise UsageError(f"{name}{value!r} is not an int")
    return operator.index(value)


def _marks_of(tensor: torch.Tensor) -> dict[int, tuple[int, int, bool] | None]:
    if not isinstance(tensor, torch.Tensor):
        raise UsageError(
            f"only dimensions of tensors can be marked, not of {type(tensor).__name__}"
        )
    marks: dict[int, tuple[int, int, bool] | None] = tensor.__dict__.setdefault(_MARKS, {})
    return marks


def dynamic_dims(
    options: Options,
    differing: Mapping[Source, Collection[int]],
    is_constant: Callable[[Source, int], bool],
) -> Callable[[Source, torch.Tensor], Mapping[int, Interval]]:
    """Return a function that gives the symbolic dimensions of a tensor input.

    `is_constant(source, index)` excludes dimensions from dynamic=True.
    """
    requested = dict(options.dynamic) if isinstance(options.dynamic, tuple) else {}
    largest = {name: sizes[-1] for name, sizes in options.buckets or ()}

    def dims(source: Source, tensor: torch.Tensor) -> Mapping[int, Interval]:
        found: Dims = dict.fromkeys(differing.get(source, ()), INT64)
        named = requested.get(source.name, ()) if isinstance(source, Argument) else ()
        is_marked = options.dynamic is True and is_input_of_call(source, tensor)
        if is_marked or isinstance(named, EllipsisType):
            rank = tensor.dim()
            indices = (*range(rank), *map(stride_place, range(rank)))
            found |= {index: INT64 for index in indices if not is_constant(source, index)}
        else:
            _update(found, tensor, {d: Interval(*limits) for d, limits in named})
        if isinstance(source, Argument) and source.name in largest and tensor.dim():
            _keep_apart(found, tensor.shape[0], largest[source.name])
        if tensor.__dict__:
            _add_marks(tensor, found)
        return found

    return dims


def _keep_apart(found: Dims, rows: int, most: int) -> None:
    """Give batches of one row, and those beyond the largest bucket, variants of their own: one that
    served them together with others would take the place of the buckets.
    """
    if rows > most:
        found[0] = Interval(most + 1, INT64.high)
    elif rows < 2:
        found.pop(0, None)


def declared_numbers(
    options: Options, names: Sequence[str], args: Sequence[object]
) -> frozenset[Source]:
    """Return the number arguments declared to vary by the options: under dynamic=True all ints."""
    declared = options.dynamic if isinstance(options.dynamic, tuple) else ()
    requested = {name for name, dims in declared if dims is ...}
    return frozenset(
        Argument(index, name)
        for index, (name, value) in enumerate(zip(names, args, strict=False))
        if (options.dynamic is True and type(value) is int)
        or (name in requested and is_number(value))
    )


def _add_marks(tensor: torch.Tensor, found: Dims) -> None:
    attributes = tensor.__dict__
    for dim in attributes.get("_dynamo_static_indices", ()):
        found.pop(dim, None)
    for name in ("_dynamo_dynamic_indices", "_dynamo_weak_dynamic_indices"):
        for dim in attributes.get(name, ()):
            found.setdefault(dim, INT64)
    ranges = attributes.get("_dynamo_dynamic_range", ())
    requested: Dims = {one.dim: Interval(*_limits(one.min, one.max)) for one in ranges}
    bounds = attributes.get("_dynamo_unbacked_bounds", {})
    for name in ("_dynamo_unbacked_indices", "_dynamo_strict_unbacked_indices"):
        for dim in attributes.get(name, ()):
            requested[dim] = UnbackedRange(*_limits(*bounds.get(dim, (None, None))))
    for dim, mark in attributes.get(_MARKS, {}).items():
        requested.pop(dim, None)
        if mark is None:
            found.pop(dim, None)
        else:
            low, high, unbacked = mark
            requested[dim] = UnbackedRange(low, high) if unbacked else Interval(low, high)
    _update(found, tensor, requested)


def _update(found: Dims, tensor: torch.Tensor, requested: Dims) -> None:
    """Add the requested dimensions that the tensor has with a size in their range."""
    sizes = dict(enumerate(tensor.shape))
    found.update({dim: range for dim, range in requested.items() if range.has(sizes.get(dim, -1))})


def _limits(low: int | None, high: int | None) -> tuple[float, float]:
    return INT64.low if low is None else low, INT64.high if high is None else high
