"""Says why a plan is not recorded as a CUDA graph.

In: a Plan and the tensors of a call. Out: a sentence for the user, or an empty string.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ...codegen.plan import Alloc, Call, Launch, Plan, PlanStep, Pool, Reuse, Slot, View
from ..native import slots_needing_tensors

__all__ = ["generator_states", "launch_count", "recording_refusal"]

# Host time on an H200, in us: of a generated kernel, of an ATen call (which allocates its results),
# and of a replay that copies an input and a result, beyond what any call takes. A replay that
# copies nothing takes 2.5 us, the call of one kernel 5.5.
LAUNCH_TIME, CALL_TIME, REPLAY_TIME = 3, 7, 5

_UNKNOWN_SIZE = frozenset(
    (
        torch.Tag.dynamic_output_shape,
        torch.Tag.data_dependent_output,
        torch.Tag.cudagraph_unsafe,
    )
)
_INDEXING = (torch.ops.aten.index.Tensor, torch.ops.aten._unsafe_index.Tensor)
_MASKS = (torch.bool, torch.uint8)

# The state of the random generator at the time of a forward's draw: a CPU scalar, which the
# backward reads on the CPU, if the forward ran without recording, and a CUDA scalar if it was
# recorded (ATen, "Note [Seed and Offset Device]"). The wrong kind makes ATen crash.
_aten = torch.ops.aten
_READS_GENERATOR_STATE = {
    _aten._scaled_dot_product_efficient_attention_backward.default,
    _aten._efficient_attention_backward.default,
}
_GENERATOR_STATE = ("philox_seed", "philox_offset")


def recording_refusal(plan: Plan, inputs: Sequence[torch.Tensor]) -> str:
    """Return the sentence that says why recording is impossible, or an empty string."""
    anywhere, dtypes = generator_states(plan), _dtypes(plan, inputs)
    for number, tensor in enumerate(inputs):
        if tensor.device != plan.device and number not in anywhere:
            return f"input {number} lives on {tensor.device}, not on {plan.device}"
    if _has_constant_off_device(plan):
        return f"it reads a constant that is not on {plan.device}"
    for step in plan.steps:
        if _is_off_device(step, plan.device):
            return f"a part of it is not on {plan.device}"
        if not isinstance(step, Call):
            continue
        if _syncs_with_host(step, dtypes):
            return f"{step.op} waits for the GPU to know the size of its result"
        if step.foreign:
            return f"{step.op} is a custom operator: a recording may miss its effects"
        parts = (*step.args, *step.kwargs.values())
        if any(isinstance(part, torch.Generator) for part in parts):
            return f"{step.op} draws from a generator of its own"
    if _launch_time(plan) < REPLAY_TIME:
        return "launching its few kernels takes less time than a replay"
    return ""


def launch_count(plan: Plan) -> int:
    """Return the number of kernels and ATen calls."""
    return sum(isinstance(step, Launch | Call) for step in plan.steps)


def _launch_time(plan: Plan) -> int:
    """Return the microseconds of host time that the launches of a plan take."""
    launches = sum(isinstance(step, Launch) for step in plan.steps)
    return launches * LAUNCH_TIME + (launch_count(plan) - launches) * CALL_TIME


def _has_constant_off_device(plan: Plan) -> bool:
    """Return whether ATen reads a constant that is not on the GPU; kernels take sizes by value."""
    needed = slots_needing_tensors(plan)
    return any(
        constant.device != plan.device and plan.inputs + number in needed
        for number, constant in enumerate(plan.constants)
    )


def _syncs_with_host(step: Call, dtypes: Mapping[int, torch.dtype]) -> bool:
    """Return whether the host reads data; indexing does if any index may be a mask."""
    if _UNKNOWN_SIZE.isdisjoint(step.op.tags):
        return False
    if step.op not in _INDEXING:
        return True
    return any(
        isinstance(index, Slot) and dtypes.get(index.index, torch.bool) in _MASKS
        for index in step.args[1]
    )


def _dtypes(plan: Plan, inputs: Sequence[torch.Tensor]) -> dict[int, torch.dtype]:
    """Return the dtypes of slots that are known before a run."""
    known = {number: tensor.dtype for number, tensor in enumerate((*inputs, *plan.constants))}
    for step in plan.steps:
        if isinstance(step, Call):
            for slot, layout in zip(step.results, step.layouts, strict=False):
                if slot is not None and layout is not None:
                    known[slot] = layout.dtype
        elif isinstance(step, Alloc | Reuse | Pool | View):
            known[step.slot] = step.dtype
    return known


def generator_states(plan: Plan) -> frozenset[int]:
    """Return the inputs that hold a random generator's state at an earlier draw."""
    found: set[int] = set()
    for step in plan.steps:
        if isinstance(step, Call) and step.op in _READS_GENERATOR_STATE:
            names = [argument.name for argument in step.op._schema.arguments]
            given = {**dict(zip(names, step.args, strict=False)), **step.kwargs}
            slots = (given[name] for name in _GENERATOR_STATE)
            found.update(slot.index for slot in slots if isinstance(slot, Slot))
    return frozenset(number for number in found if number < plan.inputs)


def _is_off_device(step: PlanStep, device: torch.device) -> bool:
    if isinstance(step, Call):
        return any(layout is not None and layout.device != device for layout in step.layouts)
    return isinstance(step, Alloc) and step.device != device
