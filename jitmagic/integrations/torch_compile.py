"""torch_compile: jitmagic as a backend of `torch.compile`, found by the name "jitmagic".

Comes in: the graphs that TorchDynamo captures, through the entry point group
`torch_dynamo_backends`. Goes out: callables that run them, compiled by jitmagic with its own joint
graph, kernels and guards. Nothing of torch._dynamo is used here: it calls this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..api import jit

__all__ = ["jitmagic_backend"]


def jitmagic_backend(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str = "default",
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Return the graph compiled, for `torch.compile(fn, backend="jitmagic")`.

    example_inputs: fake tensors and symbolic ints; sizes that Dynamo made symbols vary here too, so
        that a graph for all sizes is one variant.
    mode, options: as for `jitmagic.jit`, given to torch.compile.
    """
    dynamic = True if any(map(_varies, example_inputs)) else None
    _ = gm.code  # Dynamo's modules write their forward when it is first read, and replace it then
    return jit(gm, mode=mode, dynamic=dynamic, options=options)


def _varies(example: Any) -> bool:
    sizes = example.shape if isinstance(example, torch.Tensor) else (example,)
    return any(isinstance(size, torch.SymInt | torch.SymFloat) for size in sizes)
