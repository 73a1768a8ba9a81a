"""A pass on loops that computes exp as 2 ** (x * log2(e)), by exp2 alone.

    python demos/extend_loops.py

The program stays as it is. The pass gets the loops that its operations become, before they are
fused, for the forward and for the backward, and returns edited ones.
"""

from __future__ import annotations

import math

import torch

import jitmagic
from jitmagic import extend
from jitmagic.loops import ir
from jitmagic.loops.show import show


def gate(x: torch.Tensor) -> torch.Tensor:
    return x * torch.exp(-x.abs())


def by_powers_of_two(value: ir.Value) -> ir.Value:
    """Return the value that replaces one value of the loops; most stay."""
    match value:
        case ir.Compute("exp", (power,), dtype) if dtype.is_floating_point:
            scaled = ir.Compute("mul", (power, ir.Constant(math.log2(math.e), dtype)), dtype)
            return ir.Compute("exp2", (scaled,), dtype)
    return value


@extend.register_pass("loops")
def exp_as_exp2(program: ir.LoopProgram, context: extend.PassContext) -> ir.LoopProgram:
    edited = extend.rewrite_values(program, by_powers_of_two)
    print(show(edited))
    return edited


def main() -> None:
    torch.manual_seed(0)
    x, y = (torch.linspace(-3, 3, 1000, requires_grad=True) for _ in range(2))
    fast, plain = jitmagic.jit(gate)(x), gate(y)
    fast.sum().backward()
    plain.sum().backward()
    for name, one, other in (("value", fast, plain), ("gradient", x.grad, y.grad)):
        print(f"largest difference of a {name}: {(one - other).abs().max().item():.1e}")


if __name__ == "__main__":
    main()
