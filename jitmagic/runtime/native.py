"""From a Plan to the tuple that `_runtime.Executable` reads, and what else stands around a graph.

Comes in: a Plan, and per kernel how it is entered (a C function's address, or a CUDA function with
its grid). Goes out: the native executable. Arguments of ATen calls are put into schema order here,
so that the C++ side only converts constants once and fills slots per call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

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
from ..extension import runtime_module
from ..symbols.compiled import SizeCode, SizeProgram
from ..symbols.scalar import Symbol
from ..symbols.size import hint_of

__all__ = [
    "AtSizes",
    "BySizes",
    "CpuEntry",
    "CudaEntry",
    "Executable",
    "KernelEntry",
    "by_sizes",
    "called",
    "executable_template",
    "holding",
    "lower_plan",
    "make_executable",
    "slot_count",
    "slots_in",
    "slots_needing_tensors",
    "spent",
    "split_graph",
    "split_template",
    "undoing",
    "with_numbers",
]

Executable = Callable[..., tuple[Any, ...]]
"""What runs a graph: from its inputs to a flat tuple of its outputs."""


@dataclass(frozen=True, slots=True)
class CpuEntry:
    """A C function `int (void* const*)`; `owner` keeps its library loaded."""

    address: int
    owner: object


@dataclass(frozen=True, slots=True)
class CudaEntry:
    """A loaded CUfunction. `scratch`: trailing null pointers of Triton's launch convention;
    `by_value`: positions of arguments that are CPU scalars.
    """

    function: int
    grid: LaunchGrid
    shared_bytes: int
    scratch: int
    owner: object
    by_value: tuple[int, ...] = ()


KernelEntry = CpuEntry | CudaEntry
_HEAVY_BYTES = 1 << 20  # a plan that touches more than this releases the GIL


def make_executable(
    plan: Plan,
    kernels: Mapping[str, KernelEntry],
    aligned: tuple[int, ...] = (),
    otherwise: Executable | None = None,
) -> Executable:
    """The native executable of a plan. It keeps what its kernels live in.

    `aligned`: inputs that the kernels take to start on 16-byte boundaries; a call in which one does
    not goes to `otherwise`.
    """
    program = lower_plan(plan, kernels)
    owners = _owners(kernels)
    made = runtime_module().Executable(program, plan.constants, owners, aligned, otherwise)
    return made  # type: ignore[no-any-return]


def _owners(kernels: Mapping[str, KernelEntry]) -> tuple[object, ...]:
    return tuple({id(entry.owner): entry.owner for entry in kernels.values()}.values())


class AtSizes(Protocol):
    """What is made for all sizes (extensions/runtime/sizes.h)."""

    def at(self, values: tuple[int, ...]) -> Executable:
        """The executable where the symbols have these values."""
        ...


def executable_template(
    plan: Plan,
    kernels: Mapping[str, KernelEntry],
    symbols: Sequence[Symbol],
    aligned: tuple[int, ...] = (),
    otherwise: Callable[[tuple[int, ...]], Executable] | None = None,
) -> AtSizes:
    """`make_executable` of a plan with Sizes. `symbols`: in the order of their values, for which
    `otherwise` gives what runs where an input is not aligned.
    """
    code = SizeCode(len(symbols))
    code.name(symbols)
    program = code.part(lower_plan(plan, kernels))
    constants = tuple(
        tuple(runtime_module().Register(code.expr(symbol)) for symbol in constant.symbols)
        if isinstance(constant, SizeVector)
        else constant
        for constant in plan.constants
    )
    made: AtSizes = runtime_module().ExecutableTemplate(
        program, constants, _owners(kernels), code.program(), aligned, otherwise
    )
    return made


def with_numbers(run: Executable, positions: tuple[int, ...]) -> Executable:
    """`run` with the Python floats at these positions handed on as 0-dim float64 tensors."""
    return runtime_module().WithNumbers(run, positions)  # type: ignore[no-any-return]


def holding(run: Executable, inputs: int) -> Executable:
    """`run` called with so many arguments; what follows them is kept by its autograd nodes, for the
    checks of what their backwards rely on.
    """
    return runtime_module().Holding(run, (inputs,))  # type: ignore[no-any-return]


def undoing(
    run: Executable, written: tuple[int, ...], draws: bool, watched: tuple[int, ...] = ()
) -> Executable:
    """`run`; when it raises, the inputs at `written` get their old contents back, and torch's
    default CPU generator goes back if it `draws`. Behind a write to an input at `watched` the
    exception has the attribute `__jitmagic_wrote__`.
    """
    return runtime_module().Undoing(run, written, watched, draws)  # type: ignore[no-any-return]


def spent(run: Executable, results: tuple[int, ...], leaves: tuple[int, ...]) -> Executable:
    """`run`; a backward of the results at these positions raises, as the one inside the graph has
    freed their history, which led to the inputs at `leaves`.
    """
    return runtime_module().Spent(run, results, leaves)  # type: ignore[no-any-return]


def split_graph(
    inputs: int,
    subgraphs: tuple[tuple[Callable[..., Any], tuple[int, ...], int, tuple[int, ...]], ...],
    results: tuple[int, ...],
    constants: tuple[torch.Tensor, ...] = (),
) -> Executable:
    """Executables that run one after the other as one. Each: (run, slots of its inputs, number of
    outputs, slots not read after it), see extensions/runtime/split_graph.cpp. The slots of
    constants follow those of the inputs.
    """
    return runtime_module().SplitGraph(inputs, subgraphs, results, constants)  # type: ignore[no-any-return]


def split_template(
    inputs: int,
    subgraphs: tuple[tuple[Any, tuple[int, ...], int, tuple[int, ...]], ...],
    results: tuple[int, ...],
    constants: tuple[tuple[torch.dtype, Any], ...],
    symbols: Sequence[Symbol],
) -> AtSizes:
    """`split_graph` for all sizes: what runs may be AtSizes, and the constants are numbers, Sizes
    of these symbols among them, which become 0-dim tensors of a dtype.
    """
    code = SizeCode(len(symbols))
    code.name(symbols)
    numbers = code.part(constants)
    made: AtSizes = runtime_module().SplitTemplate(
        inputs, subgraphs, results, numbers, code.program()
    )
    return made


def called(
    inputs: int,
    function: Callable[..., Any],
    arguments: tuple[tuple[int] | tuple[Any, None], ...],
    names: tuple[str, ...] = (),
) -> Executable:
    """A function of torch as an executable: of inputs at positions, (position,), and constants,
    (constant, None), the last of which have these names. See extensions/runtime/called.cpp.
    """
    return runtime_module().Called(inputs, function, arguments, names)  # type: ignore[no-any-return]


class BySizes(Protocol):
    """What `by_sizes` gives."""

    def __call__(self, *inputs: torch.Tensor) -> tuple[Any, ...]:
        """Run what is known for the sizes of the inputs."""
        ...

    def add(self, values: tuple[int, ...], run: Executable) -> None:
        """What calls of these sizes run from now on."""
        ...

    def add_template(
        self,
        predicates: SizeProgram,
        template: AtSizes,
        checked: Callable[[tuple[int, ...]], None] | None,
    ) -> None:
        """What makes executables for sizes that the predicates are true of; `checked` is called
        with them first.
        """
        ...


def by_sizes(
    places: tuple[tuple[int, int], ...],
    miss: Callable[[tuple[int, ...], tuple[torch.Tensor, ...]], Executable],
    most: int = sys.maxsize,
    apart: tuple[tuple[int, ...], ...] = (),
) -> BySizes:
    """An executable for each vector of sizes, read at places (input, dimension): what a template
    makes, of which `most` are kept, those used last. For sizes that no template is for, or that are
    `apart`, what `miss` gives is called, and kept only by `add`. See extensions/runtime/sized.cpp.
    """
    return runtime_module().BySizes(places, miss, most, apart)  # type: ignore[no-any-return]


def lower_plan(plan: Plan, kernels: Mapping[str, KernelEntry]) -> tuple[Any, ...]:
    """(inputs, slots, pool_bytes, device, heavy, steps, outputs, titles), see plan.cpp."""
    as_tensor = slots_needing_tensors(plan)
    places = _places(plan)
    steps = tuple(_lower_step(step, kernels, as_tensor, plan.device, places) for step in plan.steps)
    outputs = tuple(-1 if slot is None else slot for slot in plan.outputs)
    return (
        plan.inputs,
        slot_count(plan),
        plan.pool_bytes,
        plan.device,
        hint_of(_bytes_touched(plan)) > _HEAVY_BYTES,
        steps,
        outputs,
        plan.titles,
    )


def _places(plan: Plan) -> Iterator[tuple[str, int]]:
    """Of each Call in order."""
    calls = sum(isinstance(step, Call) for step in plan.steps)
    return iter(plan.call_lines if len(plan.call_lines) == calls else [("", 0)] * calls)


def slot_count(plan: Plan) -> int:
    """One more than the highest slot in use."""
    highest = plan.inputs + len(plan.constants) - 1
    for step in plan.steps:
        made = step.results if isinstance(step, Call) else (getattr(step, "slot", None),)
        highest = max([highest, *(slot for slot in made if slot is not None)])
    return highest + 1


def _bytes_touched(plan: Plan) -> int:
    return plan.pool_bytes + plan.allocated_bytes


def slots_needing_tensors(plan: Plan) -> frozenset[int]:
    """Slots of which more than the address is asked for."""
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
            if step.base not in lasting:  # it is the view that keeps the memory
                needed.add(step.slot)
            if step.slot in needed:
                needed.add(step.base)
    return frozenset(needed)


def slots_in(value: Any) -> list[Slot]:
    """Every Slot inside nested tuples and lists."""
    if isinstance(value, Slot):
        return [value]
    if isinstance(value, (tuple, list)):
        return [slot for part in value for slot in slots_in(part)]
    return []


def _layout(step: Alloc | Reuse | Pool) -> tuple[Any, ...]:
    return (step.shape, step.stride, step.dtype, step.device)


def _lower_step(
    step: PlanStep,
    kernels: Mapping[str, KernelEntry],
    as_tensor: frozenset[int],
    device: torch.device,
    places: Iterator[tuple[str, int]],
) -> tuple[Any, ...]:
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


def _lower_launch(step: Launch, entry: KernelEntry, device: torch.device) -> tuple[Any, ...]:
    if isinstance(entry, CpuEntry):
        return ("launch", entry.address, step.args)
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


def _lower_call(step: Call) -> tuple[Any, ...]:
    schema = step.op._schema
    given: dict[str, Any] = {
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
    return (*call, step.foreign)


def _expected(layout: Layout) -> tuple[Any, ...]:
    return (layout.shape, layout.stride, layout.dtype, layout.device, layout.required)


def _lower_argument(given: Mapping[str, Any], declared: Any) -> tuple[Any, ...]:
    if declared.name not in given:  # torch leaves out a None where there is no default, too
        return ("default",) if declared.has_default_value() else ("const", None)
    value = given[declared.name]
    if isinstance(value, NumberSlot):
        return ("number", value.index)
    if isinstance(value, Slot):
        return ("slot", value.index)
    if slots_in(value):
        return ("list", tuple(-1 if part is None else part.index for part in value))
    return ("const", value)
