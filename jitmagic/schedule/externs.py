"""ATen ops that write into memory we hand them: which Extern steps may put their result into the
pool.

Only ops whose `out=` overload fills a tensor of the given strides exactly as the functional one
would, without resizing or copying: plain matrix products into contiguous memory.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..loops.ir import Buffer, Extern

__all__ = ["out_overload"]

aten = torch.ops.aten
_OUT = {
    aten.mm.default: aten.mm.out,
    aten.addmm.default: aten.addmm.out,
    aten.bmm.default: aten.bmm.out,
    aten.baddbmm.default: aten.baddbmm.out,
}


def out_overload(step: Extern, buffers: Mapping[str, Buffer]) -> torch._ops.OpOverload | None:
    """The overload that writes the step's only result into given contiguous memory, or None."""
    if len(step.results) != 1 or step.results[0] is None or step.writes:
        return None
    buffer = buffers[step.results[0]]
    expected = 1
    for size, stride in zip(reversed(buffer.shape), reversed(buffer.stride), strict=True):
        if size != 1 and stride != expected:
            return None
        expected *= size
    return _OUT.get(step.op)
