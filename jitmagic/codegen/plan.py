"""Defines the plan: the steps of one call of a compiled graph, as data.

The native executor (extensions/executor/execute.cpp) and its reference implementation
(runtime/plan_interpreter.py) run it, and must agree. Slots are numbered tensors: the graph inputs
first (0 .. inputs-1), then constants, then the results of steps. Strides and offsets are in
elements, pool offsets in bytes. The plan of a PlanTemplate has Sizes, filled in for each call.

    Plan  = name, inputs, constants, steps, outputs, pool_bytes
    Step  = Alloc(slot, shape, stride, dtype, device)     a fresh tensor that may leave the call;
          | Reuse(slot, base, shape, stride, dtype, device)  the memory of the dead slot base; a
                                                          fresh tensor if it is still referenced;
          | Pool(slot, offset, shape, stride, dtype, device)  a temporary in this call's workspace;
          | Launch(kernel, args, written)                 a generated kernel on the slots' pointers;
          | Call(op, args, kwargs, results, out, layouts) one ATen call on Slot refs, NumberSlot
                                                          refs and constants;
                                                          a result of another layout is copied;
          | View(slot, base, shape, stride, offset, dtype)    as_strided over base's memory; the
                                                          offset counts from base's first element;
          | Free(slot)                                    drop the reference; that of an input frees
                                                          it if the caller has given it away.
A kernel that can meet a bad run-time index returns non-zero; the executor raises IndexError and the
frame falls back to eager, which raises the user's own exception.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

import torch

from ..lazy_dataclass import dataclass, field, fields, replace
from ..symbols.expr import Expr
from ..symbols.size import Dimension, value_of
from ..symbols.symbolic_numbers import Symbol
from ..torch_types import OpOverload

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
    "Plan",
    "PlanStep",
    "PlanTemplate",
    "Pool",
    "Reuse",
    "SizeVector",
    "Slot",
    "Unit",
    "View",
]


@dataclass(frozen=True, slots=True)
class SizeVector:
    """Is a placeholder for the int64 tensor with the symbols' values that a kernel takes."""

    symbols: tuple[Symbol, ...]


class PlanStep:
    """Is the base of the steps."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Slot:
    """Refers to a slot inside Call arguments."""

    index: int


@dataclass(frozen=True, slots=True)
class NumberSlot(Slot):
    """Refers to the number in a 0-dim float64 CPU tensor, read when the Call runs."""


@dataclass(frozen=True, slots=True)
class Alloc(PlanStep):
    slot: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True)
class Reuse(PlanStep):
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
    written: tuple[int, ...] | None = None  # those of `args` that it writes; None: any of them


@dataclass(frozen=True, slots=True)
class Layout:
    """Records the layout that later steps expect of an ATen result, because meta kernels can be
    wrong about it.

    `required`: a kernel or a view reads it, so another shape or dtype is an error.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    required: bool


@dataclass(frozen=True, slots=True)
class Call(PlanStep):
    op: OpOverload
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[int | None, ...]  # slots that take the returned tensors, in order
    out: bool = False  # results are already allocated and passed through the op's out= arguments
    layouts: tuple[Layout | None, ...] = ()  # one per result; (): not checked
    foreign: bool = False  # an operator registered outside of torch, whose kernel is unknown


@dataclass(frozen=True, slots=True)
class View(PlanStep):
    slot: int
    base: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype  # the base's dtype


@dataclass(frozen=True, slots=True)
class Free(PlanStep):
    slot: int


@dataclass(frozen=True, slots=True)
class Plan:
    name: str
    inputs: int
    constants: tuple[Any, ...]  # tensors; SizeVectors for dynamic sizes
    steps: tuple[PlanStep, ...]
    outputs: tuple[int | None, ...]
    pool_bytes: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    mutated: tuple[int, ...] = ()  # inputs whose memory the plan writes to
    titles: tuple[str, ...] = ()  # profiler names of the graph, then of its launches in order
    # (file, line) of each ATen call, for its warnings; (): the caller's line. Without them C++
    # warnings would name the function's first line, at which the frame around a native graph
    # stands.
    call_lines: tuple[tuple[str, int], ...] = ()

    @property
    def allocated_bytes(self) -> int:
        """Return the bytes of the fresh tensors that may leave the call."""
        made = [step for step in self.steps if isinstance(step, Alloc)]
        return sum(math.prod(step.shape) * step.dtype.itemsize for step in made)


