"""Tabulates how numba writes every op, constant and conversion of the loop IR.

In: op names, dtypes, operand texts (names or literals, so that repeating one is free). Out:
expressions. Rules that hold throughout:
  - a value of the IR has exactly its dtype; numba widens integers, so results are cast back;
  - 16-bit floats are held as the float32 of the same value and rounded to their own grid after
    every operation; only in memory are they 16 bits;
  - division follows torch's rules for signs, integer division by zero gives 0 and never traps.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import torch

from ...operators.scalar import SCALARS, line_of

__all__ = ["HALVES", "HELPERS", "TYPES", "cast_text", "compute_text", "helpers_of", "literal"]

TYPES: Mapping[torch.dtype, str] = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.float16: "float32",
    torch.bfloat16: "float32",
    **{getattr(torch, name): name for name in ("int8", "int16", "int32", "int64")},
    **{getattr(torch, name): name for name in ("uint8", "uint16", "uint32", "uint64")},
    torch.bool: "boolean",
}
HALVES: Mapping[torch.dtype, str] = {torch.float16: "f16", torch.bfloat16: "bf16"}

# An operation has a line in each table of a kind of operands that it takes, or one in _EITHER.
_EITHER: Mapping[str, str] = {
    **{"add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "neg": "-{0}"},
    **{"eq": "{0} == {1}", "ne": "{0} != {1}", "lt": "{0} < {1}"},
    **{"le": "{0} <= {1}", "gt": "{0} > {1}", "ge": "{0} >= {1}"},
    "where": "{1} if {0} else {2}",
    "abs": "abs({0})",
    "relu": "{t}(0) if {0} < {t}(0) else {0}",
    "sign": "{t}(int64({0} > {t}(0)) - int64({0} < {t}(0)))",
    "maximum": "{0} if {0} > {1} or {0} != {0} else {1}",
    "minimum": "{0} if {0} < {1} or {0} != {0} else {1}",
    "fmax": "{0} if {0} > {1} or {1} != {1} else {1}",
    "fmin": "{0} if {0} < {1} or {1} != {1} else {1}",
}
_FLOAT: Mapping[str, str] = {
    **{
        name: f"math.{name}({{0}})"
        for name in "exp expm1 log log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh "
        "acosh atanh erf lgamma sqrt".split()
    },
    **{name: f"np.{name}({{0}})" for name in "exp2 log2 floor ceil trunc signbit".split()},
    **{name: f"np.{name}({{0}}, {{1}})" for name in "copysign nextafter hypot fmod".split()},
    "atan2": "math.atan2({0}, {1})",
    "logaddexp": "logaddexp({0}, {1})",
    "truediv": "{0} / {1}",
    "pow": "{0} ** {1}",
    "round": "np.rint({0})",
    "frac": "{0} - np.trunc({0})",
    "rsqrt": "{t}(1) / math.sqrt({0})",
    "reciprocal": "{t}(1) / {0}",
    "sigmoid": "{t}(1) / ({t}(1) + math.exp(-{0}))",
    "isnan": "{0} != {0}",
    "isinf": "abs({0}) == {t}(math.inf)",
    "isfinite": "abs({0}) < {t}(math.inf)",
    "erfinv": "erfinv(float64({0}))",
    "erfc": "math.erfc(float64({0}))",  # the libm's erfcf errs by 2.5 ulp
    "remainder": "remainder_float({0}, {1})",
    "floordiv": "floordiv_float({0}, {1})",
    "fma": "fma({0}, {1}, {2})",
}
_SINGLE = {"fma": "float32(float64({0}) * float64({1}) + float64({2}))"}
_INTEGER: Mapping[str, str] = {
    **{"bitwise_and": "{0} & {1}", "bitwise_or": "{0} | {1}", "bitwise_xor": "{0} ^ {1}"},
    "bitwise_not": "~{0}",
    "lshift": "lshift({0}, {1}, {w})",
    "rshift": "rshift({0}, {1}, {w})",
    "floordiv": "floordiv_integer({0}, {1})",
    "fmod": "fmod_integer({0}, {1})",
    "remainder": "remainder_integer({0}, {1})",
}
_BOOL: Mapping[str, str] = {
    "logical_and": "{0} and {1}",
    "logical_or": "{0} or {1}",
    "logical_xor": "{0} != {1}",
    "logical_not": "not {0}",
    **{"eq": "{0} == {1}", "ne": "{0} != {1}", "lt": "not {0} and {1}", "gt": "{0} and not {1}"},
    **{"le": "not {0} or {1}", "ge": "{0} or not {1}", "where": "{1} if {0} else {2}"},
}
_TABLES: Mapping[str, tuple[Mapping[str, str], ...]] = {
    **dict.fromkeys(TYPES.values(), (_INTEGER, _EITHER)),
    "float32": (_SINGLE, _FLOAT, _EITHER),
    "float64": (_FLOAT, _EITHER),
    "boolean": (_BOOL,),
}

HELPERS: Mapping[str, str] = {
    "erfinv": """\
@inline
def erfinv(y):
    # Winitzki's closed form, then Halley's iteration
    a = abs(y)
    rest = 1.0 - a
    if not a < 1.0:
        return math.copysign(math.inf, y) if a == 1.0 else math.nan
    if a < 1e-9:
        return y * 0.88622692545275801365
    l = math.log(rest * (1.0 + a))
    h = 4.33074675078 + 0.5 * l
    x = math.sqrt(math.sqrt(h * h - l / 0.147) - h)
    for _ in range(3):
        error = math.erf(x) - a if a < 0.5 else rest - math.erfc(x)
        step = error / (1.1283791670955125739 * math.exp(-x * x))
        x -= step / (1.0 + x * step)
    return math.copysign(x, y)""",
    "logaddexp": """\
