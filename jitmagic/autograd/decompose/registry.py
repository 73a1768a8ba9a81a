"""The decomposition table, and the rules that hold for each entry of it.

Complex numbers: a formula for real numbers does not hold for complex ones (the derivative of tanh
is 1 - y * y, its gradient takes the conjugate). A rule gets them only if it declares so with
`rule(..., complex_too=True)`, which operations that move or fill memory do. The others decline.

Precision: an ATen kernel on fp16 or bf16 computes in fp32 and rounds its result once. `rule(...,
opmath=True)` does the same: tensors come in as fp32, results are rounded to the promoted dtype of
the arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import TypeVar, cast

import torch

from ...devices import row_of
from ...graph.operators.shapes import promoted
from ...late_tables import LateTable
from ...torch_types import OpOverload
from ..recording.recorder import Decomposition, Recorder, Result, Sym

__all__ = ["TABLE", "is_half", "moments_dtype", "rule", "up"]

TABLE: LateTable[OpOverload, Decomposition] = LateTable("decompositions")
Rule = TypeVar("Rule", bound=Decomposition)
_HALF = (torch.float16, torch.bfloat16)


def is_half(dtype: torch.dtype) -> bool:
    return dtype in _HALF


def up(sym: Sym) -> Sym:
    """Cast the 16-bit floats to fp32 and return anything else unchanged."""
    return sym.to(torch.float32) if sym.dtype in _HALF else sym


def moments_dtype(x: Sym) -> torch.dtype | None:
    """Return the dtype in which eager accumulates variances and sums of batch norm, None for x's
    own. It is double for fp32 on the CPU (acc_type in ATen's cpu kernels) and float on a GPU.
    """
    return torch.float64 if x.dtype == torch.float32 and row_of(x.device).kernels == "cpu" else None


def rule(
    *ops: OpOverload, opmath: bool = False, complex_too: bool = False
) -> Callable[[Rule], Rule]:
    """Register a decomposition for the overloads."""

    def register(function: Rule) -> Rule:
        wrapped = cast(Rule, _with_opmath(function)) if opmath else function
        if "reduction" in function.__annotations__:
            wrapped = cast(Rule, _known_reductions_only(wrapped))
        if not complex_too:
            wrapped = cast(Rule, _real_only(wrapped))
        for op in ops:
            TABLE[op] = wrapped
        return wrapped

    return register


# Declining means None: the recorder then keeps the ATen call, whose kernel is right by definition.
def _real_only(function: Decomposition) -> Decomposition:
    @wraps(function)
    def declining(recorder: Recorder, *args: object, **kwargs: object) -> Result:
        if any(isinstance(a, Sym) and a.dtype.is_complex for a in (*args, *kwargs.values())):
            return None
        return function(recorder, *args, **kwargs)

    return declining


def _dtype_of(results: Result) -> torch.dtype | None:
    first = results if isinstance(results, Sym) else next(iter(results or ()), None)
    return first.dtype if isinstance(first, Sym) else None


def _known_reductions_only(function: Decomposition) -> Decomposition:
    """Decline other reduction numbers, which the kernel has to judge."""
    takes = signature(function)

    @wraps(function)
    def declining(recorder: Recorder, *args: object, **kwargs: object) -> Result:
        bound = takes.bind(recorder, *args, **kwargs)
        bound.apply_defaults()
        known = bound.arguments["reduction"] in (0, 1, 2)
        return function(recorder, *args, **kwargs) if known else None

    return declining


def _with_opmath(function: Decomposition) -> Decomposition:
    @wraps(function)
    def rounded(recorder: Recorder, *args: object, **kwargs: object) -> Result:
        syms = [a for a in (*args, *kwargs.values()) if isinstance(a, Sym)]
        # The dtype of the arguments, before they become fp32, is the one that eager's kernel rounds
        # to.
        dtype = promoted([sym.meta for sym in syms])
        if not any(sym.dtype in _HALF for sym in syms):
            results = function(recorder, *args, **kwargs)
            # A float factor turns integers into floats here; the kernel may not, so decline.
            return results if dtype.is_floating_point or _dtype_of(results) is dtype else None
        results = function(
            recorder,
            *[up(a) if isinstance(a, Sym) else a for a in args],
            **{k: up(a) if isinstance(a, Sym) else a for k, a in kwargs.items()},
        )
        if isinstance(results, Sym):
            return results.to(dtype)
        if results is None:
            return None
        return [None if part is None else part.to(dtype) for part in results]

    return rounded
