"""Builds the Plan of a schedule: slots for buffers, memory, launches, ATen calls, frees.

In: a Schedule. Out: a Plan. A buffer gets a slot when it is first defined, and the slot is freed
after its last use. Outputs are allocated separately; temporaries are in the pool at the offsets
that the schedule chose.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from ..lazy_dataclass import dataclass, field
from ..loops.ir import Alias, BufferRef, Extern, Nest, NumberRef, Step
from ..loops.ops.extern import runs_unknown_code, wait_for
from ..schedule.dependencies import storages, writes_of
from ..schedule.externs import out_overload
from ..schedule.result import Schedule
from .equal_kernels import SharedKernels
from .loop_structure import nest_arguments
from .plan import (
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
    SizeVector,
    Slot,
    View,
)

__all__ = ["build_plan"]


@dataclass(slots=True)
class _Builder:
    schedule: Schedule
    distinct: SharedKernels
    slots: dict[str, int] = field(default_factory=dict)
    steps: list[PlanStep] = field(default_factory=list)
    count: int = 0
    read_by_address: frozenset[str] = frozenset()  # buffers that kernels and views read
    # nest -> slots of its SizeVectors
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.read_by_address = _read_by_address(self.schedule.program.steps)

    def slot(self, name: str) -> int:
        """Return the slot of a buffer; allocate one at its first use."""
        if name not in self.slots:
            self.slots[name] = self.count
            self.count += 1
        return self.slots[name]

    def ensure_memory(self, name: str) -> None:
        """Allocate the memory of a buffer that a kernel is about to write."""
        if name in self.slots:
            return
        buffer, slot = self.schedule.program.buffers[name], self.slot(name)
        shape, stride, dtype, device = buffer.shape, buffer.stride, buffer.dtype, buffer.device
        offset, reused = self.schedule.pool.get(name), self.schedule.reused.get(name)
        if reused is not None:
            base = self.slots[reused]
            self.steps.append(Reuse(slot, base, shape, stride, dtype, device))
        elif offset is None:
            self.steps.append(Alloc(slot, shape, stride, dtype, device))
        else:
            self.steps.append(Pool(slot, offset, shape, stride, dtype, device))

    def argument(self, item: object) -> object:
        """Return an item of an extern call's arguments, with a slot in place of a buffer."""
        if not isinstance(item, BufferRef):
            return item
        self.ensure_memory(item.name)  # no step writes a tensor without elements
        kind = NumberSlot if isinstance(item, NumberRef) else Slot
        return kind(self.slots[item.name])

    def add(self, step: Step) -> None:
        match step:
            case Nest():
                names = nest_arguments(step)
                for name in names:
                    self.ensure_memory(name)
                self.launch(step.name, names, writes_of(step))
            case Extern(name=name) if (kernel := self.distinct.attention.get(name)) is not None:
                for argument in kernel.arguments:
                    self.ensure_memory(argument)
                self.launch(name, kernel.arguments, kernel.written.values())
            case Extern():
                self.call(step)
            case Alias(name, base, offset):
                self.ensure_memory(base)
                made, slot = self.schedule.program.buffers[name], self.slot(name)
                view = View(slot, self.slots[base], made.shape, made.stride, offset, made.dtype)
                self.steps.append(view)

    def launch(self, nest: str, names: tuple[str, ...], writes: Collection[str]) -> None:
        """Launch the nest's kernel, which writes the buffers `writes`; a shared kernel gets the
        address of the nest's first element.
        """
        slots = [self.slots[name] for name in names]
        # A View of shape () is an address for the kernel; the executor creates no tensor for it.
        moved = []
        for place, start in enumerate(self.distinct.starts.get(nest, ())):
            if start:
                dtype = self.schedule.program.buffers[names[place]].dtype
                self.steps.append(View(self.count, slots[place], (), (), start, dtype))
                slots[place] = self.count
                moved.append(Free(self.count))
                self.count += 1
        taken = (*slots, *self.sizes.get(nest, ()))
        written = tuple([slot for slot, name in zip(slots, names, strict=True) if name in writes])
        self.steps += [Launch(self.distinct.kernels[nest], taken, written), *moved]

    def call(self, step: Extern) -> None:
        """Add an ATen call, with `out=` where the plan provides the result's memory."""
        args, kwargs = step.mapped(self.argument)
        overload = out_overload(step, self.schedule.program.buffers)
        if overload is not None:
            assert step.results[0] is not None
            self.ensure_memory(step.results[0])
            done = (self.slots[step.results[0]],)
            self.steps.append(Call(overload, args, kwargs, done, out=True))
            return
        results = tuple(None if name is None else self.slot(name) for name in step.results)
        layouts = tuple(None if name is None else self.layout(name) for name in step.results)
        foreign = runs_unknown_code(step.op) and step.op != wait_for()  # which returns its argument
        self.steps.append(Call(step.op, args, kwargs, results, layouts=layouts, foreign=foreign))

    def layout(self, name: str) -> Layout:
        """Return the layout that later steps expect of an ATen result."""
        buffer = self.schedule.program.buffers[name]
        required = name in self.read_by_address
        return Layout(buffer.shape, buffer.stride, buffer.dtype, buffer.device, required)

    def free(self, dying: list[str]) -> None:
        for name in dying:
            if name in self.slots:
                self.steps.append(Free(self.slots[name]))


def _read_by_address(steps: Iterable[Step]) -> frozenset[str]:
    found: set[str] = set()
    for step in steps:
        match step:
            case Nest():
                found.update(nest_arguments(step))
            case Alias(base=base):
                found.add(base)
    return frozenset(found)


def build_plan(
    schedule: Schedule,
    distinct: SharedKernels,
    sizes: Mapping[str, tuple[SizeVector, ...]] = MappingProxyType({}),
) -> Plan:
    """Walk the steps in order. `distinct` names the kernel of every nest; `sizes` are the size
    arguments of each nest's kernel, which become constants of the plan.
    """
    program = schedule.program
    builder = _Builder(schedule, distinct)
    for name in (*program.inputs, *program.constants):
        builder.slot(name)
    vectors = dict.fromkeys(vector for taken in sizes.values() for vector in taken)
    places = {vector: builder.count + n for n, vector in enumerate(vectors)}
    builder.count += len(vectors)
    builder.sizes = {nest: tuple(places[v] for v in taken) for nest, taken in sizes.items()}
    dying: dict[int, list[str]] = {}
    inputs, end = {*program.inputs}, len(program.steps) - 1
    for name, number in schedule.last_use.items():
        # The executable owns constants; inputs that the last step reads live no longer than a call.
        if name not in program.constants and not (name in inputs and number == end):
            dying.setdefault(number, []).append(name)
    for number, step in enumerate(program.steps):
        builder.add(step)
        builder.free(dying.get(number, []))
    for output in program.outputs:
        if output is not None:
            builder.ensure_memory(output)  # no step writes a tensor without elements
    outputs = tuple(None if name is None else builder.slots[name] for name in program.outputs)
    constants = (*program.constants.values(), *vectors)
    return Plan(
        program.name,
        len(program.inputs),
        constants,
        tuple(builder.steps),
        outputs,
        schedule.pool_bytes,
        program.device,
        _mutated(schedule),
    )


def _mutated(schedule: Schedule) -> tuple[int, ...]:
    program = schedule.program
    owner = storages(program)
    written = {owner[name] for step in program.steps for name in writes_of(step)}
    return tuple(i for i, name in enumerate(program.inputs) if name in written)
