"""The plan: what one call of a compiled graph does, as data.

Goes to the native executor (extensions/runtime/plan.cpp) and to its reference implementation
(runtime/execute.py), which must agree. Slots are numbered tensors: the graph inputs first (0 ..
inputs-1), then constants, then whatever the steps define. Strides and offsets in elements, pool
offsets in bytes. The plan of a template (plan_template.py) has Sizes, filled in for each vector.

    Plan  = name, inputs, constants, steps, outputs, pool_bytes
    Step  = Alloc(slot, shape, stride, dtype, device)     a fresh tensor that may leave the call
          | Over(slot, base, shape, stride, dtype, device)  base's memory, which nothing reads any
                                                          more; a fresh tensor where others hold it
          | Pool(slot, offset, shape, stride, dtype, device)  a temporary in this call's workspace
          | Launch(kernel, args)                          a generated kernel on the slots' pointers
          | Call(op, args, kwargs, results, out, layouts) one ATen call on Slot refs, NumberSlot
                                                          refs and constants;
                                                          a result laid out otherwise is copied
          | View(slot, base, shape, stride, offset, dtype)    as_strided over base's memory; the
                                                          offset counts from base's first element
          | Free(slot)                                    drop the reference
A kernel that can meet a bad run-time index returns non-zero; the executor raises IndexError and the
frame falls back to eager, which raises the user's own exception.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from ..symbols.scalar import Symbol
from ..symbols.size import Dimension

__all__ = [
    "Alloc",
    "Call",
    "Config",
    "Free",
    "KernelChoice",
    "KernelSource",
    "Launch",
    "LaunchGrid",
    "Layout",
    "NumberSlot",
    "Over",
    "Plan",
    "PlanStep",
    "Pool",
    "SizeVector",
    "Slot",
    "Unit",
    "View",
]


@dataclass(frozen=True, slots=True)
class SizeVector:
    """A constant where sizes are symbols: an int64 tensor with their values, for a kernel."""

    symbols: tuple[Symbol, ...]


class PlanStep:
    """Base of the steps."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Slot:
    """A reference to a slot inside Call arguments."""

    index: int


@dataclass(frozen=True, slots=True)
class NumberSlot(Slot):
    """The number in a slot's 0-dim float64 tensor of the CPU, read when the Call runs."""


@dataclass(frozen=True, slots=True)
class Alloc(PlanStep):
    slot: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True)
class Over(PlanStep):
    slot: int
    base: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True)
class Pool(PlanStep):
    slot: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True)
class Launch(PlanStep):
    kernel: str  # a name in KernelSource.symbols
    args: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """What later steps take the result of an ATen call to be. Meta kernels can be wrong about it.

    `required`: a kernel or a view reads it, so another shape or dtype is an error.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    required: bool


@dataclass(frozen=True, slots=True)
class Call(PlanStep):
    op: Any  # torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[int | None, ...]  # slots that take the returned tensors, in order
    out: bool = False  # results are already allocated and passed through the op's out= arguments
    layouts: tuple[Layout | None, ...] = ()  # of the results; (): whatever comes is right
    foreign: bool = False  # an operator from outside of torch


@dataclass(frozen=True, slots=True)
class View(PlanStep):
    slot: int
    base: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype  # base's own


@dataclass(frozen=True, slots=True)
class Free(PlanStep):
    slot: int


@dataclass(frozen=True, slots=True)
class Plan:
    name: str
    inputs: int
    constants: tuple[Any, ...]  # tensors; SizeVectors where sizes are symbols
    steps: tuple[PlanStep, ...]
    outputs: tuple[int | None, ...]
    pool_bytes: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    mutated: tuple[int, ...] = ()  # inputs whose memory the plan writes to
    titles: tuple[str, ...] = ()  # what profilers call the graph, then its launches in order
    # (file, line) of its calls in order, which their warnings name; (): where the caller stands
    places: tuple[tuple[str, int], ...] = ()

    @property
    def allocated_bytes(self) -> int:
        """Of the fresh tensors that may leave the call."""
        made = [step for step in self.steps if isinstance(step, Alloc)]
        return sum(math.prod(step.shape) * step.dtype.itemsize for step in made)


@dataclass(frozen=True, slots=True)
class LaunchGrid:
    """How a GPU kernel is launched: blocks (x, y, z), warps per block; constants baked into the
    text."""

    grid: tuple[Dimension, int, int]
    num_warps: int = 4
    num_stages: int = 2


@dataclass(frozen=True, slots=True)
class Unit:
    """One translation unit, and the kernels that it defines."""

    text: str
    symbols: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KernelSource:
    """Generated text and what it defines.

    language "cpp":    one translation unit; each symbol is `extern "C" int NAME(void* const* args)`
    language "numba":  a Python module text; each symbol is a callback of that same C signature, see
                       codegen/numba.py
    language "triton": a Python module text; each symbol is an @triton.jit function taking pointers
    `symbols` maps a kernel's name to its argument buffers' dtypes in order; `grids` is for triton,
    and so are `by_value`: positions of arguments that are CPU scalars or sizes, not pointers, and
    `multiples`: positions of those of 16, which Triton is told. `units` is for cpp: the same
    kernels as translation units that compilers can take side by side.
    """

    language: str
    text: str
    symbols: Mapping[str, tuple[torch.dtype, ...]]
    grids: Mapping[str, LaunchGrid] = field(default_factory=dict)
    by_value: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    multiples: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    units: tuple[Unit, ...] = ()


@dataclass(frozen=True, slots=True)
class Config:
    """How one kernel should be written otherwise than the heuristics say: no overrides here, the
    renderers' are in config.py. `label` tells two configs of one class apart.
    """

    @property
    def label(self) -> str:
        """What differs from the heuristics, in words."""
        overrides = [
            f"{field.name}={getattr(self, field.name)}"
            for field in fields(self)
            if getattr(self, field.name) != field.default
        ]
        return " ".join(overrides) or "default"


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """The texts one kernel may have: `sources[n]` holds it alone, written as `configs[n]` says; the
    first is the default. Its last `written` arguments are written, the others only read.
    """

    kernel: str
    configs: tuple[Config, ...]
    sources: tuple[KernelSource, ...]
    written: int
