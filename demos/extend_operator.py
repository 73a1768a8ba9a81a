"""Operators of torch.library that become part of jitmagic's kernels.

    python demos/extend_operator.py

A library has its own kernels for two operators. jitmagic calls them between its kernels, until it
is given their formulas: RMS normalisation as a lowering, a gated activation as a decomposition.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

import jitmagic
from jitmagic import extend
from jitmagic.extend import Scalar, scalar

library = torch.library.Library("demo", "FRAGMENT")
library.define("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor")
library.define("gate(Tensor x, Tensor y) -> Tensor")
ran: list[str] = []  # the kernels that were called


def rms_norm_kernel(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    ran.append("rms_norm")
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def gate_kernel(x: Tensor, y: Tensor) -> Tensor:
    ran.append("gate")
    return F.silu(x) * y


library.impl("rms_norm", rms_norm_kernel, "CompositeExplicitAutograd")
library.impl("gate", gate_kernel, "CompositeExplicitAutograd")


# Shapes: without these, each operator needs a fake kernel (torch.library.register_fake).
extend.register_operator(torch.ops.demo.rms_norm, shape=lambda x, weight, eps: torch.empty_like(x))
extend.register_operator(torch.ops.demo.gate, shape=lambda x, y: torch.empty_like(x))


def layer(x: Tensor, weight: Tensor) -> Tensor:
    y = torch.ops.demo.rms_norm(x.sin(), weight, 1e-6)
    return torch.ops.demo.gate(y, x) + 1


def rms_norm(x: Scalar, weight: Scalar, eps: float) -> Scalar:
    """One element: `x` and `weight` are elements, `mean` is that of the row."""
    return x * scalar.rsqrt((x * x).mean() + eps) * weight


def gate(x: Tensor, y: Tensor) -> Tensor:
    return F.silu(x) * y


def run(fast: object, x: Tensor, weight: Tensor) -> None:
    """Call twice, since the first call compiles, and print what the second one ran."""
    for _ in range(2):
        ran.clear()
        result = fast(x, weight)  # type: ignore[operator]
    called = ", ".join(ran) or "none"
    torch.testing.assert_close(result, layer(x, weight))
    print(f"kernels of the library that ran: {called}")


def main() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(64, 256), torch.rand(256)
    fast = jitmagic.jit(layer, fullgraph=True)
    run(fast, x, weight)
    extend.register_decomposition(torch.ops.demo.gate, gate)
    run(fast, x, weight)  # compiled again
    extend.register_lowering(torch.ops.demo.rms_norm, rms_norm, over=-1)
    run(fast, x, weight)
    print(jitmagic.explain(layer)(x, weight))


if __name__ == "__main__":
    main()
