"""Implements type promotion: the dtypes that an op computes in and returns, as in eager.

In: operands (TensorViews and Python numbers). Out: for each operand the dtypes it is cast through
in turn, and the result's dtype. Lowerings refer to the rules by name. The categories are those of
c10: tensors with dimensions, zero-dimensional tensors, Python numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from ..devices import row_of
from ..graph.operators.shapes import promoted_categories
from ..symbols.size import Size, SizeFloat
from .builder import Decline
from .tensor_view import NumberView, TensorView
from .values import FLOATS, Number, opmath

__all__ = ["RULES", "Casts", "Operand", "result_type"]

Operand = TensorView | NumberView | Number | Size | None
Casts = tuple[tuple[torch.dtype, ...], ...]
Rule = Callable[[Sequence[Operand]], tuple[Casts, torch.dtype]]


def result_type(operands: Sequence[Operand]) -> torch.dtype:
    """Return the common dtype of the operands, by torch's three categories."""
    dims: torch.dtype | None = None
    zeros: torch.dtype | None = None
    numbers: torch.dtype | None = None
    for operand in operands:
        if operand is None:
            continue
        if not isinstance(operand, TensorView):
            numbers = _join(numbers, _number_dtype(operand))
        elif operand.shape:
            dims = _join(dims, operand.dtype)
        else:
            zeros = _join(zeros, operand.dtype)
    if any(kind is not None and kind.is_complex for kind in (dims, zeros, numbers)):
        raise Decline("complex numbers have no loops")
    found = promoted_categories(dims, zeros, numbers)
    if found is None:
        raise Decline("no operand has a dtype")
    return found


def _number_dtype(value: object) -> torch.dtype:
    if isinstance(value, bool):
        return torch.bool
    if isinstance(value, float | NumberView | SizeFloat):
        return torch.get_default_dtype()
    if isinstance(value, int | Size):
        return torch.int64
    raise Decline(f"a {type(value).__name__} operand has no loops")


def _join(a: torch.dtype | None, b: torch.dtype) -> torch.dtype:
    return b if a is None else torch.promote_types(a, b)


def _through(common: torch.dtype, count: int) -> Casts:
    return ((common, opmath(common)),) * count


def _arith(operands: Sequence[Operand]) -> tuple[Casts, torch.dtype]:
    common = result_type(operands)
    return _through(common, len(operands)), common


def _arith_wide(operands: Sequence[Operand]) -> tuple[Casts, torch.dtype]:
    """Promote for mul and div."""
    # They take a CPU scalar on the right in opmath precision, not rounded to 16 bits.
    common = result_type(operands)
    return _widen_scalar(operands, common), common


def _widen_scalar(operands: Sequence[Operand], common: torch.dtype) -> Casts:
    last = operands[-1]
    first = operands[0]
    wide = last.device.type == "cpu" and not last.shape if isinstance(last, TensorView) else True
    casts = _through(common, len(operands))
    is_number = not isinstance(last, TensorView)
    if wide and isinstance(first, TensorView) and (first.shape or is_number):
        return (*casts[:-1], (opmath(common),))
    return casts


def _to_float(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype.is_floating_point else torch.get_default_dtype()


def _float(operands: Sequence[Operand]) -> tuple[Casts, torch.dtype]:
    """Promote integers and bools to the default float dtype."""
    common = _to_float(result_type(operands))
    return _through(common, len(operands)), common


def _float_wide(operands: Sequence[Operand]) -> tuple[Casts, torch.dtype]:
    common = _to_float(result_type(operands))
    return _widen_scalar(operands, common), common


def _on_gpu(operands: Sequence[Operand], common: torch.dtype) -> Casts:
    """Return the casts of numbers next to tensors."""
    # CUDA kernels take them in opmath precision; CPU kernels round them to the common dtype first.
    gpu = any(isinstance(x, TensorView) and row_of(x.device).kernels == "cuda" for x in operands)
    wide, narrow = (opmath(common),), (common, opmath(common))
    return tuple(narrow if isinstance(x, TensorView) or not gpu else wide for x in operands)


def _compare(operands: Sequence[Operand]) -> tuple[Casts, torch.dtype]:
    """Promote for comparisons."""
    # Numbers are rounded to the common dtype first, on every device: 1e30 is inf in float16.
    common = result_type(operands)
    return ((common, opmath(common)),) * len(operands), torch.bool


def _logic(operands: Sequence[Operand]) -> tuple[Casts, torch.dtype]:
    """Convert every operand to a truth value, each in its own dtype."""
    return ((torch.bool,),) * len(operands), torch.bool


def _predicate(operands: Sequence[Operand]) -> tuple[Casts, torch.dtype]:
    """Promote for isnan and the like, which test the operand in its own dtype."""
    common = result_type(operands)
    return _through(common, len(operands)), torch.bool


def _choose(operands: Sequence[Operand]) -> tuple[Casts, torch.dtype]:
    """Promote where(condition, a, b): a and b get their common dtype, without opmath."""
    common = result_type(operands[1:])
    return ((torch.bool,), (common,), (common,)), common


def _integral(operands: Sequence[Operand]) -> tuple[Casts, torch.dtype]:
    common = result_type(operands)
    if common in FLOATS:
        raise Decline("bit operations on floats")
    return _through(common, len(operands)), common


def _alpha(operands: Sequence[Operand]) -> tuple[Casts, torch.dtype]:
    """Promote add(x, y, alpha): the factor does not take part."""
    common = result_type(operands[:2])
    return _on_gpu(operands, common), common


def _value(operands: Sequence[Operand]) -> tuple[Casts, torch.dtype]:
    """Promote addcmul and the like: a trailing number, a factor in opmath precision, takes no
    part.
    """
    *tensors, last = operands
    if isinstance(last, TensorView):
        common = result_type(operands)
        return _through(common, len(operands)), common
    common = result_type(tensors)
    return (*_through(common, len(tensors)), (opmath(common),)), common


def _power(operands: Sequence[Operand]) -> tuple[Casts, torch.dtype]:
    """Promote x ** number."""
    # The exponent is rounded to x's dtype if that has 16 bits, else it keeps its precision; special
    # exponents become products and roots.
    common = result_type(operands)
    wide = torch.float64 if common in FLOATS else torch.int64
    exponent = (wide,) if opmath(common) is common else (common, wide)
    return ((common, opmath(common)), exponent), common


def _fill(operands: Sequence[Operand]) -> tuple[Casts, torch.dtype]:
    """Promote masked_fill(x, mask, value): x's dtype, without opmath."""
    first = operands[0]
    if not isinstance(first, TensorView):
        raise Decline("the first operand is not a tensor")
    return ((first.dtype,), (torch.bool,), (first.dtype,)), first.dtype


RULES: Mapping[str, Rule] = {
    "arith": _arith,
    "arith_wide": _arith_wide,
    "float": _float,
    "float_wide": _float_wide,
    "compare": _compare,
    "logic": _logic,
    "predicate": _predicate,
    "choose": _choose,
    "integral": _integral,
    "alpha": _alpha,
    "value": _value,
    "power": _power,
    "fill": _fill,
}
