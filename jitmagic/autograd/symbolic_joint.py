"""Traces the joint graph of a torch-level graph for all values of its Sizes.

In: a GraphModule and specs with Sizes. Out: a Joint. torch's C++ refuses SymInts where it reads
ints (interpolate, stft, fft; `numel()` of a recurrent layer). torch implements much of that in
Python too, with SymInts. If an operation fails, the graph is traced again with that operation
under torch's Python dispatcher. C++ is tried first because its results equal eager's to the last
bit. Raises what `trace_joint` raises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch.fx import GraphModule

from ..errors import CompileFailed, OperationFailed
from ..spec import TensorSpec
from ..symbols.size import Dimension, Size
from ..symbols.symbolic_numbers import symbols_of
from ..torch_types import OpOverload
from .decompose import TABLE
from .joint import BACKWARD, trace_joint
from .recording.recorder import Decomposition
from .result import Joint

__all__ = ["trace_sized_joint"]


def trace_sized_joint(
    gm: GraphModule,
    inputs: Sequence[TensorSpec],
    table: Mapping[OpOverload, Decomposition] = TABLE,
) -> Joint:
    """Trace `gm` over inputs like `inputs`, in the grad mode of the caller."""
    by_python: set[object] = set()
    while True:
        try:
            joint = trace_joint(gm, inputs, is_sized=True, by_python=by_python, table=table)
        except OperationFailed as error:
            # If its Python version fails too, the backward formula is at fault.
            more = {error.node.target} if error.node.target not in by_python else {BACKWARD}
            if more <= by_python:
                raise
            by_python |= more
            continue
        if by_python and _has_constant_size(inputs):
            raise CompileFailed("torch decomposes an operation by its size")
        return joint


def _has_constant_size(inputs: Sequence[TensorSpec]) -> bool:
    """Return whether a Size turned out to be constant, such as the steps of an unrolled LSTM. Each
    value would then take seconds to compile.
    """
    extents: list[Dimension] = [extent for spec in inputs for extent in spec.shape]
    sizes = (extent for extent in extents if isinstance(extent, Size))
    ranges = (size.context.range_of(one) for size in sizes for one in symbols_of(size.expr))
    return any(limits is not None and limits.low == limits.high for limits in ranges)
