"""Which dimensions of a tensor become symbols.

Comes in: the option `dynamic`, marks on the tensor (ours, and torch._dynamo's, attributes
of fixed names), what differed from the variants there are. Goes out: dimensions with the range that
they are compiled for.

    dynamic=False   none
    dynamic=None    marked ones; those that differ from an earlier variant
    dynamic=True    all of tensors among the arguments that are no parameters
    dynamic={...}   these: {"x": {0: (1, 4096), 1: None}}, by the argument's name; and as None

A dimension differs from a variant that fits the call in all but sizes and numbers: what also has
another dtype or another mode is another use of the function, and says nothing about its sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from ..guards.source import Argument, DictEntry, Item, Source
from ..options import Options
from ..symbols.interval import INT64, Interval

__all__ = ["dynamic_dims", "mark_dynamic", "mark_static"]

_OURS = "_jitmagic_sizes"  # dim -> (smallest, largest), or None: not a symbol

Dims = dict[int, Interval]


def mark_dynamic(
    tensor: torch.Tensor, dim: int, *, min: int | None = None, max: int | None = None
) -> None:
    """Have what is compiled for this tensor serve every size of a dimension (of that range) from
    the first call on. Raises IndexError where there is no such dimension.
    """
    low = 2 if min is None else min
    high = int(INT64.high) if max is None else max
    if low > high:
        raise ValueError(f"min={min} is greater than max={max}")
    _marks(tensor)[_wrapped(tensor, dim)] = low, high


def mark_static(tensor: torch.Tensor, dim: int | None = None) -> None:
    """Have a dimension (None: each) be a constant of what is compiled, though it varies."""
    marks = _marks(tensor)
    dims = range(tensor.dim()) if dim is None else (_wrapped(tensor, dim),)
    marks.update(dict.fromkeys(dims))


def _wrapped(tensor: torch.Tensor, dim: int) -> int:
    if not -tensor.dim() <= dim < tensor.dim():
        raise IndexError(f"dimension {dim} of a tensor with {tensor.dim()} dimensions")
    return dim % tensor.dim()


def _marks(tensor: torch.Tensor) -> dict[int, tuple[int, int] | None]:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"a dimension of a tensor is marked, not one of {type(tensor).__name__}")
    marks: dict[int, tuple[int, int] | None] = tensor.__dict__.setdefault(_OURS, {})
    return marks


def dynamic_dims(
    options: Options, find_differing: Callable[[], Mapping[Source, Collection[int]]]
) -> Callable[[Source, torch.Tensor], Mapping[int, Interval]] | None:
    """What the tracer asks of each tensor input; None: nothing is symbolic."""
    if options.dynamic is False:
        return None
    differing = find_differing()
    asked = dict(options.dynamic) if isinstance(options.dynamic, tuple) else {}

    def dims(source: Source, tensor: torch.Tensor) -> Mapping[int, Interval]:
        found: Dims = dict.fromkeys(differing.get(source, ()), INT64)
        if options.dynamic is True and _is_argument(source, tensor):
            found = dict.fromkeys(range(tensor.dim()), INT64)
        if isinstance(source, Argument):
            found.update(
                {d: Interval(*r) for d, r in asked.get(source.name, ()) if d < tensor.dim()}
            )
        if tensor.__dict__:
            _add_marks(tensor, found)
        return dict(sorted(found.items()))

    return dims


def _is_argument(source: Source, tensor: torch.Tensor) -> bool:
    """Among the arguments themselves: what modules and other objects hold seldom varies."""
    at: Any = source
    while isinstance(at, Item | DictEntry):
        at = at.base
    return isinstance(at, Argument) and not isinstance(tensor, torch.nn.Parameter)


def _add_marks(tensor: torch.Tensor, found: Dims) -> None:
    theirs = tensor.__dict__
    for name in ("_dynamo_dynamic_indices", "_dynamo_weak_dynamic_indices"):
        for dim in theirs.get(name, ()):
            found.setdefault(dim, INT64)
    for named in theirs.get("_dynamo_dynamic_range", ()):
        low, high = (INT64.low if named.min is None else named.min), named.max
        found[named.dim] = Interval(low, INT64.high if high is None else high)
    for dim in theirs.get("_dynamo_static_indices", ()):
        found.pop(dim, None)
    for dim, limits in theirs.get(_OURS, {}).items():
        if limits is None:
            found.pop(dim, None)
        else:
            found[dim] = Interval(*limits)
