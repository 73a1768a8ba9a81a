"""Decompositions: what becomes of ATen operations before they are lowered.

`TABLE[overload]` is a function of (recorder, *args) with `Sym` tensors; it records simpler
operations and returns the results, or None to leave the operation as it is. What is decomposed is
what loops can fuse: activations, norms, softmax, losses, fills, simple indexing. Convolution,
attention, sort, scans and scatter are left to ATen: taken apart they would only be slower.
"""

from __future__ import annotations

from . import (
    activations,
    blas,
    creation,
    foreach,
    indexing,
    losses,
    norms,
    recurrent,
    reductions,
    softmax,
)
from .registry import TABLE

__all__ = [
    "TABLE",
    "activations",
    "blas",
    "creation",
    "foreach",
    "indexing",
    "losses",
    "norms",
    "recurrent",
    "reductions",
    "softmax",
]
