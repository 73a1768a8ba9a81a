"""`gradients`: what torch.autograd.grad is in a graph, a call of the engine like any other call.

Comes in: outputs, inputs and the gradients that come into the outputs, as tensors of any kind with
a history: real ones, meta tensors of the trace, traced ones of the joint trace, which records what
the engine runs. Goes out: a gradient for each input, None where no history leads to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["gradients"]


def gradients(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    incoming: Sequence[torch.Tensor],
    keep: bool,
    create: bool,
    unused: bool,
) -> tuple[torch.Tensor | None, ...]:
    """As torch.autograd.grad, which imports sympy first (0.3 s) and calls this."""
    made: Any = torch.autograd.Variable._execution_engine.run_backward(
        tuple(outputs),
        tuple(incoming),
        keep,
        create,
        tuple(inputs),
        allow_unreachable=unused,
        accumulate_grad=False,
    )
    found: tuple[torch.Tensor | None, ...] = tuple(made)
    return found
