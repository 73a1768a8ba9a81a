"""Lowers a Plan to the tuple that `_runtime.Executable` reads, and wraps executables natively.

In: a Plan, and the entry of each kernel (a C function's address, or a CUDA function with its grid).
Out: the native executable. Arguments of ATen calls are put into schema order here, so that the C++
side converts constants once and only fills slots per call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from ..codegen.plan import (
    Alloc,
    Call,
    Free,
    Launch,
    LaunchGrid,
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
from ..construction import construction_of, made_by
from ..extension import runtime_module
from ..late import load
from ..lazy_dataclass import dataclass
from ..symbols.size import hint_of
from ..symbols.size_programs import SizeCode, SizeProgram
from ..symbols.symbolic_numbers import Symbol
from ..torch_types import AnyFunction, Executable, OpOverload

__all__ = [
    "SIZES_KEPT",
    "BySizes",
    "CpuEntry",
    "CudaEntry",
    "KernelEntry",
    "SavedEntry",
    "SizeTemplate",
    "Step",
    "add_alone",
    "add_template",
    "by_sizes",
    "called_template",
    "executable_template",
    "freed_results",
    "lower_plan",
    "lower_sized_plan",
    "make_executable",
    "slot_count",
    "slots_in",
    "slots_needing_tensors",
    "split_graph",
    "split_template",
    "torch_call",
    "undo_on_error",
    "with_held_objects",
    "with_numbers",
]


@dataclass(frozen=True, slots=True)
class CpuEntry:
    """Describes a C function `int (void* const*)`; a reference to `owner` keeps its library
    loaded.
    """

    address: int
    owner: object
    context: int = 0  # the address of what args[-1] has to point to


@dataclass(frozen=True, slots=True)
class CudaEntry:
    """Describes a loaded CUfunction. `scratch` counts the trailing null pointers of Triton's launch
    convention; `by_value` are the positions of CPU scalars.
    """

    function: int
    grid: LaunchGrid
    shared_bytes: int
    scratch: int
    owner: object
    by_value: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SavedEntry:
    """Names a C function in a plan that is saved to a file."""

    name: str


SIZES_KEPT = 64  # executables cached per template; building one again takes microseconds

KernelEntry = CpuEntry | CudaEntry
_HEAVY_BYTES = 1 << 20  # a plan that touches more than this releases the GIL


def make_executable(
    plan: Plan,
    kernels: Mapping[str, KernelEntry],
    aligned: tuple[int, ...] = (),
    fallback: Executable | None = None,
) -> Executable:
    """Return the native executable of a plan. It keeps the kernels' owners alive.

    The kernels assume that the `aligned` inputs start on 16-byte boundaries; a call with another
    one goes to `fallback`.
    """
    program = lower_plan(plan, kernels)
    owners = _owners(kernels)
    made = runtime_module().Executable(program, plan.constants, owners, aligned, fallback)
    return made  # type: ignore[no-any-return]


def _owners(kernels: Mapping[str, KernelEntry]) -> tuple[object, ...]:
    return tuple({id(entry.owner): entry.owner for entry in kernels.values()}.values())


@runtime_checkable
class SizeTemplate(Protocol):
    """Makes executables for all sizes (extensions/runtime/sizes.h)."""

    def at(self, values: tuple[int, ...]) -> Executable:
        """Return the executable at these values of the symbols."""
        ...


def executable_template(
    plan: Plan,
    kernels: Mapping[str, KernelEntry],
    symbols: Sequence[Symbol],
    aligned: tuple[int, ...] = (),
    fallback: Callable[[tuple[int, ...]], Executable] | None = None,
) -> SizeTemplate:
    """Return `make_executable` of a plan with Sizes. `symbols` are in the order of their values.
    `fallback` returns the executable for unaligned inputs at given values.
    """
    code = SizeCode(len(symbols))
    program, constants = lower_sized_plan(plan, kernels, symbols, code)
    made: SizeTemplate = runtime_module().ExecutableTemplate(
        program, constants, _owners(kernels), code.program(), aligned, fallback
    )
    return made


def called_template(make: Callable[[tuple[int, ...]], Executable]) -> SizeTemplate:
    """Return a template whose executables a function makes."""
    made: SizeTemplate = runtime_module().CalledTemplate(make)
    return made


def lower_sized_plan(
    plan: Plan,
    kernels: Mapping[str, KernelEntry | SavedEntry],
    symbols: Sequence[Symbol],
    code: SizeCode,
) -> tuple[object, tuple[object, ...]]:
    """Return `lower_plan` of a plan with Sizes, and its constants, with registers of `code` for all
    that depends on the values of `symbols`.
    """
    code.set_symbols(symbols)
    program = code.with_registers(lower_plan(plan, kernels))
    constants = tuple(
        tuple(code.register(symbol) for symbol in constant.symbols)
        if isinstance(constant, SizeVector)
        else constant
        for constant in plan.constants
    )
    return program, constants


def with_numbers(run: Executable, positions: tuple[int, ...]) -> Executable:
    """Wrap `run` so that Python numbers at these positions become 0-dim CPU tensors."""
    made: Executable = runtime_module().WithNumbers(run, positions)
    return made_by(made, "with_numbers", run, positions)


def with_held_objects(run: Executable, inputs: int) -> Executable:
    """Wrap `run`, which takes `inputs` arguments. Its autograd nodes keep the further ones alive,
    for the checks that their backwards need.
    """
    made: Executable = runtime_module().HoldingObjects(run, (inputs,))
    return made_by(made, "with_held_objects", run, inputs)


def undo_on_error(
    run: Executable, written: tuple[int, ...], draws: bool, watched: tuple[int, ...] = ()
) -> Executable:
    """Wrap `run` so that an exception restores the inputs at `written`, and torch's default CPU
    generator if it `draws`. After a write to an input at `watched` the exception has the attribute
    `__jitmagic_wrote__`.
    """
    made: Executable = runtime_module().UndoOnError(run, written, watched, draws)
    return made_by(made, "undo_on_error", run, written, draws, watched)


def freed_results(run: Executable, results: tuple[int, ...], leaves: tuple[int, ...]) -> Executable:
    """Wrap `run` so that a backward of the results at these positions raises. The backward inside
    the graph freed their history, which led to the inputs at `leaves`.
    """
    made: Executable = runtime_module().FreedResults(run, results, leaves)
    return made_by(made, "freed_results", run, results, leaves)


class Step(NamedTuple):
    """An executable of a chain (extensions/runtime/split_graph.cpp): the slots of its inputs, the
    number of its outputs, and the slots not read after it.
    """

    run: SizeTemplate | Executable
    inputs: tuple[int, ...]
    outputs: int
    dead: tuple[int, ...] = ()


def split_graph(
    inputs: int,
    steps: Sequence[Step],
    results: tuple[int, ...],
    constants: tuple[torch.Tensor | None, ...] = (),
) -> Executable:
    """Chain executables into one. Slots of constants follow those of the inputs."""
    made: Executable = runtime_module().SplitGraph(inputs, tuple(steps), results, constants)
    return made_by(made, "split_graph", inputs, tuple(steps), results, constants)


def split_template(
    inputs: int,
    steps: Sequence[Step],
    results: tuple[int, ...],
    constants: tuple[tuple[torch.dtype, object], ...],
    symbols: Sequence[Symbol],
) -> SizeTemplate:
    """Return `split_graph` for all sizes. The parts may be SizeTemplates. Constants are numbers or
    Sizes of these symbols and become 0-dim tensors of a dtype.
    """
    code = SizeCode(len(symbols))
    code.set_symbols(symbols)
    numbers = code.with_registers(constants)
    made: SizeTemplate = runtime_module().SplitTemplate(
        inputs, tuple(steps), results, numbers, code.program()
    )
    return made_by(made, "split_template", inputs, tuple(steps), results, constants, symbols)


def torch_call(
    inputs: int,
    function: AnyFunction,
    arguments: tuple[tuple[int] | tuple[object, None], ...],
    names: tuple[str, ...] = (),
) -> Executable:
    """Wrap a torch function as an executable. Arguments are inputs, (position,), or constants,
    (constant, None); `names` are those of the last ones. See extensions/runtime/called.cpp.
    """
    made: Executable = runtime_module().TorchCall(inputs, function, arguments, names)
    return made_by(made, "torch_call", inputs, function, arguments, names)


class BySizes(Protocol):
    """Is the interface of the executables that `by_sizes` returns."""

    def __call__(self, *inputs: torch.Tensor) -> tuple[object, ...]:
        """Run the executable for the sizes of the inputs."""
        ...

    def add(self, values: tuple[int, ...], run: Executable) -> None:
        """Set the executable for calls of these sizes."""
        ...

    def add_template(
        self,
        predicates: SizeProgram,
        template: SizeTemplate,
        checked: Callable[[tuple[int, ...]], None] | None,
    ) -> None:
        """Add a template for sizes that satisfy the predicates; `checked` is called with each
        first.
        """
        ...


def by_sizes(
    places: tuple[tuple[int, int], ...],
    miss: Callable[[tuple[int, ...], tuple[torch.Tensor, ...]], Executable],
    most: int = sys.maxsize,
    excluded: tuple[tuple[int, ...], ...] = (),
    state: object = None,
) -> BySizes:
    """Return an executable that selects another one by the sizes of its inputs, read at `places`
    (input, dimension). Of the executables that templates make, the `most` recently used are cached.
    For size tuples in `excluded`, and where no template applies, `miss` returns the one to call,
    which is cached only if `add` is called with it. See sized.cpp. `state`: the data of which
    another process makes `miss`.
    """
    made: BySizes = runtime_module().BySizes(places, miss, most, excluded)
    return made_by(made, "by_sizes", places, most, excluded, state, list[Any](), dict[Any, Any]())


def add_template(
    run: BySizes,
    predicates: SizeProgram,
    template: SizeTemplate,
    checked: Callable[[tuple[int, ...]], None] | None = None,
) -> None:
    """Let `run` use a template for sizes that satisfy the predicates; `checked` is called with each
    first.
    """
    run.add_template(predicates, template, checked)
    made = construction_of(run)
    made.arguments[-2].append((predicates, template))
    made.on_change()


def add_alone(run: BySizes, values: tuple[int, ...], executable: Executable) -> None:
    """Let `run` use an executable for these sizes, for which there is no template."""
    run.add(values, executable)
    made = construction_of(run)
    made.arguments[-1][values] = executable
    made.on_change()


def lower_plan(plan: Plan, kernels: Mapping[str, KernelEntry | SavedEntry]) -> tuple[object, ...]:
    """Return (inputs, slots, pool_bytes, device, heavy, steps, outputs, titles), see plan.cpp."""
    as_tensor = slots_needing_tensors(plan)
    places = _places(plan)
    steps = tuple(_lower_step(step, kernels, as_tensor, plan.device, places) for step in plan.steps)
    outputs = tuple(-1 if slot is None else slot for slot in plan.outputs)
    return (
        plan.inputs,
        slot_count(plan),
        plan.pool_bytes,
        plan.device,
        hint_of(plan.pool_bytes + plan.allocated_bytes) > _HEAVY_BYTES or _communicates(plan),
        steps,
        outputs,
        plan.titles,
    )


def _communicates(plan: Plan) -> bool:
    """Return whether a call is a collective: it may wait for a thread that needs the GIL. gloo's
    threads do to free tensors.
    """
    calls = (step.op for step in plan.steps if isinstance(step, Call))
    return any(op.namespace.startswith("_c10d") for op in calls)


def _places(plan: Plan) -> Iterator[tuple[str, int]]:
    """Return an iterator over the (file, line) of the Calls, in order."""
    calls = sum(isinstance(step, Call) for step in plan.steps)
    return iter(plan.call_lines if len(plan.call_lines) == calls else [("", 0)] * calls)


def slot_count(plan: Plan) -> int:
    """Return one more than the highest slot in use."""
    highest = plan.inputs + len(plan.constants) - 1
    for step in plan.steps:
        made = step.results if isinstance(step, Call) else (getattr(step, "slot", None),)
        highest = max([highest, *(slot for slot in made if slot is not None)])
    return highest + 1


def slots_needing_tensors(plan: Plan) -> frozenset[int]:
    """Return the slots that need a tensor object; for the others the executor keeps only an
    address.
    """
    needed = {slot for slot in plan.outputs if slot is not None}
    lasting = set(range(plan.inputs + len(plan.constants)))  # memory that outlives the call
    for step in plan.steps:
        if isinstance(step, Call):
            needed.update(s.index for s in slots_in((step.args, tuple(step.kwargs.values()))))
            if step.out:
                needed.update(slot for slot in step.results if slot is not None)
        elif isinstance(step, View) and step.base in lasting:
            lasting.add(step.slot)
    for step in reversed(plan.steps):
        if isinstance(step, View):
            if step.base not in lasting:  # the view keeps the memory alive
                needed.add(step.slot)
            if step.slot in needed:
                needed.add(step.base)
    return frozenset(needed)


def slots_in(value: object) -> list[Slot]:
    """Return every Slot inside nested tuples and lists."""
    if isinstance(value, Slot):
        return [value]
    if isinstance(value, (tuple, list)):
        return [slot for part in value for slot in slots_in(part)]
    return []


def _layout(step: Alloc | Reuse | Pool) -> tuple[object, ...]:
    return (step.shape, step.stride, step.dtype, step.device)


def _lower_step(
    step: PlanStep,
    kernels: Mapping[str, KernelEntry | SavedEntry],
    as_tensor: frozenset[int],
    device: torch.device,
    places: Iterator[tuple[str, int]],
) -> tuple[object, ...]:
    match step:
        case Alloc():
            return ("alloc", step.slot, _layout(step))
        case Reuse():
            return ("over", step.slot, step.base, _layout(step))
        case Pool():
            return ("pool", step.slot, _layout(step), step.offset, step.slot in as_tensor)
        case Launch():
            return _lower_launch(step, kernels[step.kernel], device)
        case View():
            if step.slot in as_tensor:
                return ("view", step.slot, step.base, (step.shape, step.stride), step.offset)
            return ("address", step.slot, step.base, step.offset * step.dtype.itemsize)
        case Free():
            return ("free", step.slot)
        case Call():
            return (*_lower_call(step), *next(places))
    raise TypeError(f"not a plan step: {step!r}")


def _lower_launch(
    step: Launch, entry: KernelEntry | SavedEntry, device: torch.device
) -> tuple[object, ...]:
    if isinstance(entry, CpuEntry):
        kernel = (entry.address, entry.context) if entry.context else entry.address
        return ("launch", kernel, step.args)
    if isinstance(entry, SavedEntry):
        return ("launch", entry.name, step.args)
    grid = entry.grid
    index = device.index or 0
    return (
        "launch_cuda",
        entry.function,
        grid.grid,
        grid.num_warps * 32,
        entry.shared_bytes,
        entry.scratch,
        index,
        step.args,
        entry.by_value,
    )


def _lower_call(step: Call) -> tuple[object, ...]:
    schema = step.op._schema
    given: dict[str, object] = {
        declared.name: value for declared, value in zip(schema.arguments, step.args, strict=False)
    }
    given.update(step.kwargs)
    if step.out:
        outs = [argument.name for argument in schema.arguments if argument.is_out]
        given.update(zip(outs, (Slot(s) for s in step.results if s is not None), strict=True))
    arguments = tuple(_lower_argument(given, declared) for declared in schema.arguments)
    results = tuple(-1 if slot is None else slot for slot in step.results)
    name, _, _ = schema.name.partition(".")
    layouts = tuple(layout and _expected(layout) for layout in step.layouts)
    call = ("call", name, schema.overload_name, arguments, results, step.out, layouts)
    return (*call, step.foreign, _launches(step.op))


def _launches(op: OpOverload) -> tuple[object, ...] | None:
    """Return how to repeat the launch of a user-written Triton kernel, or None for any other
    operator.
    """
    if op.namespace != "jitmagic":  # spares most processes what reads such kernels
        return None
    made: tuple[object, ...] | None = load("runtime.user_kernels").native_launches(op)
    return made


def _expected(layout: Layout) -> tuple[object, ...]:
    return (layout.shape, layout.stride, layout.dtype, layout.device, layout.required)


def _lower_argument(given: Mapping[str, object], declared: torch.Argument) -> tuple[object, ...]:
    if declared.name not in given:  # torch also omits a None without a default
        return ("default",) if declared.has_default_value() else ("const", None)
    value = given[declared.name]
    if isinstance(value, NumberSlot):
        return ("number", value.index)
    if isinstance(value, Slot):
        return ("slot", value.index)
    if isinstance(value, tuple | list) and slots_in(value):
        return ("list", tuple(-1 if part is None else part.index for part in value))
    return ("const", value)
