"""Cuts a Plan into consecutive parts that are plans themselves.

In: a Plan, and the ranges of its steps that become parts. Out: for each part a Plan, with the slots
of the whole plan that it takes and yields. Running the parts in order does what the plan does.

A view never goes from one part to the next: the tensor whose memory it shows does, and the part
that reads the view makes it again. So no two tensors that enter a part share memory, unless an
operator has returned its argument. Memory that leaves its part is an allocation of its own, where
the plan had it among the temporaries or in the place of another one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...codegen.plan import Alloc, Call, Free, Launch, Plan, PlanStep, Pool, Reuse, Slot, View
from ...graph.nested import map_leaves
from ...lazy_dataclass import dataclass, replace
from ..native import slots_in

__all__ = ["PlanPart", "shared_memory", "split_plan"]


@dataclass(frozen=True, slots=True)
class PlanPart:
    """`inputs` and `outputs` are slots of the whole plan, in the order of the part's own."""

    plan: Plan
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def split_plan(plan: Plan, ranges: Sequence[range]) -> list[PlanPart]:
    """Return the part of each range of steps; the ranges cover all steps, in order. The plan has no
    Sizes.
    """
    memory = _Memory(plan, ranges)
    return [_PartBuilder(memory, number).build() for number in range(len(ranges))]


def shared_memory(plan: Plan) -> dict[int, int]:
    """Return for slots that, by the schema of an operator, share memory with others the first of
    them. Views do not count: they show their base.
    """
    first: dict[int, int] = {}
    base: dict[int, int] = {}
    for step in plan.steps:
        if isinstance(step, View):
            base[step.slot] = base.get(step.base, step.base)
        elif isinstance(step, Call) and not step.out and _returns_argument(step):
            slots = [base.get(slot, slot) for slot in (*used_by(step), *defined_by(step))]
            joined = {first.get(slot, slot) for slot in slots}
            for slot in [*slots, *(slot for slot, at in first.items() if at in joined)]:
                first[slot] = min(joined)
    return first


def _returns_argument(step: Call) -> bool:
    return any(made.alias_info is not None for made in step.op._schema.returns)


class _Memory:
    """Finds for each slot of a plan whose memory it shows, and which parts use it."""

    def __init__(self, plan: Plan, ranges: Sequence[range]) -> None:
        self.plan, self.ranges = plan, ranges
        self.lasting = plan.inputs + len(plan.constants)  # slots below it belong to no part
        self.origin = {slot: (slot, 0) for slot in range(self.lasting)}  # slot and offset
        self.views: dict[int, View] = {}
        self.part = dict.fromkeys(range(self.lasting), -1)  # where a slot is defined
        self.last_part: dict[int, int] = {}  # the last one that uses memory, by its first slot
        for number, steps in enumerate(ranges):
            for step in plan.steps[steps.start : steps.stop]:
                self._note(step, number)
        self.results = frozenset(slot for slot in plan.outputs if slot is not None)
        self.shared = shared_memory(plan)
        self._defined: dict[int, list[int]] = {}
        for slot, part in self.part.items():
            self._defined.setdefault(part, []).append(slot)

    def _note(self, step: PlanStep, part: int) -> None:
        if isinstance(step, View):
            base, offset = self.origin[step.base]
            self.origin[step.slot], self.views[step.slot] = (base, offset + step.offset), step
            # A view that the plan returns is made where its memory is, not where it is first shown.
            self.part[step.slot] = self.part[base] if base >= self.lasting else part
            return
        for slot in defined_by(step):
            self.origin[slot], self.part[slot] = (slot, 0), part
        for slot in used_by(step):
            self.last_part[self.root(slot)] = part

    def root(self, slot: int) -> int:
        """Return the slot whose memory this one shows."""
        return self.origin[slot][0]

    def is_local(self, slot: int, part: int) -> bool:
        """Return whether the memory of a slot is allocated by the part."""
        return self.part[self.root(slot)] == part

    def outputs(self, part: int) -> tuple[int, ...]:
        """Return what the part yields: results of the plan, and memory that later parts use."""
        return tuple(
            slot
            for slot in self._defined.get(part, ())
            if slot in self.results or self.last_part.get(slot, -1) > part
        )


def defined_by(step: PlanStep) -> list[int]:
    """Return the slots whose memory the step allocates, or whose tensors an operator returns."""
    match step:
        case Alloc() | Pool() | Reuse():
            return [step.slot]
        case Call(out=False):
            return [slot for slot in step.results if slot is not None]
    return []


def used_by(step: PlanStep) -> list[int]:
    """Return the slots that a kernel or an operator reads or writes."""
    match step:
        case Launch():
            return list(step.args)
        case Call():
            read = [slot.index for slot in slots_in((step.args, tuple(step.kwargs.values())))]
            return read + [slot for slot in step.results if slot is not None and step.out]
    return []


def written_by(step: PlanStep) -> list[int]:
    """Return the slots to whose memory the step may write, apart from those that it defines."""
    match step:
        case Launch():
            return list(step.args if step.written is None else step.written)
        case Call():
            declared = {argument.name: argument for argument in step.op._schema.arguments}
            given = {**dict(zip(declared, step.args, strict=False)), **step.kwargs}
            written = [value for name, value in given.items() if _is_written(declared[name])]
            allocated = [slot for slot in step.results if slot is not None and step.out]
            return [slot.index for slot in slots_in(written)] + allocated
    return []


def _is_written(declared: torch.Argument) -> bool:
    return declared.alias_info is not None and declared.alias_info.is_write


