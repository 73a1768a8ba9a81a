"""Constructs scalar values by the dtype rules of the IR.

In: Values and Python numbers. Out: interned Values, with the trivial cases folded (a cast to the
same dtype, bool arithmetic as logic). Lowerings write `add(x, mul(y, 2.0))`; numbers take the dtype
of the other operand. Nothing here depends on tensors, buffers or axes.
"""

from __future__ import annotations

import math

import torch

from ..operators.scalar import SCALARS
from ..symbols.size import Size
from .ir import Cast, Compute, Constant, IndexValue, Value

__all__ = [
    "FLOATS",
    "HALVES",
    "INTEGERS",
    "Number",
    "cast",
    "compute",
    "constant",
    "identity",
    "number",
    "opmath",
    "round_to",
    "where",
]

Number = bool | int | float

HALVES = frozenset({torch.float16, torch.bfloat16})
FLOATS = frozenset({torch.float64, torch.float32, *HALVES})
INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})


def opmath(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of arithmetic: float32 for the 16-bit floats, else the dtype itself."""
    return torch.float32 if dtype in HALVES else dtype


def constant(value: Number, dtype: torch.dtype) -> Constant:
    """Return a number as a value of `dtype`, in the dtype's Python type."""
    if dtype is torch.bool:
        return Constant(bool(value), dtype)
    return Constant(float(value) if dtype in FLOATS else int(value), dtype)


def number(value: Number | Size, dtype: torch.dtype) -> Value:
    """Return a number or a size as a value."""
    if isinstance(value, Size):
        return cast(IndexValue(value.expr), dtype)
    return constant(value, dtype)


def identity(op: str, dtype: torch.dtype) -> Number:
    """Return the identity of a reduction; for argmax and argmin the worst value."""
    if op in ("sum", "any"):
        return 0
    if op in ("prod", "all"):
        return 1
    if op == "logsumexp":
        return -math.inf
    low = op in ("max", "max_number", "argmax")
    if dtype.is_floating_point:
        return -math.inf if low else math.inf
    if dtype == torch.bool:
        return not low
    facts = torch.iinfo(dtype)
    return facts.min if low else facts.max


def round_to(value: Number, dtype: torch.dtype) -> Number:
    """Return the number nearest to `value` that `dtype` holds."""
    return torch.tensor(value, dtype=dtype).item()


def cast(value: Value, dtype: torch.dtype) -> Value:
    """Convert as `Tensor.to` does; to bool means != 0."""
    return value if value.dtype is dtype else Cast(value, dtype)


def compute(op: str, *args: Value | Number | Size) -> Value:
    """Apply a scalar operation; numbers take the dtype of the first Value among the arguments."""
    row = SCALARS[op]
    dtype = next(arg.dtype for arg in args if isinstance(arg, Value))
    values = tuple(arg if isinstance(arg, Value) else number(arg, dtype) for arg in args)
    if row.of_whole is not None and dtype not in FLOATS:
        same = row.of_whole == "same"
        return values[0] if same else constant(bool(row.of_whole), torch.bool)
    if row.of_bools is not None and dtype is torch.bool:
        row = SCALARS[row.of_bools]
    return Compute(row.name, values, torch.bool if row.boolean else values[0].dtype)


def where(condition: Value, yes: Value | Number | Size, no: Value | Number | Size) -> Value:
    """Choose elementwise; both sides are evaluated."""
    dtype = next(arg.dtype for arg in (yes, no) if isinstance(arg, Value))
    pair = tuple(arg if isinstance(arg, Value) else number(arg, dtype) for arg in (yes, no))
    return Compute("where", (condition, *pair), dtype)
