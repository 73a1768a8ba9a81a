"""Writes small pieces of C++ text: types, literals, names, index expressions.

In: dtypes, constants, expressions over axes. Out: strings. No state.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Collection, Mapping, Sequence

import torch

from ..loops.expr import (
    Add,
    Apply,
    AxisVar,
    Expr,
    FloorDiv,
    Integer,
    Mod,
    Symbol,
    ValueIndex,
    axes_of,
    bounds,
    substitute,
)
from ..symbols.size import Dimension, Size
from .text import sum_text

__all__ = [
    "CTYPES",
    "LANE_SIZE_OPS",
    "blocks_text",
    "closed",
    "count_text",
    "element",
    "index_text",
    "is_reserved",
    "literal",
    "name_sizes",
    "renamed",
    "start_text",
    "step_text",
]

CTYPES: Mapping[torch.dtype, str] = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "jm::f16",
    torch.bfloat16: "jm::bf16",
    torch.int8: "int8_t",
    torch.int16: "int16_t",
    torch.int32: "int32_t",
    torch.int64: "int64_t",
    torch.uint8: "uint8_t",
    torch.uint16: "uint16_t",
    torch.uint32: "uint32_t",
    torch.uint64: "uint64_t",
    torch.bool: "bool",
    torch.float8_e4m3fn: "jm::f8",
}
# User arguments may have any of these names: g++ refused kernels with one called nullptr.
_KEYWORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t
    class compl const const_cast constexpr continue decltype default delete do double dynamic_cast
    else enum explicit export extern false float for friend goto if inline int long mutable
    namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
    reinterpret_cast return short signed sizeof static static_assert static_cast struct switch
    template this thread_local throw true try typedef typeid typename union unsigned using virtual
    void volatile wchar_t while xor xor_eq
"""  # [lex.key] of C++17, which kernels are compiled as
_RESERVED = "main args bad begin end n sum jm part L first rows finish"
_TAKEN = frozenset([*_KEYWORDS.split(), *_RESERVED.split(), *CTYPES.values(), "errno", "size_t"])
_LOCAL = re.compile(r"[vijrpn]\d|row|part|acc|tile|after\d+")
LANE_SIZE_OPS = {"//": "floordiv", "%": "remainder"}
_SIZE_OPS = {"//": "floordiv", "%": "wrapped", "min": "minimum", "max": "maximum"}
_CALLS = (*_SIZE_OPS.values(), "rows_of_block")
_SIZE_CALL = re.compile(rf"\bjm::(?:{'|'.join(_CALLS)})\(int64_t\(")
_SIZE_WORDS = ("jm", "int64_t", *_CALLS)


def literal(value: bool | int | float, dtype: torch.dtype) -> str:
    """Return a constant of that dtype."""
    if dtype == torch.bool:
        return "true" if value else "false"
    if dtype in (torch.float32, torch.float64):
        return _real(float(value), dtype)
    if dtype in (torch.float16, torch.bfloat16):
        return f"jm::convert<{CTYPES[dtype]}>({_real(float(value), torch.float32)})"
    number = int(value)
    # C++ reads -2**63 as the negation of a literal that no int64 can hold.
    if number == -(2**63):
        return "INT64_MIN"
    suffix = "u" if number > 2**63 - 1 else ""
    return str(number) if dtype == torch.int32 else f"{CTYPES[dtype]}({number}{suffix})"


def _real(value: float, dtype: torch.dtype) -> str:
    single = dtype == torch.float32
    f = "f" if single else ""
    if math.isnan(value):
        return f'__builtin_nan{f}("")'
    if single and math.isfinite(value):
        try:
            # Eager rounds a constant beyond float32's range to infinity.
            struct.pack("f", value)
        except OverflowError:
            value = math.copysign(math.inf, value)
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}__builtin_inf{f}()"
    return f"{value!r}{f}"


def element(pointer: str, index: str, dtype: torch.dtype) -> str:
    """Return the value of an element in memory."""
    # A bool there may be any byte, and is true unless the byte is 0: sums of bools that were made
    # by .view(torch.bool) gave 384 for 3.
    return f"jm::element({pointer}, {index})" if dtype == torch.bool else f"{pointer}[{index}]"


def is_reserved(name: str) -> bool:
    """Return whether a name has a meaning in C++ or in kernels."""
    return name in _TAKEN or _LOCAL.match(name) is not None


def renamed(name: str) -> str:
    """Return a C++ variable in place of a reserved name."""
    return f"{name}_" if name[0].isalpha() else f"b{name}"


