"""Models the default dtype, which torch.set_default_dtype changes.

Input: the dtype in the entry guard, and the dtypes that the program sets. Output: the current
default dtype, and an effect that sets the last one at an exit. The graph itself runs under the
default of the entry (graph/default_dtype.py).
"""

from __future__ import annotations

import torch

from ...breaks import GraphBreak, RefusedTorchCall
from ..base import Machine
from .contexts import set_at_exit

__all__ = ["default_dtype", "set_default_dtype"]


def default_dtype(machine: Machine) -> torch.dtype:
    """Return the default dtype of a call made now."""
    # None if the program has not changed it. A change reaches torch only at an exit, so while
    # tracing torch still reports the default of the entry.
    chosen: torch.dtype | None = machine.graph.default_dtype
    return chosen or torch.get_default_dtype()


def set_default_dtype(machine: Machine, dtype: torch.dtype) -> None:
    """Trace torch.set_default_dtype."""
    if machine.graph.root is not machine.graph:
        why = "a backward or a function under a transform runs it"
        raise GraphBreak(RefusedTorchCall.of(name="torch.set_default_dtype", why=why))
    graph = machine.graph
    changed = lambda: (graph.default_dtype,) if graph.default_dtype else None  # noqa: E731
    set_at_exit(machine, torch.set_default_dtype, changed)
    graph.default_dtype = None if dtype is torch.get_default_dtype() else dtype
