"""Decompositions of ATen operations before lowering.

`TABLE[overload]` is a function of (recorder, *args) with `Sym` tensors; it records simpler
operations and returns the results, or None to leave the operation as it is. Only operations that
loops can fuse are decomposed: activations, norms, softmax, losses, fills, simple indexing.
Convolution, attention, sort, scans and scatter stay ATen calls, which are faster than their parts.
"""

from __future__ import annotations

from .registry import TABLE

__all__ = ["TABLE"]
