"""Tabulates how Triton writes every op, constant and conversion of the loop IR.

In: op names, dtypes, operand texts (typed Triton values). Out: expressions. Rules that hold
throughout:
  - a value of the IR is a Triton tensor of exactly its dtype (bool is int1);
  - 16-bit floats are computed in float32 and rounded back, as torch's opmath does;
  - division and square root are the correctly rounded ones and transcendental functions are
    libdevice's, which eager's CUDA kernels call; tl.exp and the like are approximations and are not
    used, but for an Approximate, in sums relative to their largest term, where the error is that
    of the largest, and in kernels whose results all have 16 bits (TritonExpressions.approximate);
  - integer division and remainder round down, maximum and minimum propagate NaN, as in torch.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping

import torch

from ...loops.values import HALVES
from ...operators.scalar import SCALARS, line_of
from .device_functions import HELPERS, PROPAGATE_NAN

__all__ = [
    "INFIX",
    "TL_DTYPES",
    "WIDE",
    "cast_text",
    "compute_text",
    "helpers_of",
    "is_call",
    "is_open",
    "literal",
    "plain_number",
    "typed",
]

TL_DTYPES: Mapping[torch.dtype, str] = {
    torch.float32: "tl.float32",
    torch.float64: "tl.float64",
    torch.float16: "tl.float16",
    torch.bfloat16: "tl.bfloat16",
    torch.int8: "tl.int8",
    torch.int16: "tl.int16",
    torch.int32: "tl.int32",
    torch.int64: "tl.int64",
    torch.uint8: "tl.uint8",
    torch.bool: "tl.int1",
    torch.float8_e4m3fn: "tl.float8e4nv",
}
_INTEGERS = {16: torch.int16, 32: torch.int32, 64: torch.int64}
_SMALL = frozenset({torch.int8, torch.int16, torch.uint8})
WIDE: Mapping[torch.dtype, torch.dtype] = {
    **dict.fromkeys(HALVES, torch.float32),
    **dict.fromkeys((*_SMALL, torch.bool), torch.int32),
}
"""Narrow values are held in these dtypes while they are reduced."""

# An operation has a line in each table of a kind of operands that it takes, or one in INFIX or
# _EITHER.
INFIX: Mapping[str, str] = {
    **{"add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}"},
    **{"eq": "{0} == {1}", "ne": "{0} != {1}", "lt": "{0} < {1}"},
    **{"le": "{0} <= {1}", "gt": "{0} > {1}", "ge": "{0} >= {1}"},
    **{"logical_and": "{0} & {1}", "logical_or": "{0} | {1}", "logical_xor": "{0} ^ {1}"},
    **{"bitwise_and": "{0} & {1}", "bitwise_or": "{0} | {1}", "bitwise_xor": "{0} ^ {1}"},
    **{"lshift": "{0} << {1}", "rshift": "{0} >> {1}"},
}
_ONE = "tl.full([], 1.0, {t})"
_EITHER: Mapping[str, str] = {
    "where": "tl.where({0}, {1}, {2})",
    "abs": "tl.abs({0})",
    "sign": "({0} > 0).to({t}) - ({0} < 0).to({t})",
}
_FLOAT: Mapping[str, str] = {
    **{
        name: f"libdevice.{name}({{0}})"
        for name in "rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh "
        "cosh tanh asinh acosh atanh erf erfc erfinv lgamma trunc".split()
    },
    **{
        name: f"libdevice.{name}({{0}}, {{1}})"
        for name in "atan2 hypot pow copysign nextafter fmod".split()
    },
    "neg": "{0} * -1.0",  # older Tritons write minus as 0 - x, which loses the sign of -0.0
    "floor": "tl.floor({0})",
    "ceil": "tl.ceil({0})",
    "round": "libdevice.nearbyint({0})",
    "frac": "{0} - libdevice.trunc({0})",
    "relu": f"tl.maximum({{0}}, tl.full([], 0.0, {{t}}), {PROPAGATE_NAN})",
    "maximum": f"tl.maximum({{0}}, {{1}}, {PROPAGATE_NAN})",
    "minimum": f"tl.minimum({{0}}, {{1}}, {PROPAGATE_NAN})",
    "fmax": "tl.maximum({0}, {1})",
    "fmin": "tl.minimum({0}, {1})",
    "isnan": "{0} != {0}",
    "isinf": 'tl.abs({0}) == float("inf")',
    "isfinite": 'tl.abs({0}) < float("inf")',
    "signbit": "{0}.to({bits}, bitcast=True) < 0",
    "fma": "tl.fma({0}, {1}, {2})",
    "remainder": "remainder_float({0}, {1})",
    "logaddexp": "combine_logsumexp({0}, {1})",
}
_SINGLE: Mapping[str, str] = {
    "truediv": "tl.div_rn({0}, {1})",
    "reciprocal": f"tl.div_rn({_ONE}, {{0}})",
    "sqrt": "tl.sqrt_rn({0})",
    "sigmoid": f"tl.div_rn({_ONE}, 1.0 + libdevice.exp(-{{0}}))",
    "floordiv": "floor_divide_single({0}, {1})",
}
_DOUBLE: Mapping[str, str] = {
    "truediv": "{0} / {1}",
    "reciprocal": f"{_ONE} / {{0}}",
    "sqrt": "libdevice.sqrt({0})",
    "sigmoid": f"{_ONE} / ({_ONE} + libdevice.exp(-{{0}}))",
    "floordiv": "floor_divide_double({0}, {1})",
}
_INTEGER: Mapping[str, str] = {
    "neg": "-{0}",
    "relu": "tl.maximum({0}, tl.full([], 0, {t}))",
    **dict.fromkeys(("maximum", "fmax"), "tl.maximum({0}, {1})"),
    **dict.fromkeys(("minimum", "fmin"), "tl.minimum({0}, {1})"),
    "bitwise_not": "~{0}",
    "logical_not": "~{0}",
    "fmod": "{0} % {1}",
    "floordiv": "floor_divide_integer({0}, {1})",
    "remainder": "remainder_integer({0}, {1})",
    "philox": "philox_bits({0}, {1}, {2}, {3}, {4})",
}
# ptxas before CUDA 13 takes the least int16, negated, for 32768 where it is compared or converted;
# floats keep it from narrowing the sum to 16 bits again.
_NARROW = "({0}).to(tl.int32).to(tl.int16)"
_SHORT: Mapping[str, str] = {
    "neg": _NARROW.format("{0}.to(tl.float32) * -1.0"),
    "abs": _NARROW.format("tl.abs({0}.to(tl.float32))"),
}


def typed(value: bool | int | float, dtype: torch.dtype, shape: str = "[]") -> str:
    """Return a constant of exactly that dtype, by its bits where Triton would change it."""
    # Triton has no -0.0 literal, and prints a bfloat16 with six decimals (1e-08 becomes 0).
    if dtype.is_floating_point and not _survives(float(value), dtype):
        width = torch.finfo(dtype).bits
        bits = torch.tensor(value, dtype=dtype).view(_INTEGERS[width]).item()
        return f"tl.full({shape}, {bits}, tl.int{width}).to({TL_DTYPES[dtype]}, bitcast=True)"
    return f"tl.full({shape}, {plain_number(value, dtype)}, {TL_DTYPES[dtype]})"


def _survives(value: float, dtype: torch.dtype) -> bool:
    if value == 0:
        return math.copysign(1.0, value) > 0
    if dtype != torch.bfloat16 or not math.isfinite(value):
        return True
    exact = torch.tensor(value, dtype=dtype).item()
    return float(f"{exact:.6f}") == exact


def literal(value: bool | int | float, dtype: torch.dtype) -> str:
    """Return a constant as an operand of a tensor of its dtype: a plain number where Triton keeps
    the dtype.
    """
    negative_zero = value == 0 and math.copysign(1.0, value) < 0
    if dtype == torch.float32 and _plain_single(float(value)) and not negative_zero:
        text = plain_number(value, dtype)
        return f"({text})" if text.startswith("-") else text
    if dtype in (torch.int32, torch.int64) and 0 <= value < 2**31:
        return str(int(value))
    return typed(value, dtype)


def _plain_single(value: float) -> bool:
    return value == 0.0 or 2.0**-126 <= abs(value) < 2.0**127


def plain_number(value: bool | int | float, dtype: torch.dtype) -> str:
    """Return a plain number of that dtype, as Triton reads it."""
    if dtype == torch.bool:
        return "1" if value else "0"
    if not dtype.is_floating_point:
        return str(int(value))
    if math.isnan(value) or math.isinf(value):
        return f'float("{float(value)!r}")'
    return _shortest(float(value)) if dtype == torch.float32 else repr(float(value))


def _shortest(value: float) -> str:
    """Return the fewest digits that still round to the same float32."""
    for digits in range(6, 9):
        text = repr(float(f"{value:.{digits}g}"))
        if abs(value) < 2.0**127 and struct.pack("f", float(text)) == struct.pack("f", value):
            return text
    return repr(value)


def compute_text(op: str, args: list[str], dtype: torch.dtype, operand: torch.dtype) -> str:
    """Return `op` on typed operands of dtype `operand`, with a result of `dtype`. Operands with an
    operator have brackets, but for those of `is_call`.
    """
    if _is_widened(op, operand):
        wide = [f"{arg}.to(tl.float32)" for arg in args]
        text = compute_text(op, wide, torch.float32, torch.float32)
        return text if dtype == torch.bool else f"({text}).to({TL_DTYPES[dtype]})"
    template = line_of(op, "triton", *_tables(operand))
    return template.format(*args, t=TL_DTYPES[operand], bits=_bits(operand))


def _is_widened(op: str, operand: torch.dtype) -> bool:
    return operand in HALVES and not SCALARS[op].conditional


def is_call(op: str, operand: torch.dtype) -> bool:
    """Return whether the operation is a function of its operands as they are."""
    if _is_widened(op, operand):
        return False
    line = line_of(op, "triton", *_tables(operand))
    return re.fullmatch(r"[\w.]+\([^()]*\)", line) is not None


def is_open(op: str, dtype: torch.dtype, operand: torch.dtype) -> bool:
    """Return whether an adjacent operator or method could bind to a part of the operation."""
    if _is_widened(op, operand):
        return dtype == torch.bool and is_open(op, dtype, torch.float32)
    line, depth = line_of(op, "triton", *_tables(operand)), 0
    for sign in line:
        depth += (sign in "([") - (sign in ")]")
        if sign == " " and depth == 0:
            return True
    return line[0] in "-~"


def helpers_of(op: str, operand: torch.dtype) -> list[str]:
    """Return the device functions that an operation calls on operands of a dtype."""
    computed = torch.float32 if operand in HALVES else operand
    line = line_of(op, "triton", *_tables(computed))
    return [name for name in HELPERS if f"{name}(" in line]


def _tables(operand: torch.dtype) -> tuple[Mapping[str, str], ...]:
    if operand.is_floating_point:
        return INFIX, (_DOUBLE if operand == torch.float64 else _SINGLE), _FLOAT, _EITHER
    return INFIX, (_SHORT if operand == torch.int16 else {}), _INTEGER, _EITHER


def _bits(dtype: torch.dtype) -> str:
    return "tl.int64" if dtype == torch.float64 else "tl.int32"


def cast_text(text: str, source: torch.dtype, target: torch.dtype) -> str:
    """Return `text` converted as Tensor.to converts it on the same device. It has brackets if it
    has an operator.
    """
    if target == torch.bool:
        return f"{text}.to(tl.float32) != 0" if source in HALVES else f"{text} != 0"
    steps = [target]
    if target in HALVES and (source == torch.float64 or not source.is_floating_point):
        steps = [torch.float32, target]
    elif source in HALVES and target != torch.float32:
        steps = [torch.float32, *_through(target)]
    elif source.is_floating_point:
        steps = _through(target)
    for step in steps:
        text = f"{text}.to({TL_DTYPES[step]})"
    return text


def _through(target: torch.dtype) -> list[torch.dtype]:
    """Return the intermediate dtypes of a cast."""
    # Floats become narrow integers by way of a wide one: wrapped around, not clamped.
    wide = {torch.uint8: torch.int64, torch.int8: torch.int32, torch.int16: torch.int32}
    return [wide[target], target] if target in wide else [target]
