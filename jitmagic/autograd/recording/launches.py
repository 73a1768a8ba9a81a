"""Records launches of user-written Triton kernels on the memory of their tensors.

In: a call of a launch's operator (graph/triton/launches.py) on traced tensors. Out: a node
of its functional form. A kernel sees addresses: it may read and write all of a storage through a
pointer to a view, with strides that the program passes as numbers. Each view is therefore replaced
by its base, with its sizes, strides and offset as further arguments; several arguments in one
storage share that base, and the values written are those of whole storages. autograd does not see
the writes, as in eager, and its version counters stay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...errors import CompileFailed
from ...graph.triton.launches import Tensor, launch_of, operator_of
from .aten_call import AtenCall
from .foreign_writes import functional_form
from .recorder import Recorder
from .traced import Cell, Traced
from .views import CONJUGATE

__all__ = ["record_launch"]


def record_launch(
    call: AtenCall,
    traced: Callable[[torch.Tensor], Traced],
    read: Callable[[object], Any],
    recorder: Recorder,
) -> None:
    """Record one launch, and write the values of the storages that it writes."""
    launch = launch_of(call.op)
    assert launch is not None
    tensors = [traced(tensor) for tensor in call.args[: len(launch.tensors)]]
    numbers, grid = call.args[len(tensors) : -2], call.args[-2]
    cells: list[Cell] = []
    for tensor in tensors:
        if tensor.cell not in cells:
            cells.append(tensor.cell)
    bases = [Traced.make(cell.value, cell, (), False) for cell in cells]
    given: list[Tensor] = []
    views: list[Any] = []
    for tensor in tensors:
        slot = cells.index(tensor.cell)
        given.append(Tensor(slot, tensor.dim(), len(views)) if tensor.path else Tensor(slot))
        views += _geometry(tensor, bases[slot]) if tensor.path else []
    merged = launch.with_tensors(given)
    form = functional_form(operator_of(merged))
    values = recorder.emit(form.op, *map(read, bases), *map(read, numbers), read(grid), views)
    for slot, value in zip(sorted(merged.written), values, strict=True):
        bases[slot].write(value, counted=False)


def _geometry(view: Traced, base: Traced) -> list[Any]:
    """Return the sizes, strides and offset of a view in the memory of its base."""
    if CONJUGATE in view.path:
        raise CompileFailed("a Triton kernel reads the conjugate of a tensor")
    if base.memory_layout() is not None:
        raise CompileFailed("a Triton kernel reads a view of a tensor with gaps")
    offset = view.storage_offset() - base.sym.meta.storage_offset()
    return [*view.shape, *view.stride(), offset]
