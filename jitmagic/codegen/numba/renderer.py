"""Renders numba: fused nests in, one Python module of scalar loops out (scalar_loops.py).

In: the nests of a schedule, the buffers. Out: KernelSource of language "numba".
runtime/numba_kernels.py supplies the globals of the text. Vectorising is left to LLVM.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch

from ...errors import ToolchainError
from ..scalar_loops import LoopRenderer, LoopText
from .ops import HALVES, HELPERS, TYPES, cast_text, compute_text, helpers_of, literal

__all__ = ["NumbaRenderer"]

_HEAD = """\
import math

import numpy as np
from numba import {types}
"""
_LOCAL = re.compile(  # variables of the kernels, and the module's globals
    r"[vaijrxyz]\d.*|acc.*|at\d+|args|bad|math|np|kernel|inline|pointer|bits|real|fma|False|True|None"
    r"|abs|range|int|and|or|not|if|else|for|in|is|def|return|lambda|while|del|pass|from|import|as"
    r"|with|try|class|global|assert|break|continue|elif|except|finally|raise|yield|async|await|max"
)


class _Text(LoopText):
    """Writes one function of the module."""

    def is_reserved(self, name: str) -> bool:
        if name in HELPERS or name in TYPES.values() or name in ("uint16", "uint32"):
            return True
        return _LOCAL.fullmatch(name) is not None

    def signature(self) -> tuple[list[str], str, str]:
        above = [f"# {', '.join(self.kernel.origins)}", "@kernel"]
        return above, f"def {self.kernel.name}(args):", ""

    def argument(self, number: int, name: str, dtype: torch.dtype) -> str:
        return f"{name} = pointer(args[{number}], {_memory_type(dtype, self.kernel.name)})"

    def size(self, number: int, place: int, name: str) -> str:
        return f"{name} = pointer(args[{number}], int64)[{place}]"

    def loop(self, variable: str, extent: str) -> tuple[str, str]:
        return f"for {variable} in range({extent}):", ""

    def let(self, name: str, code: str, dtype: torch.dtype) -> str:
        return f"{name} = {code}"

    def when(self, condition: str, lines: Sequence[str]) -> list[str]:
        return [f"if {condition}:", *(f"    {line}" for line in lines)]

    def choose(self, condition: str, chosen: str, otherwise: str) -> str:
        return f"{chosen} if {condition} else {otherwise}"

    def literal(self, value: bool | int | float, dtype: torch.dtype) -> str:
        return literal(value, dtype)

    def cast(self, code: str, source: torch.dtype, dtype: torch.dtype) -> str:
        return cast_text(code, source, dtype)

    def compute(
        self, op: str, args: Sequence[str], dtype: torch.dtype, operand: torch.dtype
    ) -> str:
        return compute_text(op, args, dtype, operand)

    def element(self, name: str, index: str, dtype: torch.dtype) -> str:
        code = f"{name}[{index}]"
        if dtype in HALVES:
            return f"load_{HALVES[dtype]}({code})"
        return f"{code} != 0" if dtype == torch.bool else code

    def set_element(self, name: str, index: str, value: str, dtype: torch.dtype) -> str:
        if dtype in HALVES:
            value = f"store_{HALVES[dtype]}({value})"
        return f"{name}[{index}] = {f'uint8({value})' if dtype == torch.bool else value}"


class NumbaRenderer(LoopRenderer):
    """Renders nests for a CPU without a C++ compiler."""

    language = "numba"
    text = _Text

    def module(self, functions: Sequence[str]) -> str:
        kernels = "\n\n\n".join(functions)
        body = "\n\n\n".join([*helpers_of(kernels), kernels])
        names = sorted({name for name in TYPES.values() if re.search(rf"\b{name}\b", body)})
        head = _HEAD.format(types=", ".join(names))
        return f"{head}\n\n{body}\n"


def _memory_type(dtype: torch.dtype, kernel: str) -> str:
    """Return the type of an element in memory."""
    if dtype not in TYPES:
        raise ToolchainError("numba", kernel, f"no numba for {dtype} tensors")
    if dtype in HALVES:
        return "uint16"
    return "uint8" if dtype == torch.bool else TYPES[dtype]
