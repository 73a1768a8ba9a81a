"""The decomposition table, and what holds for every rule of it.

Complex numbers: a formula for real numbers is not one for complex ones (the derivative of tanh is
1 - y * y, its gradient takes the conjugate), so a rule is asked for them only when it says that it
holds: `rule(..., complex_too=True)`, what moves and fills memory. The others leave the operation
whole.

Precision: an ATen kernel on fp16 or bf16 computes in fp32 and rounds its result once. `rule(...,
opmath=True)` gives a decomposition the same shape: tensors come in as fp32, results are rounded to
the promoted dtype of the arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch

from ...graph.shapes import promoted
from ..recorder import Decomposition, Recorder, Sym

__all__ = ["TABLE", "is_half", "rule", "up"]

TABLE: dict[Any, Decomposition] = {}
Rule = TypeVar("Rule", bound=Decomposition)
_HALF = (torch.float16, torch.bfloat16)


def is_half(dtype: torch.dtype) -> bool:
    return dtype in _HALF


def up(sym: Sym) -> Sym:
    """fp32 for the 16-bit floats, everything else as it is."""
    return sym.to(torch.float32) if sym.dtype in _HALF else sym


def rule(*ops: Any, opmath: bool = False, complex_too: bool = False) -> Callable[[Rule], Rule]:
    """Register a decomposition for the overloads."""

    def register(function: Rule) -> Rule:
        made = cast(Rule, _with_opmath(function)) if opmath else function
        if not complex_too:
            made = cast(Rule, _of_real_numbers(made))
        for op in ops:
            TABLE[op] = made
        return made

    return register


def _of_real_numbers(function: Decomposition) -> Decomposition:
    @wraps(function)
    def declining(recorder: Recorder, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(a, Sym) and a.dtype.is_complex for a in (*args, *kwargs.values())):
            return None
        return function(recorder, *args, **kwargs)

    return declining


def _with_opmath(function: Decomposition) -> Decomposition:
    @wraps(function)
    def rounded(recorder: Recorder, *args: Any, **kwargs: Any) -> Any:
        syms = [a for a in (*args, *kwargs.values()) if isinstance(a, Sym)]
        if not any(sym.dtype in _HALF for sym in syms):
            return function(recorder, *args, **kwargs)
        dtype = promoted([sym.meta for sym in syms])
        made = function(
            recorder,
            *[up(a) if isinstance(a, Sym) else a for a in args],
            **{k: up(a) if isinstance(a, Sym) else a for k, a in kwargs.items()},
        )
        if isinstance(made, Sym):
            return made.to(dtype)
        return None if made is None else [part.to(dtype) for part in made]

    return rounded