class _PartBuilder:
    """Builds one part."""

    def __init__(self, memory: _Memory, number: int) -> None:
        self._memory, self._number = memory, number
        self._whole, self._range = memory.plan, memory.ranges[number]
        self._outputs = memory.outputs(number)
        self._inputs, self._constants = self._taken()
        taken = (*self._inputs, *self._constants)
        self._places = {slot: place for place, slot in enumerate(taken)}  # the part's own slots
        self._written: set[int] = set()
        self._held: set[int] = set()  # slots of the whole plan that were defined and not freed
        self._steps: list[PlanStep] = []

    def _taken(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the slots of memory from outside: tensors that are passed, and constants."""
        memory, plan = self._memory, self._whole
        used = [slot for step in self._own_steps() for slot in used_by(step)]
        shown = [slot for slot in self._outputs if slot in memory.views]
        roots = {memory.root(slot) for slot in (*used, *shown)}
        outside = sorted(slot for slot in roots if memory.part[slot] != self._number)
        constants = tuple(slot for slot in outside if plan.inputs <= slot < memory.lasting)
        return tuple(slot for slot in outside if slot not in constants), constants

    def _own_steps(self) -> Sequence[PlanStep]:
        return self._whole.steps[self._range.start : self._range.stop]

    def build(self) -> PlanPart:
        for step in self._own_steps():
            self._add(step)
        for slot in self._outputs:
            if slot not in self._places:
                self._show(slot)
        plan, first = self._whole, self._range.start
        before, own = plan.steps[:first], self._own_steps()
        made = replace(
            plan,
            inputs=len(self._inputs),
            constants=tuple(plan.constants[slot - plan.inputs] for slot in self._constants),
            steps=tuple(self._steps),
            outputs=tuple(self._places[slot] for slot in self._outputs),
            pool_bytes=max(map(_end, self._steps), default=0),
            mutated=tuple(n for n, slot in enumerate(self._inputs) if self._may_write(slot)),
            titles=plan.titles[:1] + _share(plan.titles[1:], Launch, before, own),
            call_lines=_share(plan.call_lines, Call, before, own),
        )
        return PlanPart(made, self._inputs, self._outputs)

    def _may_write(self, slot: int) -> bool:
        plan = self._whole
        may = slot >= plan.inputs or slot in plan.mutated
        return may and self._memory.shared.get(slot, slot) in self._written

    def _add(self, step: PlanStep) -> None:
        match step:
            case View():
                if self._memory.is_local(step.slot, self._number):
                    self._define(step.slot, step)
            case Pool() | Reuse():
                self._define(step.slot, self._in_own_memory(step))
            case Alloc():
                self._define(step.slot, step)
            case Free():
                if step.slot in self._held and step.slot not in self._outputs:
                    self._held.remove(step.slot)
                    self._steps.append(Free(self._places[step.slot]))
            case Launch() | Call():
                self._work(step)

    def _define(self, slot: int, step: PlanStep) -> None:
        self._places[slot] = len(self._places)
        self._held.add(slot)
        self._steps.append(_at(step, self._places.__getitem__))

    def _in_own_memory(self, step: Pool | Reuse) -> PlanStep:
        """Return the step, or an allocation if the memory leaves the part or comes from outside."""
        leaves = step.slot in self._outputs
        if isinstance(step, Reuse):
            is_here = self._memory.is_local(step.base, self._number) and step.base in self._held
            leaves = not is_here or step.base in self._outputs
        if not leaves:
            return step
        return Alloc(step.slot, step.shape, step.stride, step.dtype, step.device)

    def _show(self, slot: int) -> None:
        """Add a view from elsewhere; it starts at its memory, as other views may not be here."""
        base, offset = self._memory.origin[slot]
        self._define(slot, replace(self._memory.views[slot], base=base, offset=offset))

    def _work(self, step: Launch | Call) -> None:
        for slot in used_by(step):
            if slot not in self._places:
                self._show(slot)
        memory = self._memory
        roots = map(memory.root, written_by(step))
        self._written.update([memory.shared.get(root, root) for root in roots])
        for slot in defined_by(step):
            self._places[slot] = len(self._places)
            self._held.add(slot)
        self._steps.append(_at(step, self._places.__getitem__))


def _at(step: PlanStep, place: Callable[[int], int]) -> PlanStep:
    """Return the step with other slots."""
    match step:
        case Launch():
            written = None if step.written is None else tuple(map(place, step.written))
            return Launch(step.kernel, tuple(map(place, step.args)), written)
        case View() | Reuse():
            return replace(step, slot=place(step.slot), base=place(step.base))
        case Alloc() | Pool():
            return replace(step, slot=place(step.slot))
        case Call():
            moved = [map_leaves(part, _moving(place)) for part in (step.args, dict(step.kwargs))]
            results = tuple(None if slot is None else place(slot) for slot in step.results)
            return replace(step, args=moved[0], kwargs=moved[1], results=results)
    raise TypeError(f"not a step with slots to move: {step!r}")


def _moving(place: Callable[[int], int]) -> Callable[[object], Any]:
    return lambda item: type(item)(place(item.index)) if isinstance(item, Slot) else item


def _end(step: PlanStep) -> int:
    """Return the end of a temporary in the workspace, in bytes."""
    if not isinstance(step, Pool):
        return 0
    last = sum((n - 1) * s for n, s in zip(step.shape, step.stride, strict=True))
    return step.offset + (last + 1) * step.dtype.itemsize if math.prod(step.shape) else step.offset


def _share(
    entries: tuple[Any, ...],
    kind: type[PlanStep],
    before: Sequence[PlanStep],
    own: Sequence[PlanStep],
) -> tuple[Any, ...]:
    """Return those of the entries, one for each step of a kind, that belong to a part's steps."""
    first, count = (sum(isinstance(step, kind) for step in steps) for steps in (before, own))
    return entries[first : first + count]
