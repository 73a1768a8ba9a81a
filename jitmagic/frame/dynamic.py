"""Which dimensions of a tensor become symbols.

Comes in: the option `dynamic`, marks on the tensor (ours, and torch._dynamo's, attributes
of fixed names), what differed from the variants there are. Goes out: dimensions with the range that
they are compiled for.

    dynamic=False   none
    dynamic=None    marked ones; those that differ from an earlier variant
    dynamic=True    all of tensors among the arguments that are no parameters; behind a graph break,
                    but for what is a constant at the break (trace/residual/resume_facts.py)
    dynamic={...}   these: {"x": {0: (1, 4096), 1: None}}, by the argument's name; and as None.
                    {"x": ...}: all of a tensor; of an int or a float itself

A mark of mark_unbacked goes before all of that, one of mark_static behind that of mark_dynamic.
A size outside the range that is asked for is one that nobody spoke of: those are one variant more.

A dimension differs from a variant that fits the call in all but sizes and numbers: what also has
another dtype or another mode is another use of the function, and says nothing about its sizes.
Strides differ likewise, and go with the sizes, each at its place (symbols/size.py).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from ..errors import UsageError
from ..guards.check import is_number
from ..guards.source import Argument, ArrayMemory, DictEntry, Item, ItemAt, Source
from ..options import Options
from ..symbols.interval import INT64, Interval, Unbacked
from ..symbols.size import stride_place

__all__ = [
    "declared_numbers", "dynamic_dims", "is_argument", "mark_dynamic", "mark_static",
    "mark_unbacked", "marked_static",
]  # fmt: skip

# dim -> (smallest, largest, whether it is unbacked), or None: not a symbol. Plain, to be pickled.
_OURS = "_jitmagic_sizes"

Dims = dict[int, Interval]


def mark_dynamic(
    tensor: torch.Tensor, dim: int, *, min: int | None = None, max: int | None = None
) -> None:
    """Have what is compiled for this tensor serve every size of a dimension (of that range) from
    the first call on. Raises IndexError where there is no such dimension.
    """
    _mark(tensor, dim, 2 if min is None else min, max, unbacked=False)


def mark_unbacked(
    tensor: torch.Tensor, dim: int, *, min: int | None = None, max: int | None = None
) -> None:
    """As mark_dynamic, for every size from 0 on: nothing is decided by it, 0 and 1 are sizes as any
    other. Where the program branches on it there is a graph break (an error if fullgraph=True).
    """
    _mark(tensor, dim, 0 if min is None else min, max, unbacked=True)


def _mark(tensor: torch.Tensor, dim: int, low: int, high: int | None, *, unbacked: bool) -> None:
    low, high = _int("min=", low), int(INT64.high) if high is None else _int("max=", high)
    if low < 0:
        raise UsageError(f"min={low} is no size")
    if low > high:
        raise UsageError(f"min={low} is greater than max={high}")
    _marks(tensor)[_wrapped(tensor, dim)] = low, high, unbacked


def mark_static(tensor: torch.Tensor, dim: int | None = None) -> None:
    """Have a dimension (None: each) be a constant of what is compiled, though it varies."""
    marks = _marks(tensor)
    dims = range(tensor.dim()) if dim is None else (_wrapped(tensor, dim),)
    marks.update(dict.fromkeys(dims))


def marked_static(tensor: torch.Tensor) -> set[int]:
    """The dimensions that somebody wants to be constants."""
    ours = tensor.__dict__.get(_OURS, {})
    theirs = tensor.__dict__.get("_dynamo_static_indices", ())
    return {*(dim for dim, limits in ours.items() if limits is None), *theirs}


def _wrapped(tensor: torch.Tensor, dim: int) -> int:
    dim = _int("a dimension: ", dim)
    if not -tensor.dim() <= dim < tensor.dim():
        raise IndexError(f"dimension {dim} of a tensor with {tensor.dim()} dimensions")
    return dim % tensor.dim()


def _int(name: str, value: object) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise UsageError(f"{name}{value!r} is no int")
    return operator.index(value)


def _marks(tensor: torch.Tensor) -> dict[int, tuple[int, int, bool] | None]:
    if not isinstance(tensor, torch.Tensor):
        raise UsageError(f"a dimension of a tensor is marked, not one of {type(tensor).__name__}")
    marks: dict[int, tuple[int, int, bool] | None] = tensor.__dict__.setdefault(_OURS, {})
    return marks


def dynamic_dims(
    options: Options,
    find_differing: Callable[[], Mapping[Source, Collection[int]]],
    is_constant: Callable[[Source, int], bool] | None = None,
) -> Callable[[Source, torch.Tensor], Mapping[int, Interval]] | None:
    """What the tracer asks of each tensor input; None: nothing is symbolic. `is_constant` tells the
    places that dynamic=True is not about.
    """
    if options.dynamic is False:
        return None
    differing = find_differing()
    asked = dict(options.dynamic) if isinstance(options.dynamic, tuple) else {}

    def dims(source: Source, tensor: torch.Tensor) -> Mapping[int, Interval]:
        found: Dims = dict.fromkeys(differing.get(source, ()), INT64)
        named = asked.get(source.name, ()) if isinstance(source, Argument) else ()
        if (options.dynamic is True and is_argument(source, tensor)) or named is ...:
            rank = tensor.dim()
            places = (*range(rank), *map(stride_place, range(rank)))
            found |= {p: INT64 for p in places if not (is_constant and is_constant(source, p))}
        else:
            _update(found, tensor, {d: Interval(*limits) for d, limits in named})
        if tensor.__dict__:
            _add_marks(tensor, found)
        return dict(sorted(found.items()))

    return dims


def declared_numbers(
    options: Options, names: Sequence[str], args: Sequence[object]
) -> frozenset[Source]:
    """The arguments that are numbers of which the options say that they vary: under dynamic=True
    all ints.
    """
    if options.dynamic is True:
        given = enumerate(zip(names, args, strict=False))
        return frozenset(Argument(i, name) for i, (name, value) in given if type(value) is int)
    if not isinstance(options.dynamic, tuple):
        return frozenset()
    asked = {name for name, dims in options.dynamic if dims is ...}
    given = enumerate(zip(names, args, strict=False))
    return frozenset(
        Argument(index, name)
        for index, (name, value) in given
        if name in asked and is_number(value)
    )


def is_argument(source: Source, tensor: torch.Tensor) -> bool:
    """Among the arguments themselves: what modules and other objects hold seldom varies."""
    at: Any = source
    while isinstance(at, Item | ItemAt | DictEntry | ArrayMemory):
        at = at.base
    return isinstance(at, Argument) and not isinstance(tensor, torch.nn.Parameter)


def _add_marks(tensor: torch.Tensor, found: Dims) -> None:
    theirs = tensor.__dict__
    for dim in theirs.get("_dynamo_static_indices", ()):
        found.pop(dim, None)
    for name in ("_dynamo_dynamic_indices", "_dynamo_weak_dynamic_indices"):
        for dim in theirs.get(name, ()):
            found.setdefault(dim, INT64)
    ranges = theirs.get("_dynamo_dynamic_range", ())
    asked: Dims = {one.dim: Interval(*_limits(one.min, one.max)) for one in ranges}
    bounds = theirs.get("_dynamo_unbacked_bounds", {})
    for name in ("_dynamo_unbacked_indices", "_dynamo_strict_unbacked_indices"):
        for dim in theirs.get(name, ()):
            asked[dim] = Unbacked(*_limits(*bounds.get(dim, (None, None))))
    for dim, mark in theirs.get(_OURS, {}).items():
        asked.pop(dim, None)
        if mark is None:
            found.pop(dim, None)
        else:
            low, high, unbacked = mark
            asked[dim] = Unbacked(low, high) if unbacked else Interval(low, high)
    _update(found, tensor, asked)


def _update(found: Dims, tensor: torch.Tensor, asked: Dims) -> None:
    """With what is asked for, where the tensor has such a dimension of such a size."""
    sizes = dict(enumerate(tensor.shape))
    found.update({dim: range for dim, range in asked.items() if range.has(sizes.get(dim, -1))})


def _limits(low: int | None, high: int | None) -> tuple[float, float]:
    return INT64.low if low is None else low, INT64.high if high is None else high