def closed(text: str) -> str:
    """Return the text, in parentheses if an adjacent operator could bind to a part of it."""
    if re.fullmatch(r"[\w.]+(<[\w:, ]*>)?", text) or _is_call(text):
        return text
    return f"({text})"


def _is_call(text: str) -> bool:
    """Return whether the text is a single call or subscript, `f(...)`, closed at its very end."""
    head = re.match(r"[\w:]+(<[\w:, ]*>)?[(\[]", text)
    if head is None or text[-1] not in ")]":
        return False
    depth = 0
    for position in range(head.end() - 1, len(text)):
        depth += (text[position] in "([") - (text[position] in ")]")
        if depth == 0:
            return position == len(text) - 1
    return False


def index_text(expr: Expr, run_time: Callable[[ValueIndex], str]) -> str:
    """Return the expression in int64 arithmetic; axes are variables of their own name."""
    return sum_text(expr, lambda atom: _atom(atom, run_time))


def count_text(count: Dimension) -> str:
    """Return an extent or a stride in int64 arithmetic."""
    return index_text(count.expr, _no_values) if isinstance(count, Size) else str(count)


def blocks_text(width: int, extent: Dimension) -> str:
    """Return the beginning of a loop over blocks of lanes in `[0, extent)`, without its body."""
    if isinstance(extent, Size):
        return f"jm::blocks<{width}>({count_text(extent)}, "
    # With a constant count only the loops that run are compiled: 124 ms per kernel instead of 139
    # (mean of 24, g++ and linker).
    return f"jm::blocks<{width}, {extent}>("


def step_text(step: int | Expr) -> str:
    """Return a stride (structure.coefficient) in int64 arithmetic."""
    return index_text(step, _no_values) if isinstance(step, Expr) else str(step)


def start_text(pointer: str, offset: Expr) -> str:
    """Return the address of an access where all axes are 0."""
    first = substitute(offset, dict.fromkeys(axes_of(offset), Integer(0)))
    return pointer if first == Integer(0) else f"{pointer} + {step_text(first)}"


def _no_values(index: ValueIndex) -> str:
    raise TypeError(f"a run-time index in a size: {index!r}")


def _atom(expr: Expr, run_time: Callable[[ValueIndex], str]) -> str:
    match expr:
        case AxisVar(axis):
            return axis.name
        case Symbol(name):
            return name
        case ValueIndex():
            return run_time(expr)
        case Apply(op, args):
            return _sized(op, [closed(index_text(part, run_time)) for part in args])
        case FloorDiv(a, b):
            return _division(a, b, "/", "floordiv", run_time)
        case Mod(a, b):
            return _division(a, b, "%", "remainder", run_time)
        case Integer() | Add():
            return f"({index_text(expr, run_time)})"
    raise TypeError(f"not an index expression: {expr!r}")


def _sized(op: str, texts: list[str]) -> str:
    """Return arithmetic over dynamic sizes."""
    if op == "*":
        return " * ".join(texts)
    return f"jm::{_SIZE_OPS[op]}({', '.join(f'int64_t({text})' for text in texts)})"


def name_sizes(
    lines: Sequence[str], symbols: Collection[str], new_name: Callable[[], str]
) -> list[str]:
    """Hoist calls that depend on symbols alone into definitions above the lines."""
    # A division by a run-time size takes as long as ten elements of a row, and would be in every
    # step of it.
    names: dict[str, str] = {}

    def named(line: str) -> str:
        at = 0
        while found := _SIZE_CALL.search(line, at):
            call = _call_at(line, found.start())
            at = found.end()
            if set(re.findall(r"[a-z_]\w*", call)) <= {*symbols, *_SIZE_WORDS}:
                name = names[call] if call in names else names.setdefault(call, new_name())
                line = line.replace(call, name)
                at = found.start() + len(name)
        return line

    changed = [named(line) for line in lines]
    return [*(f"const int64_t {name} = {call};" for call, name in names.items()), *changed]


def _call_at(line: str, start: int) -> str:
    """Return the call that begins at `start`, up to its closing bracket."""
    depth = 0
    for position in range(line.index("(", start), len(line)):
        depth += (line[position] == "(") - (line[position] == ")")
        if depth == 0:
            return line[start : position + 1]
    raise ValueError(f"a call that does not end: {line[start:]}")


def _division(a: Expr, b: int, sign: str, name: str, run_time: Callable[[ValueIndex], str]) -> str:
    inside = index_text(a, run_time)
    # C++ rounds to zero, which is floor division only for non-negative operands.
    if bounds(a)[0] >= 0:
        return f"({closed(inside)} {sign} {b})"
    return f"jm::{name}(int64_t({inside}), int64_t({b}))"
