"""Holds the torch.library.Library of jitmagic's own operators (`torch.ops.jitmagic`).

The library lives as long as the process. If jitmagic is purged from `sys.modules` and imported
again, functions compiled before may still call its operators, so the new import reuses the library.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...torch_types import OpOverload

__all__ = [
    "DEFINED",
    "DEFINERS",
    "IN_PLACE",
    "LASTING",
    "LIBRARY",
    "PURE",
    "defines_operators",
    "has_number",
    "is_registered",
]

# Stored on torch.ops.jitmagic, which lives as long as the process: a Library unregisters its
# operators when it is freed.
LIBRARY: torch.library.Library = vars(torch.ops.jitmagic).setdefault(
    "_library", torch.library.Library("jitmagic", "FRAGMENT")
)

# functional form -> the operator that writes to its arguments (autograd/recording/foreign_writes)
IN_PLACE: dict[OpOverload, OpOverload] = {}

# operators that do nothing but compute their results
PURE: set[OpOverload] = set()

# operators that mean the same in each process; those of flex_attention take a number of a form
LASTING: set[OpOverload] = set()

Define = Callable[..., OpOverload]
# operators that are defined on demand, under a number of this process -> the function that defines
# them, and its arguments
DEFINED: dict[OpOverload, tuple[Define, tuple[object, ...]]] = {}
DEFINERS: set[Define] = set()  # the functions of DEFINED: stored graphs may call no others


def defines_operators(define: Define) -> Define:
    """Register a function that defines an operator on demand."""
    DEFINERS.add(define)
    return define


def has_number(op: OpOverload) -> bool:
    """Return whether the operator may be another one in another process, by its name or by an
    argument.
    """
    return op.namespace == LIBRARY.ns and op not in LASTING


def is_registered(name: str) -> bool:
    return hasattr(torch.ops.jitmagic, name)
