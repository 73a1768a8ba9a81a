"""Writes small pieces of C++ text: types, literals, names.

In: dtypes, constants, names. Out: strings. No state.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping

import torch

__all__ = ["CTYPES", "element", "is_reserved", "literal", "renamed"]

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
_LOCAL = re.compile(r"[vijrpn]\d|row|part|acc|tile|at\d|sum\d|block|size\d|after\d+")


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
