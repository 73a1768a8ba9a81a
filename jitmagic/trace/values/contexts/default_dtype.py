"""The default dtype: what torch.set_default_dtype gives the calls after it.

Comes in: the dtype that the entry is guarded with, and what the program sets on its way. Goes out:
the dtype in force, and an effect that leaves the one that was set last. The graph itself runs
under the default of the entry (graph/default_dtype.py).
"""

from __future__ import annotations

import torch

from ...breaks import GraphBreak, RefusedTorchCall
from ...result import Perform
from ..base import Builder, Machine

__all__ = ["default_dtype", "set_default_dtype"]

_MARK = "default dtype"


def default_dtype(machine: Machine) -> torch.dtype:
    """Return the default dtype of a call made now."""
    chosen: torch.dtype | None = machine.graph.default_dtype
    return chosen or torch.get_default_dtype()


def set_default_dtype(machine: Machine, dtype: torch.dtype) -> None:
    """torch.set_default_dtype."""
    if machine.graph.root is not machine.graph:
        why = "a backward or a function under a transform runs it"
        raise GraphBreak(RefusedTorchCall.of(name="torch.set_default_dtype", why=why))
    if _MARK not in machine.notes.marks:
        machine.notes.marks.add(_MARK)
        machine.at_exit(lambda builder: _tell(machine, builder))
    machine.graph.default_dtype = None if dtype is torch.get_default_dtype() else dtype


def _tell(machine: Machine, builder: Builder) -> None:
    if (left := machine.graph.default_dtype) is not None:
        setter = builder.constant(torch.set_default_dtype)
        builder.effect(Perform(setter, (builder.constant(left),)))
