"""Runs a Plan step by step: the reference implementation of the native executor.

Tests compare the native one with it. Kernels are callables over the argument tensors; a true return
value means an index out of range.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..codegen.plan import (
    Alloc,
    Call,
    Free,
    Launch,
    Layout,
    NumberSlot,
    Plan,
    PlanStep,
    Pool,
    Reuse,
    Slot,
    View,
)
from ..compat.modes import BelowViewTracking
from .native import slot_count

__all__ = ["PlanRunner"]

Kernel = Callable[[list[torch.Tensor]], object]
Slots = list[Any]  # tensors; None for a slot that is free


class PlanRunner:
    """Is called with the plan's inputs and returns the tuple of outputs."""

    def __init__(self, plan: Plan, kernels: Mapping[str, Kernel]) -> None:
        self.plan = plan
        self._kernels = kernels
        self._slots = slot_count(plan)

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        plan = self.plan
        if len(inputs) != plan.inputs:
            raise TypeError(f"a compiled graph takes {plan.inputs} tensors, got {len(inputs)}")
        slots: Slots = [*inputs, *plan.constants]
        slots += [None] * (self._slots - len(slots))
        pool = torch.empty(plan.pool_bytes, dtype=torch.uint8, device=plan.device)
        with BelowViewTracking():
            for step in plan.steps:
                self._run(step, slots, pool)
        return tuple(None if slot is None else slots[slot] for slot in plan.outputs)

    def _run(self, step: PlanStep, slots: Slots, pool: torch.Tensor) -> None:
        match step:
            case Alloc():
                slots[step.slot] = torch.empty_strided(
                    step.shape, step.stride, dtype=step.dtype, device=step.device
                )
            case Reuse():
                slots[step.slot] = _in_place_of(step, slots)
            case Pool():
                slots[step.slot] = _over_pool(step, pool)
            case Launch():
                if self._kernels[step.kernel]([slots[i] for i in step.args]):
                    raise IndexError("index out of range in a compiled kernel")
            case View():
                base = slots[step.base]
                offset = base.storage_offset() + step.offset
                slots[step.slot] = base.as_strided(step.shape, step.stride, offset)
            case Free():
                slots[step.slot] = None
            case Call():
                _call(step, slots)


def _in_place_of(step: Reuse, slots: Slots) -> torch.Tensor:
    """Reuse base's memory unless another slot shares it: an ATen op may have returned its input."""
    base: torch.Tensor = slots[step.base]
    others = (t for n, t in enumerate(slots) if n != step.base and isinstance(t, torch.Tensor))
    memory = base.untyped_storage().data_ptr()
    if any(other.untyped_storage().data_ptr() == memory for other in others):
        return torch.empty_strided(step.shape, step.stride, dtype=step.dtype, device=step.device)
    return base.as_strided(step.shape, step.stride, base.storage_offset())


def _over_pool(step: Pool, pool: torch.Tensor) -> torch.Tensor:
    last = sum((n - 1) * s for n, s in zip(step.shape, step.stride, strict=True))
    nbytes = (last + 1) * step.dtype.itemsize if 0 not in step.shape else 0
    memory = pool[step.offset : step.offset + nbytes].view(step.dtype)
    return memory.as_strided(step.shape, step.stride)


def _resolve(value: object, slots: Slots) -> object:
    if isinstance(value, NumberSlot):
        return slots[value.index].item()
    if isinstance(value, Slot):
        return slots[value.index]
    if isinstance(value, (tuple, list)):
        return [_resolve(part, slots) for part in value]
    return value


def _call(step: Call, slots: Slots) -> None:
    args = [_resolve(value, slots) for value in step.args]
    kwargs = {name: _resolve(value, slots) for name, value in step.kwargs.items()}
    if step.out:
        outs = [argument.name for argument in step.op._schema.arguments if argument.is_out]
        kwargs.update(zip(outs, (slots[i] for i in step.results if i is not None), strict=True))
        step.op(*args, **kwargs)
        return
    made = step.op(*args, **kwargs)
    flat = [made] if isinstance(made, torch.Tensor) else _flatten(made)
    layouts = step.layouts or (None,) * len(step.results)
    for slot, value, layout in zip(step.results, flat, layouts, strict=False):
        if slot is not None:
            slots[slot] = value if layout is None else _laid_out(value, layout)


def _laid_out(value: torch.Tensor | None, layout: Layout) -> torch.Tensor | None:
    """Return the result in the plan's layout, copied if ATen chose other strides."""
    same = value is not None and (value.shape, value.dtype) == (layout.shape, layout.dtype)
    if value is None or not same:
        if layout.required:
            raise RuntimeError(
                "jitmagic: an ATen call returned another shape or dtype than expected"
            )
        return value
    extents = zip(value.shape, value.stride(), layout.stride, strict=True)
    if not value.numel() or all(n == 1 or got == wanted for n, got, wanted in extents):
        return value
    made = torch.empty_strided(layout.shape, layout.stride, dtype=value.dtype, device=value.device)
    return made.copy_(value)


def _flatten(made: object) -> list[Any]:
    if isinstance(made, (tuple, list)):
        return [leaf for part in made for leaf in _flatten(part)]
    return [made]
