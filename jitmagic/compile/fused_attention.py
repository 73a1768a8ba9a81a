"""Traces the joint graph with attention that is written out computed by torch's fused kernels.

In: a torch-level graph, and the function that traces its joint graph. Out: what that function
returns. Gradients are those of the fused kernels; a second derivative replays the torch-level
graph, which stays as it was. The stage "attention" keeps the sentences of explain about it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch.fx import GraphModule

from ..errors import OperationFailed
from ..graph.attention.fusing import Fused, fuse_attention
from ..options import Options
from ..records import Recording

__all__ = ["with_fused_attention"]

T = TypeVar("T")


def with_fused_attention(
    gm: GraphModule, trace: Callable[[GraphModule], T], options: Options, record: Recording
) -> T:
    """Return `trace` of the graph with fused attention, or of the graph if none can be fused."""
    refused: set[int] = set()
    while True:
        fused = _fused(gm, refused, options)
        try:
            made = trace(fused.module)
        except Exception as error:  # of an operator; the graph without the call has its own
            if not fused.index_of:
                raise
            # torch chooses among kernels when it runs the call, and may find none. After another
            # error the whole graph stays: a fused kernel has no second derivative, for example.
            number = fused.index_of.get(error.node) if isinstance(error, OperationFailed) else None
            refused |= {*fused.index_of.values()} if number is None else {number}
            continue
        if fused.notes:
            with record.stage("attention") as stage:
                stage.keep(fused.notes)
        return made


def _fused(gm: GraphModule, refused: set[int], options: Options) -> Fused:
    if not options.fuse:
        return Fused(gm)
    return fuse_attention(gm, options.precision != "fast", refused)
