"""torch_compile: registers jitmagic as a backend of `torch.compile`, by the name "jitmagic".

Input: graphs captured by TorchDynamo, which finds this module through the entry point group
`torch_dynamo_backends`. Output: callables compiled by jitmagic with its own joint graph, kernels
and guards. This module does not call torch._dynamo; torch._dynamo calls it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ..api import jit
from ..torch_types import AnyFunction

__all__ = ["jitmagic_backend"]


def jitmagic_backend(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[object],
    *,
    mode: str = "default",
    options: Mapping[str, object] | None = None,
) -> AnyFunction:
    """Return the compiled graph, for `torch.compile(fn, backend="jitmagic")`.

    example_inputs: fake tensors and symbolic ints; if any size is symbolic, the graph is compiled
        with dynamic sizes, so that one variant serves all of them.
    mode, options: as for `jitmagic.jit`, given to torch.compile.
    """
    dynamic = True if any(map(_varies, example_inputs)) else None
    _ = gm.code  # Dynamo generates a graph's forward lazily, and jit tags the present forward
    return jit(gm, mode=mode, dynamic=dynamic, options=options)


def _varies(example: object) -> bool:
    sizes = example.shape if isinstance(example, torch.Tensor) else (example,)
    return any(isinstance(size, torch.SymInt | torch.SymFloat) for size in sizes)
