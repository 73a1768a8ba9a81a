"""Says why steps of a plan are not recorded as a CUDA graph.

In: a Plan and the tensors of a call. Out: for each step a sentence for the user, or an empty
string; and for the whole plan the reason why nothing of it is recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from ...codegen.plan import Alloc, Call, Launch, Plan, PlanStep, Pool, Reuse, SizeVector, Slot, View
from ..native import slots_in

__all__ = [
    "FEW_LAUNCHES",
    "communicates",
    "generator_states",
    "launch_count",
    "launch_time",
    "step_refusals",
]

# Host time on an H200, in us: of a generated kernel, of an ATen call (which allocates its results),
# and of a replay that copies an input and a result, beyond what any call takes. A replay that
# copies nothing takes 2.5 us, the call of one kernel 5.5.
LAUNCH_TIME, CALL_TIME, REPLAY_TIME = 3, 7, 5
FEW_LAUNCHES = "launching its few kernels takes less time than a replay"

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


def step_refusals(plan: Plan, inputs: Sequence[torch.Tensor]) -> tuple[str, ...]:
    """Return for each step why it cannot be recorded, or an empty string. Without `inputs` they
    count as tensors of the plan's device and of any dtype.
    """
    return tuple(_Refusals(plan, inputs).all())


class _Refusals:
    """Walks the steps with what is known of their slots."""

    def __init__(self, plan: Plan, inputs: Sequence[torch.Tensor]) -> None:
        self._plan, self._dtypes = plan, _dtypes(plan, inputs)
        states = generator_states(plan)
        self._elsewhere = {  # slots that are not on the plan's device, with a sentence
            number: f"input {number} lives on {tensor.device}, not on {plan.device}"
            for number, tensor in enumerate(inputs)
            if tensor.device != plan.device and number not in states
        }
        # ATen reads such a constant; kernels take sizes by value.
        self._host_constants = {
            plan.inputs + number: f"it reads a constant that is not on {plan.device}"
            for number, constant in enumerate(plan.constants)
            if not isinstance(constant, SizeVector) and constant.device != plan.device
        }

    def all(self) -> Iterable[str]:
        for step in self._plan.steps:
            yield self._of(step)

    def _of(self, step: PlanStep) -> str:
        match step:
            case View():
                for known in (self._elsewhere, self._host_constants):
                    if step.base in known:
                        known[step.slot] = known[step.base]
            case Alloc() | Reuse() | Pool():
                self._note(step.slot, step.device)
            case Launch():
                return self._elsewhere_in(step.args)
            case Call():
                return self._of_call(step)
        return ""

    def _note(self, slot: int, device: torch.device) -> None:
        if device != self._plan.device:
            self._elsewhere[slot] = f"a part of it is not on {self._plan.device}"

    def _of_call(self, step: Call) -> str:
        results = [slot for slot in step.results if slot is not None]
        for slot, layout in zip(step.results, step.layouts, strict=False):
            if slot is not None and layout is not None:
                self._note(slot, layout.device)
        reads = [slot.index for slot in slots_in((step.args, tuple(step.kwargs.values())))]
        why = self._elsewhere_in((*reads, *results))
        why = why or next(filter(None, map(self._host_constants.get, reads)), "")
        return why or self._of_operator(step)

    def _elsewhere_in(self, slots: Iterable[int]) -> str:
        return next(filter(None, map(self._elsewhere.get, slots)), "")

    def _of_operator(self, step: Call) -> str:
        if _syncs_with_host(step, self._dtypes):
            return f"{step.op} waits for the GPU to know the size of its result"
        if _is_collective(step):
            return f"{step.op} communicates with other processes"
        if step.foreign:
            return f"{step.op} is a custom operator: a recording may miss its effects"
        parts = (*step.args, *step.kwargs.values())
        if any(isinstance(part, torch.Generator) for part in parts):
            return f"{step.op} draws from a generator of its own"
        return ""


def launch_count(plan: Plan) -> int:
    """Return the number of kernels and ATen calls."""
    return sum(isinstance(step, Launch | Call) for step in plan.steps)


def launch_time(steps: Iterable[PlanStep]) -> int:
    """Return the microseconds of host time that the launches of steps take."""
    times = {Launch: LAUNCH_TIME, Call: CALL_TIME}
    return sum(times.get(type(step), 0) for step in steps)


def communicates(plan: Plan) -> bool:
    """Return whether a call is a collective, which other threads and streams continue."""
    return any(isinstance(step, Call) and _is_collective(step) for step in plan.steps)


def _is_collective(step: Call) -> bool:
    return step.op.namespace.startswith("_c10d")


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
    known = {number: tensor.dtype for number, tensor in enumerate(inputs)}
    for number, constant in enumerate(plan.constants):
        if not isinstance(constant, SizeVector):
            known[plan.inputs + number] = constant.dtype
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
