"""Defines operators that call a function of numpy on the memory of CPU tensors.

Input: a function of arrays, and the layouts that its results had on samples. Output: an operator of
jitmagic with one tensor per array and result. Whether another call gives the same layouts may
depend on its data, so each call checks them. It raises if they differ, and eager runs the frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import torch

from ....graph.operators.operator_library import LIBRARY, is_registered
from ....lazy_dataclass import dataclass
from ....torch_types import OpOverload

__all__ = ["ArrayLayout", "numpy_operator"]


@dataclass(frozen=True, slots=True)
class ArrayLayout:
    """The shape, the strides in elements and the dtype of a result."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def fits(self, made: torch.Tensor) -> bool:
        if (made.shape, made.dtype) != (self.shape, self.dtype):
            return False
        steps = zip(self.shape, self.stride, made.stride(), strict=True)
        return not made.numel() or all(size == 1 or one == two for size, one, two in steps)


def numpy_operator(
    name: str, call: Callable[..., list[torch.Tensor]], inputs: int, results: Sequence[ArrayLayout]
) -> OpOverload:
    """Return an operator that calls `call` with the input tensors; it returns the results, which
    share no memory with the inputs.
    """
    names = (f"numpy_{name}_{number}" for number in count())
    chosen = next(one for one in names if not is_registered(one))
    arguments = ", ".join(f"Tensor x{number}" for number in range(inputs))
    returned = ", ".join("Tensor" for _ in results)
    LIBRARY.define(f"{chosen}({arguments}) -> ({returned})")

    def run(*tensors: torch.Tensor) -> Any:
        made = call(*tensors)
        if len(made) != len(results) or not all(map(ArrayLayout.fits, results, made)):
            raise RuntimeError(f"numpy.{name} gives results of another layout for these values")
        return made[0] if len(made) == 1 else tuple(made)

    def fake(*tensors: torch.Tensor) -> Any:
        made = [torch.empty_strided(one.shape, one.stride, dtype=one.dtype) for one in results]
        return made[0] if len(made) == 1 else tuple(made)

    LIBRARY.impl(chosen, run, "CPU")
    LIBRARY.impl(chosen, torch.library.fallthrough_kernel, "Autograd")  # arrays have no history
    torch.library.register_fake(f"jitmagic::{chosen}", fake, lib=LIBRARY)
    made: OpOverload = getattr(torch.ops.jitmagic, chosen).default
    return made
