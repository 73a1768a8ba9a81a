"""Finds which kernel arguments are 16-byte aligned, so that kernels can load 16 bytes at once.

In: a Plan, which may have Sizes. Out: per kernel and argument, whether every launch passes an
aligned pointer. The plan's own allocations are aligned, constants are tested, views follow from
their base. The result of an ATen call counts as aligned only if the operator always allocates it.
The caller says whether inputs are assumed aligned; the native executor tests them before each call.
"""

from __future__ import annotations

from ..codegen.plan import Alloc, Call, Launch, Plan, Pool, Reuse, SizeVector, View
from ..symbols.size import is_same

__all__ = ["BOUNDARY", "aligned_arguments", "inputs_of_kernels"]

BOUNDARY = 16
_FRESH = frozenset(
    f"aten::{name}"
    for name in (
        "mm addmm bmm baddbmm convolution convolution_backward native_layer_norm native_batch_norm "
        "_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention "
        "_scaled_dot_product_cudnn_attention"
    ).split()
)


def aligned_arguments(plan: Plan, inputs: bool) -> dict[str, tuple[bool, ...]]:
    """Return kernel name -> one flag per argument; `inputs` says if inputs count as aligned."""
    slots = dict.fromkeys(range(plan.inputs), inputs)
    for number, constant in enumerate(plan.constants):
        is_tensor = not isinstance(constant, SizeVector)  # kernels take a SizeVector by value
        slots[plan.inputs + number] = is_tensor and constant.data_ptr() % BOUNDARY == 0
    found: dict[str, tuple[bool, ...]] = {}
    for step in plan.steps:
        match step:
            case Alloc(slot=slot):
                slots[slot] = True
            case Reuse(slot=slot, base=base):
                slots[slot] = slots[base]
            case Pool(slot=slot, offset=offset):
                slots[slot] = is_same(offset % BOUNDARY, 0)
            case View(slot=slot, base=base, offset=offset, dtype=dtype):
                slots[slot] = slots[base] and is_same(offset * dtype.itemsize % BOUNDARY, 0)
            case Call(results=results, out=False):
                fresh = step.op._schema.name in _FRESH
                slots.update((slot, fresh) for slot in results if slot is not None)
            case Launch(kernel=kernel, args=args):
                flags = tuple(slots[slot] for slot in args)
                before = found.get(kernel, flags)
                found[kernel] = tuple(a and b for a, b in zip(flags, before, strict=True))
    return found


def inputs_of_kernels(plan: Plan) -> tuple[int, ...]:
    """Return the graph inputs that some kernel reads or writes, directly or through a view."""
    origin = {number: number for number in range(plan.inputs)}
    used: set[int] = set()
    for step in plan.steps:
        if isinstance(step, View) and step.base in origin:
            origin[step.slot] = origin[step.base]
        elif isinstance(step, Launch):
            used.update(origin[slot] for slot in step.args if slot in origin)
    return tuple(sorted(used))
