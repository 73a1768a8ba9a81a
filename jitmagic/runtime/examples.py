"""Makes synthetic tensors for autotuning and costs, where the user's tensors are not available.

In: the layout of a tensor. Out: an example with it. The opaque state of a library (the workspace of
a recurrent layer) cannot be synthesised.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from ..devices import row_of
from ..spec import TensorSpec

__all__ = ["example", "examples"]


def examples(specs: Iterable[TensorSpec]) -> list[torch.Tensor]:
    """Return examples of a graph's inputs."""
    return [example(spec.shape, spec.stride, spec.dtype, spec.device) for spec in specs]


def example(
    shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return a tensor with floats from 0.5 to 1.5, valid for logarithms and roots, or with zeros,
    valid as indices.
    """
    last = sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if 0 not in shape else -1
    drawn_on = device if row_of(device).runs_cuda else torch.device("cpu")
    memory = torch.zeros(last + 1, dtype=dtype, device=drawn_on)
    if dtype.is_floating_point or dtype.is_complex:
        generator = torch.Generator(device=drawn_on).manual_seed(0)
        memory.uniform_(0.5, 1.5, generator=generator) if dtype.is_floating_point else memory.add_(
            1
        )
    return memory.to(device).as_strided(shape, stride)