@inline
def logaddexp(a, b):
    if a == b and abs(a) == math.inf:
        return a
    greatest = a if a > b or a != a else b
    return greatest + math.log1p(math.exp(-abs(a - b)))""",
    "remainder_float": """\
@inline
def remainder_float(a, b):
    rest = np.fmod(a, b)
    return rest + b if rest != 0 and (rest < 0) != (b < 0) else rest""",
    "floordiv_float": """\
@inline
def floordiv_float(a, b):
    # the quotient that goes with the remainder: what divides exactly
    if b == 0:
        return a / b
    rest = np.fmod(a, b)
    quotient = (a - rest) / b
    if rest != 0 and (rest < 0) != (b < 0):
        quotient = quotient - int8(1)
    if quotient == 0:
        return np.copysign(quotient, a / b)
    whole = np.floor(quotient)
    return whole + int8(1) if quotient - whole > 0.5 else whole""",
    "floordiv_integer": """\
@inline
def floordiv_integer(a, b):
    if b == 0:
        return a - a
    if b == -1:
        return -a
    return a // b""",
    "remainder_integer": """\
@inline
def remainder_integer(a, b):
    if b == 0 or b == -1:
        return a - a
    return a % b""",
    "fmod_integer": """\
@inline
def fmod_integer(a, b):
    if b == 0 or b == -1:
        return a - a
    rest = a % b
    return rest - b if rest != 0 and (a < 0) != (b < 0) else rest""",
    "lshift": """\
@inline
def lshift(a, b, width):
    return a << b if 0 <= b and b < width else a - a""",
    "rshift": """\
@inline
def rshift(a, b, width):
    return a >> b if 0 <= b and b < width else a >> (width - 1)""",
    "round_bf16": """\
@inline
def round_bf16(x):
    if x != x:
        return x
    low = bits(x)
    return real(uint32((low + uint32(0x7FFF) + ((low >> 16) & uint32(1))) & uint32(0xFFFF0000)))""",
    "load_bf16": """\
@inline
def load_bf16(stored):
    return real(uint32(uint32(stored) << 16))""",
    "store_bf16": """\
@inline
def store_bf16(x):
    return uint16(0x7FC0) if x != x else uint16(bits(x) >> 16)""",
    "round_f16": """\
@inline
def round_f16(x):
    size = abs(x)
    if x != x or size < float32(65520):
        # adding 1.5 * 2**(exponent + 13) leaves eleven bits, below 2**-14 multiples of 2**-24
        high = max(uint32(bits(x) & uint32(0x7F800000)), uint32(113 << 23))
        big = real(uint32(high + uint32((13 << 23) + 0x400000)))
        return x if x != x else math.copysign((size + big) - big, x)
    return math.copysign(float32(math.inf), x)""",
    "load_f16": """\
@inline
def load_f16(stored):
    word = uint32(stored)
    sign = uint32((word & uint32(0x8000)) << 16)
    size = uint32((word & uint32(0x7FFF)) << 13)
    if (word & uint32(0x7C00)) == uint32(0x7C00):
        return real(uint32(sign | size | uint32(0x7F800000)))
    return real(uint32(sign | bits(float32(real(size) * float32(2.0**112)))))""",
    "store_f16": """\
@inline
def store_f16(x):
    sign = uint32((bits(x) >> 16) & uint32(0x8000))
    if x != x:
        return uint16(0x7E00)
    if abs(x) == float32(math.inf):
        return uint16(sign | uint32(0x7C00))
    return uint16(sign | (bits(float32(abs(x) * float32(2.0**-112))) >> 13))""",
}
"""Functions that kernels of a module may call; those it names are written above it."""


def helpers_of(text: str) -> list[str]:
    """Return the helper functions that the text calls."""
    return [body for name, body in HELPERS.items() if re.search(rf"\b{name}\(", text)]


def literal(value: bool | int | float, dtype: torch.dtype) -> str:
    """Return a constant of exactly that dtype."""
    if dtype == torch.bool:
        return "True" if value else "False"
    if not dtype.is_floating_point:
        return f"{TYPES[dtype]}({int(value)})"
    exact = torch.tensor(float(value), dtype=dtype).item() if dtype in HALVES else float(value)
    if math.isnan(exact):
        return f"{TYPES[dtype]}(math.nan)"
    if math.isinf(exact):
        return f"{TYPES[dtype]}({'-' if exact < 0 else ''}math.inf)"
    return f"{TYPES[dtype]}({exact!r})"


def compute_text(op: str, args: Sequence[str], dtype: torch.dtype, operand: torch.dtype) -> str:
    """Return `op` on operands of dtype `operand`, with a result of `dtype`."""
    kind, chooses = TYPES[operand], SCALARS[op].conditional
    text = line_of(op, "numba", *_TABLES[kind]).format(*args, t=kind, w=operand.itemsize * 8)
    if dtype == torch.bool or (chooses and dtype not in HALVES):
        return text
    if dtype in HALVES:
        return text if chooses else f"round_{HALVES[dtype]}(float32({text}))"
    return f"{TYPES[dtype]}({text})"


def cast_text(text: str, source: torch.dtype, target: torch.dtype) -> str:
    """Return `text` converted as Tensor.to converts it."""
    if target == torch.bool:
        return f"{text} != 0"
    if target in HALVES:
        return f"round_{HALVES[target]}(float32({text}))"
    if source.is_floating_point and target.itemsize < 4:
        text = f"int64({text})"
    return f"{TYPES[target]}({text})"
