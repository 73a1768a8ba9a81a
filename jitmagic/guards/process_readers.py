"""Reads state of the process that torch and numpy do not return as constants, for StateRead guards.

The readers are here and not beside the handlers that use them, so that a process which finds its
entries on disk can check guards without importing the tracer.
"""

from __future__ import annotations

import sys

from ..compat.flags import attention_order
from ..compat.modules import GLOBAL_OPTIMIZER_HOOKS

__all__ = ["attention_priorities", "numpy_error_handling", "optimizer_hooks"]


def attention_priorities() -> tuple[int, ...]:
    """Return torch's order of preference among the kernels of attention."""
    return tuple(attention_order())


def numpy_error_handling() -> tuple[str, ...]:
    """Return numpy's handling of division by zero, overflow, underflow and invalid values."""
    numpy = sys.modules["numpy"]
    return tuple(numpy.geterr().values())


def optimizer_hooks() -> int:
    """Return the number of hooks that apply to every optimizer."""
    return sum(map(len, GLOBAL_OPTIMIZER_HOOKS))