@dataclass(frozen=True, slots=True)
class PlanTemplate:
    """Holds the plan of one graph for all sizes; `symbols` gives the order of the values.

    Order, fusion, kernels and memory reuse are fixed; shapes, arguments of ATen calls and pool
    offsets are filled in.
    """

    sized: Plan
    symbols: tuple[Symbol, ...]

    # For diagnostics only: a call instantiates the plan natively, which takes 26 us for a new size
    # of an MLP; in Python it took 85.
    def plan(self, values: tuple[int, ...]) -> Plan:
        """Return the plan for these values of the symbols."""
        known: dict[Expr, int] = dict(zip(self.symbols, values, strict=True))
        made: Plan = _filled(self.sized, known)
        return made


def _filled(part: Any, known: dict[Expr, int]) -> Any:
    if isinstance(part, SizeVector):
        return torch.tensor([known[symbol] for symbol in part.symbols], dtype=torch.int64)
    if is_dataclass(part) and not isinstance(part, type):
        values = {one.name: getattr(part, one.name) for one in fields(part)}
        return replace(part, **{name: _filled(value, known) for name, value in values.items()})
    if isinstance(part, tuple):
        return tuple(_filled(item, known) for item in part)
    if isinstance(part, list):
        return [_filled(item, known) for item in part]
    if isinstance(part, dict):
        return {key: _filled(item, known) for key, item in part.items()}
    return value_of(part, known)


@dataclass(frozen=True, slots=True)
class LaunchGrid:
    """Describes the launch of a GPU kernel: blocks (x, y, z) and warps per block. `contracts`: sums
    of products are rounded once.
    """

    grid: tuple[Dimension, int, int]
    num_warps: int = 4
    num_stages: int = 2
    contracts: bool = field(default=False, repr=False)


@dataclass(frozen=True, slots=True)
class Unit:
    """Holds one translation unit and names the kernels that it defines."""

    text: str
    symbols: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KernelSource:
    """Holds generated source text and describes its kernels.

      language "cpp":    one translation unit; a symbol is `extern "C" int NAME(void* const* args)`
      language "numba":  a Python module; a symbol is a callback of that same C signature
      language "triton": a Python module; a symbol is an @triton.jit function taking pointers

    `symbols` maps a kernel's name to its argument buffers' dtypes in order. For triton: `grids`;
    `by_value`: positions of arguments that are CPU scalars or sizes, not pointers; `multiples`:
    positions of sizes that are specialised as multiples of 16. For cpp: `units`, the same kernels
    as translation units that compile in parallel; `meanwhile`, programs of the block interpreter
    that compute the same, for calls until the compiler is done ("" if there are none).
    """

    language: str
    text: str
    symbols: Mapping[str, tuple[torch.dtype, ...]]
    grids: Mapping[str, LaunchGrid] = field(default_factory=dict)
    by_value: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    multiples: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    units: tuple[Unit, ...] = ()
    meanwhile: str = ""


@dataclass(frozen=True, slots=True)
class Config:
    """Overrides a renderer's heuristics for one kernel; config.py has the subclasses. `label`
    identifies a config within its class.
    """

    @property
    def label(self) -> str:
        """Return the overridden fields as text."""
        overrides = [
            f"{field.name}={getattr(self, field.name)}"
            for field in fields(self)
            if getattr(self, field.name) != field.default
        ]
        return " ".join(overrides) or "default"


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """Holds the variants of one kernel: `sources[n]` holds it alone, written by `configs[n]`; the
    first is the default. Its last `written` arguments are written, the others only read.
    """

    kernel: str
    configs: tuple[Config, ...]
    sources: tuple[KernelSource, ...]
    written: int
