"""Adjusts layouts that GPU kernels choose differently from the CPU's.

Input: the device of a call, and its results by meta kernels or the rules of shapes.py, which are
the CPU's. Output: results in that device's layout. tests/device checks all other operators in
channels_last against eager.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ...devices import row_of
from ...torch_types import Args, OpOverload
from .convolution import convolution_layout

__all__ = ["differs_by_device", "laid_out_on"]

aten = torch.ops.aten


def _row_major(device: torch.device, args: Args, made: torch.Tensor) -> torch.Tensor:
    return torch.empty(made.shape, dtype=made.dtype, device="meta")


_LAYOUTS: Mapping[Any, Callable[[torch.device, Sequence[Any], Any], object]] = {
    aten.convolution.default: convolution_layout,
    aten.convolution_backward.default: convolution_layout,
    aten.roll.default: _row_major,
    aten.pixel_unshuffle.default: _row_major,
}
_NAMES = frozenset(op._opname for op in _LAYOUTS)


def laid_out_on(device: torch.device, op: OpOverload, args: Args, made: object) -> object:
    """Return the meta results `made` of an operator in the layout of the device's kernel."""
    layout = None if row_of(device).kernels == "cpu" else _LAYOUTS.get(op)
    return made if layout is None else layout(device, args, made)


def differs_by_device(name: str) -> bool:
    """Return whether the function or method has other layouts on a GPU than on the CPU."""
    return name in _NAMES
