"""Lowers operators by the formulas that users register (`jitmagic.extend.register_lowering`).

In: a formula of scalars, and the dimensions that its reductions combine. Out: a lowering as those
in ops/. The formula runs at one point of the result: each tensor is its element at that point.
Along the combined dimensions, elements are read at axes that the reductions bind; a result with
these dimensions has the same axes as its own loops, which reductions bind again, as a lambda may
reuse a name. A formula that raises leaves the call to the operator's kernel, with a warning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from ..errors import ExtensionFailed, UsageError, warn
from ..extend.operator_rows import LOWERINGS, RegisteredLowering, row_of
from ..graph.operators.raising import call_may_raise
from ..late import late_names
from ..lazy_dataclass import dataclass
from ..operators.scalar import SCALARS, ScalarOperation
from ..symbols.size import Size, SizeFloat
from ..torch_types import AnyFunction, OpOverload
from .builder import Decline, LoopBuilder, Out
from .expr import Axis, AxisVar
from .free_axes import value_axes
from .ir import Reduction, Value, walk
from .ops.views import wrap_dim
from .registry import operand_value
from .tensor_view import NumberView, Point, TensorView, broadcast_shapes
from .values import FLOATS, cast, compute, constant, number, opmath, where

if TYPE_CHECKING:
    from ..extend.scalars import Scalar
else:
    late_names(globals(), {"extend.scalars": "Scalar"})

__all__ = ["registered_lowering"]


def registered_lowering(op: OpOverload) -> AnyFunction | None:
    """Return the lowering of an operator that a user has registered, or None."""
    row = row_of(LOWERINGS.rows, op)
    if row is None:
        return None

    def lowering(builder: LoopBuilder, out: Out, *args: object, **kwargs: object) -> object:
        try:
            return _Formula(builder, row, op, out, args, kwargs).lowered()
        except NotImplementedError as why:
            raise Decline(str(why) or "its registered lowering declines the call") from None
        except Decline:
            raise
        except Exception as error:  # the user's code may raise anything
            failed = ExtensionFailed("lowering", row.name, row.run, error)
            warn(f"{failed}\n  the call runs by the operator's own kernel")
            raise Decline(str(failed)) from None

    return lowering


@dataclass(frozen=True, slots=True)
class _Formula:
    """A call of an operator with a registered formula."""

    builder: LoopBuilder
    row: RegisteredLowering
    op: OpOverload
    out: Out
    args: tuple[object, ...]
    kwargs: Mapping[str, object]

    def lowered(self) -> object:
        """Add the nest of the call; return its view, or a list of views."""
        if any(str(returned.type) != "Tensor" for returned in self.op._schema.returns):
            raise Decline("a result that is not one tensor")
        domain = self._domain()
        dims = self._dims(len(domain))
        parts, places = [], []
        for place, spec in enumerate(self.out.specs):
            part = self.out if len(self.out.specs) == 1 else self.out.part(place)
            if spec is None or part is None:
                continue
            rows = _Rows.of(domain, dims, spec.shape)
            inner = dims if rows.keeps_all else ()
            parts.append((part, self._reader(rows, place, spec.dtype), inner))
            places.append(place)
        views = self.builder.nest(self.out.name, parts)
        if len(self.out.specs) == 1:
            return views[0]
        made: list[TensorView | None] = [None] * len(self.out.specs)
        for place, view in zip(places, views, strict=True):
            made[place] = view
        return made

    def _domain(self) -> tuple[int, ...]:
        """Return the shape to which the tensors broadcast."""
        given = (*self.args, *self.kwargs.values())
        shape = broadcast_shapes([one.shape for one in given if isinstance(one, TensorView)])
        if shape is None:
            raise Decline("the tensors do not broadcast")
        return shape

    def _dims(self, rank: int) -> tuple[int, ...]:
        over = self.row.over
        if isinstance(over, str):
            names = [argument.name for argument in self.op._schema.arguments]
            at = names.index(over)
            given: Any = self.args[at] if at < len(self.args) else self.kwargs.get(over)
            over = tuple(range(rank)) if given is None or given == [] else given
        listed = () if over is None else (over,) if isinstance(over, int) else over
        return tuple(sorted({wrap_dim(dim, rank) for dim in listed})) if rank else ()

    def _reader(self, rows: _Rows, place: int, dtype: torch.dtype) -> Any:
        """Return the function that gives the value of one result at a point."""

        def value(point: Point) -> Value:
            at, axes = rows.read_at(self.builder, point)
            scalars = _Scalars(axes, rows.count, self.row.over is not None)
            args = [self._operand(scalars, one, at) for one in self.args]
            kwargs = {name: self._operand(scalars, one, at) for name, one in self.kwargs.items()}
            made = self.row.run(*args, **kwargs)
            results = made if isinstance(made, tuple | list) else (made,)
            if len(results) != len(self.op._schema.returns):
                raise ValueError(f"{len(results)} results, not {len(self.op._schema.returns)}")
            result = scalars.value_of(results[place], dtype)
            free = value_axes(walk([result]))[result]
            if not rows.keeps_all and not free.isdisjoint(axes):
                raise ValueError("a result reads single elements along the dimensions of `over`")
            return result

        return value

    def _operand(self, scalars: _Scalars, operand: Any, point: Point) -> object:
        through: tuple[torch.dtype, ...]
        match operand:
            case TensorView(dtype=dtype):
                through = (dtype, opmath(dtype))
            case NumberView() | SizeFloat():
                through = (torch.float64,)
            case Size():
                through = (torch.int64,)
            case list() | tuple() if any(isinstance(one, TensorView | Size) for one in operand):
                raise Decline("a list of tensors or sizes")
            case _:
                return operand
        value = operand_value(self.builder, operand, through, point)
        assert value is not None
        return Scalar(scalars, value, value.dtype, weak=not isinstance(operand, TensorView))


@dataclass(frozen=True, slots=True)
class _Rows:
    """The elements that a result reads: all of the domain along the dimensions `dims`."""

    domain: tuple[int, ...]
    dims: tuple[int, ...]
    keeps_all: bool  # whether the result has the domain's shape
    keeps_ones: bool  # whether it has dimensions of size 1 in place of `dims`

    @classmethod
    def of(cls, domain: tuple[int, ...], dims: tuple[int, ...], shape: tuple[int, ...]) -> _Rows:
        """Raises ValueError if the result has another shape."""
        ones = tuple(1 if d in dims else size for d, size in enumerate(domain))
        without = tuple(size for d, size in enumerate(domain) if d not in dims)
        if shape not in (domain, ones, without):
            raise ValueError(f"the result has shape {[*shape]}, its tensors {[*domain]}")
        return cls(domain, dims, shape == domain, shape == ones)

    @property
    def count(self) -> int:
        return prod(self.domain[d] for d in self.dims)

    def read_at(self, builder: LoopBuilder, point: Point) -> tuple[Point, tuple[Axis, ...]]:
        """Return the point of the domain for one of the result, and the axes of `dims`."""
        if self.keeps_all:
            joined = point
        else:
            _, inside = builder.grid([self.domain[d] for d in self.dims])
            bound, free = iter(inside), iter(point)
            parts = []
            for d in range(len(self.domain)):
                if d in self.dims:
                    parts.append(next(bound))
                    if self.keeps_ones:
                        next(free)
                else:
                    parts.append(next(free))
            joined = tuple(parts)
        along = [joined[d] for d in self.dims]
        return joined, tuple(part.axis for part in along if isinstance(part, AxisVar))


class _Scalars:
    """Makes values of the scalars of one formula."""

    def __init__(self, axes: tuple[Axis, ...], count: int, reduces: bool) -> None:
        self._axes, self._count, self._reduces = axes, count, reduces

    def value_of(self, result: Any, dtype: torch.dtype) -> Value:
        """Return a result of the formula as a value."""
        if isinstance(result, Scalar):
            return cast(result.value, dtype)
        if isinstance(result, bool | int | float):
            return constant(result, dtype)
        raise TypeError(f"a result is a Scalar or a number, not {result!r}")

    def convert(self, value: Scalar, dtype: torch.dtype) -> Scalar:
        return Scalar(self, cast(value.value, dtype), dtype, weak=False)

    def reduce(self, name: str, value: Scalar) -> Scalar:
        """Combine the elements along the dimensions of `over`."""
        if not self._reduces:
            raise UsageError(f".{name}() needs register_lowering(..., over=dimensions)")
        if self._count == 0:
            raise Decline("a reduction of no elements")
        made = value.value
        if name in ("any", "all"):
            made = cast(made, torch.bool)
        elif made.dtype not in FLOATS and name in ("sum", "prod"):
            made = cast(made, torch.int64)
        elif name == "mean" and made.dtype not in FLOATS:
            made = cast(made, torch.get_default_dtype())
        if self._axes:
            op = "sum" if name == "mean" else name
            made = Reduction(op, self._axes, made, made.dtype)
        if name == "mean":
            made = compute("truediv", made, number(self._count, made.dtype))
        return Scalar(self, made, made.dtype, weak=False)

    def apply(self, name: str, args: tuple[object, ...]) -> Scalar:
        """Apply a scalar operation after promoting its operands. Raises UsageError."""
        row = SCALARS.get(name)
        if row is None:
            raise UsageError.unknown("scalar operation", name, SCALARS)
        if len(args) != row.arity:
            raise UsageError(f"{name} takes {row.arity} arguments, not {len(args)}")
        operands = args[1:] if row.conditional else args
        dtype, weak = _promoted(row, operands)
        values = [_as_value(one, dtype) for one in operands]
        if row.conditional:
            made = where(_as_value(args[0], torch.bool), *values)
        else:
            made = compute(name, *values)
        return Scalar(self, made, made.dtype, weak)


def _promoted(row: ScalarOperation, operands: Sequence[object]) -> tuple[torch.dtype, bool]:
    """Return the dtype in which the operation computes, and whether all operands are weak."""
    scalars = [one for one in operands if isinstance(one, Scalar)]
    strong = [one.dtype for one in scalars if not one.weak]
    weak = [one.dtype for one in scalars if one.weak]
    weak += [_DTYPES[type(one)] for one in operands if not isinstance(one, Scalar)]
    kinds, weaker = (strong, weak) if strong else (weak, [])
    dtype = reduce(torch.promote_types, kinds)
    if row.operands == "bools":
        return torch.bool, False
    is_float = row.operands == "floats" and row.rule in _OF_INTEGERS_TOO
    if dtype not in FLOATS and (is_float or any(kind in FLOATS for kind in weaker)):
        dtype = torch.get_default_dtype()
    elif dtype is torch.bool and any(kind is not torch.bool for kind in weaker):
        dtype = torch.int64
    _check(row, dtype, operands)
    return opmath(dtype), not strong


_OF_INTEGERS_TOO = ("float", "float_wide")  # rules by which integers become floats
_DTYPES: dict[type, torch.dtype] = {bool: torch.bool, int: torch.int64, float: torch.float64}


def _check(row: ScalarOperation, dtype: torch.dtype, operands: Sequence[object]) -> None:
    """Raise TypeError for a dtype that the operation does not take, and NotImplementedError if
    eager might raise for integers.
    """
    of_other = row.of_bools if dtype is torch.bool else None
    if not row.takes(dtype) and row.of_whole is None and of_other is None:
        raise TypeError(f"{row.name} of {dtype}: convert it with .to(dtype)")
    if row.packet is not None and call_may_raise(row.packet, operands, {}, dtype):
        raise NotImplementedError(f"{row.name} of integers may raise")


def _as_value(operand: Any, dtype: torch.dtype) -> Value:
    return cast(operand.value, dtype) if isinstance(operand, Scalar) else constant(operand, dtype)
