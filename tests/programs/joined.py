"""Programs of a tensor each as one function: a family is one compile, compilers start a few times.

In: the programs, and a tensor. Out: their results, each of a copy of its own. Nests that read no
memory together are not fused, so a program's kernels are what they are alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

import jitmagic

__all__ = ["Joined", "gradients", "joined"]

Program = Callable[[Tensor], Any]
Joined = Callable[[Tensor], tuple[list[Tensor], list[Any]]]


def joined(programs: Iterable[Program], **options: Any) -> Joined:
    """A function of a tensor that gives the copies and the results. `options`: of jitmagic.jit.
    Every call runs compiled code: eager takes no turns.
    """
    every = tuple(programs)
    options["options"] = {**options.get("options", {}), "keep": "compiled"}

    @jitmagic.jit(**options)
    def together(*inputs: Tensor) -> list[Any]:
        return [program(x) for program, x in zip(every, inputs, strict=True)]

    def run(x: Tensor) -> tuple[list[Tensor], list[Any]]:
        inputs = [x.detach().clone().requires_grad_(x.requires_grad) for _ in every]
        return inputs, together(*inputs)

    return run


def gradients(results: Iterable[Tensor], inputs: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Of each result by its own input, all in one backward; each element counts differently."""
    losses = []
    for result in results:
        weights = torch.linspace(1, 2, result.numel()).view(result.shape).to(result.dtype)
        losses.append((result * weights).sum())
    return torch.autograd.grad(losses, tuple(inputs))
