"""Compiles a function for one example, and describes the result as data.

In: a callable, arguments, and a CxxWriter that takes kernels and tensors. Out: a description of the
inputs and outputs, and of the plan with its kernels and weights. The stages are those of a call
(compile/pipeline.py) in inference: no gradients are recorded. With symbolic sizes the description
has Registers, whose numbers a program computes from the sizes of each call.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule

from ..autograd.joint import trace_joint
from ..autograd.partition import partition
from ..autograd.result import FromInput, Output, Partition, Result, VersionBump, ViewOf, ViewReplay
from ..autograd.symbolic_joint import trace_sized_joint
from ..budget import within
from ..codegen.plan import Call, Free, KernelSource, Plan, PlanStep, Slot
from ..compile.executable import render_graph
from ..compile.graph_passes import edit_captured, edit_joint, edit_parts
from ..compile.lazy_backwards import stand_in_inputs
from ..compile.sized_joint import check_results
from ..compile.template import for_all_sizes, render_sized
from ..devices import Target, find_target
from ..errors import CompileFailed, UsageError
from ..frame.sandbox import sandbox
from ..graph.symbolic.concrete import ScalarInput
from ..graph.verify import verify
from ..guards.guard import NoOverlap, SizesRelate
from ..lazy_dataclass import dataclass, replace
from ..loops.lower import device_of_kernels
from ..options import Options
from ..records import Journal, Recording
from ..runtime.native import SavedEntry, lower_sized_plan, slot_count
from ..runtime.store import open_store
from ..runtime.toolchain import library_image
from ..runtime.translation_units import build_units
from ..symbols.context import COMPARISONS
from ..symbols.expr import Expr
from ..symbols.predicates import Predicates, fresh_sizes
from ..symbols.size import SizeOf, StrideOf, expr_of
from ..symbols.size_programs import SizeCode
from ..symbols.symbolic_numbers import Symbol, symbols_of
from ..trace.result import FromGraph, Trace
from ..trace.varying.concrete import hints_of, places_of, ranges_of, with_sizes
from .cxx_call import TracedCall, trace_call
from .cxx_file import CxxWriter, Register
from .examples import Arguments

__all__ = ["Entry", "compile_entry"]

aten = torch.ops.aten
# The functions of sizes that extensions/deploy/size_functions.cpp computes.
_FUNCTIONS: Mapping[object, str] = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/",
    operator.floordiv: "//", operator.mod: "%", operator.neg: "neg", abs: "abs", min: "min",
    max: "max", operator.pow: "**", math.sqrt: "sqrt", float: "float", math.trunc: "trunc",
    math.floor: "floor", math.ceil: "ceil",
    **{function: op for op, function in COMPARISONS.items()},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the file, as nested data, and the instruction set of its kernels."""

    described: dict[str, Any]
    isa: str


class _Compiled(NamedTuple):
    """The plan of a graph; `taken` says which input of the trace, or which number computed from
    sizes, each of its inputs is. `predicates` are those of sizes, none if all are constant.
    """

    plan: Plan
    source: KernelSource | None
    parts: Partition
    target: Target
    taken: Sequence[int | ScalarInput]
    predicates: tuple[Predicates, ...] = ()


def compile_entry(
    fn: Callable[..., Any], arguments: Arguments, options: Options, writer: CxxWriter
) -> Entry:
    """Compile a call for inference. Raises UsageError, CannotKeep or CompileFailed."""
    record = Recording(getattr(fn, "__name__", type(fn).__name__), Journal())
    with torch.no_grad(), sandbox(), within(options.budget):
        call = trace_call(fn, arguments, options)
        edit_captured(call.traced, record)
        if options.verify:
            verify(call.traced.graph)
        compile_ = _compile_sized if places_of(call.traced) else _compile
        made = compile_(call.traced, options, record)
        kernels = _kernels(made.source, made.target, options, writer)
    return Entry(_described(call, made, kernels, writer), made.target.isa)


# -- stages ---------------------------------------------------------------------------------------


def _compile(traced: Trace, options: Options, record: Recording) -> _Compiled:
    """Compile for the sizes of the example."""
    joint = edit_joint(trace_joint(traced.graph, [i.spec for i in traced.inputs]), record)
    parts = edit_parts(partition(joint, options.activation_memory_budget), record)
    gm, target = parts.forward, _target(parts.forward, options)
    make_inputs = partial(stand_in_inputs, gm)
    made = render_graph(gm, "forward", target, options, record, make_inputs)
    return _Compiled(made.plan, made.source, parts, target, range(len(traced.inputs)))


class _Joint(NamedTuple):
    predicates: Predicates
    parts: Partition
    taken: Sequence[int | ScalarInput]


def _compile_sized(traced: Trace, options: Options, record: Recording) -> _Compiled:
    """Compile for all sizes of the dimensions that vary."""
    values = hints_of(traced)

    def make_joint(fixed: Collection[Symbol]) -> _Joint:
        predicates, sizes = fresh_sizes(ranges_of(traced), values, fixed)
        sized, taken = with_sizes(traced, sizes)
        joint = trace_sized_joint(sized.graph, [entry.spec for entry in sized.inputs])
        check_results(sized.graph, joint)
        joint = edit_joint(joint, record)
        parts = edit_parts(partition(joint, options.activation_memory_budget), record)
        return _Joint(predicates, parts, taken)

    joint = for_all_sizes("joint for all sizes", values, make_joint, record, set())
    if joint is None:
        raise CompileFailed(_why(record))
    gm, target = joint.parts.forward, _target(joint.parts.forward, options)
    given = gm, "forward", joint.predicates, values, target, options, record
    make = partial(render_sized, *given, excludes_sizes=False)
    made = for_all_sizes("forward: for all sizes", values, make, record, set())
    if made is None:
        raise CompileFailed(_why(record))
    predicates = joint.predicates, made.predicates
    return _Compiled(made.plan, made.source, joint.parts, target, joint.taken, predicates)


def _why(record: Recording) -> str:
    return f"the program cannot be compiled for all sizes: {record.stages[-1].result}"


def _target(gm: GraphModule, options: Options) -> Target:
    target = find_target(device_of_kernels(gm), options)
    if target.device != "cpu" or target.tier != "cpp":
        why = f"its kernels are of tier {target.tier!r} on {target.device} ({target.why})"
        raise CompileFailed(f"only C++ kernels for the CPU can be saved: {why}")
    return target


def _kernels(
    source: KernelSource | None, target: Target, options: Options, writer: CxxWriter
) -> dict[str, str]:
    """Return the archive's file of each kernel."""
    if source is None:
        return {}
    store = open_store(options.cache_dir)
    build_units(source.units, target, store, options.budget, lambda _: None)
    made = {}
    for unit in source.units:
        library = library_image(unit.text, target, store)
        if library is None:
            raise CompileFailed("the cache folder keeps no files: set JITMAGIC_CACHE_DIR")
        made.update(dict.fromkeys(unit.symbols, writer.add_kernels(library)))
    return made


# -- description ----------------------------------------------------------------------------------


def _described(
    call: TracedCall, made: _Compiled, kernels: Mapping[str, str], writer: CxxWriter
) -> dict[str, Any]:
    traced, symbols = call.traced, places_of(call.traced)
    code = SizeCode(len(symbols), Register)
    code.set_symbols(tuple(symbols))
    for predicates in made.predicates:
        code.set_symbols(predicates.symbols)
    plan, outputs = _with_views(made.plan, made.parts)
    slots = [
        outputs[part.index] if isinstance(part, FromGraph) else made.taken.index(part)
        for _, part in call.results
    ]
    plan = replace(plan, outputs=tuple(slots), titles=(), call_lines=())
    last = made.predicates[-1].symbols if made.predicates else ()
    saved = {name: SavedEntry(name) for name in kernels}
    program, constants = lower_sized_plan(plan, saved, last, code)
    described = {
        "inputs": [_input(call, n, code, writer) for n in range(len(call.leaves))],
        "outputs": [name for name, _ in call.results],
        "arguments": [_argument(call, one, code, writer) for one in made.taken],
        "written": sorted({place for n in traced.mutated if (place := call.places[n]) is not None}),
        "distinct": any(isinstance(guard, NoOverlap) for guard in traced.guards),
        "program": writer.write(program),
        "constants": writer.write(constants),
        "kernels": kernels,
    }
    places = [[call.places[n], dim] for n, dim in symbols.values()]
    return described | _sizes(places, made, traced, code, writer)


def _sizes(
    places: Sequence[Sequence[int | None]],
    made: _Compiled,
    traced: Trace,
    code: SizeCode,
    writer: CxxWriter,
) -> dict[str, Any]:
    """Describe where sizes are read, what they must satisfy, and the numbers computed from them."""
    if not made.predicates:
        return {"sizes": [], "checks": [], "numbers": []}
    symbols = tuple(places_of(traced))
    relations = [guard for guard in traced.guards if isinstance(guard, SizesRelate)]
    checks = SizeCode(len(symbols), Register)
    checks.set_symbols(symbols)
    for symbol in {s for guard in relations for s in _symbols_of(guard)}.difference(symbols):
        checks.define(symbol, _meaning(symbol, traced))
    checks.require(ranges_of(traced), [(guard.op, guard.left, guard.right) for guard in relations])
    for predicates in made.predicates:
        predicates.write(checks)
    return {
        "sizes": places,
        "checks": writer.write(_named(checks)),
        "numbers": writer.write(_named(code)),
    }


def _symbols_of(guard: SizesRelate) -> tuple[Symbol, ...]:
    return (*symbols_of(guard.left), *symbols_of(guard.right))


def _meaning(symbol: Symbol, traced: Trace) -> Expr:
    """Return the size or stride that a symbol of a guard means, as the input's spec has it: the
    reader compares each input's sizes with its spec, and lays it out in those strides.
    """
    origin = symbol.origin
    for entry in traced.inputs:
        if isinstance(origin, SizeOf | StrideOf) and entry.source == origin.source:
            numbers = entry.spec.shape if isinstance(origin, SizeOf) else entry.spec.stride
            return expr_of(numbers[origin.dim])
    raise CompileFailed(f"the program relies on {symbol.name}, which is no size of an argument")


def _named(code: SizeCode) -> tuple[tuple[object, ...], ...]:
    """Return the instructions with names for Python's functions."""
    return tuple(
        (step[0], _name_of(step[1]), step[2]) if step[0] == "call" else step
        for step in code.instructions
    )


def _name_of(function: object) -> str:
    if (name := _FUNCTIONS.get(function)) is None:
        raise CompileFailed(f"a size is computed by {function}, which only Python has")
    return name


def _input(call: TracedCall, n: int, code: SizeCode, writer: CxxWriter) -> dict[str, Any]:
    """Describe an argument. One that is no input of the graph has to be as in the example."""
    leaf = call.leaves[n]
    shape, stride = tuple(leaf.tensor.shape), leaf.tensor.stride()
    if n in call.places:
        spec = call.traced.inputs[call.places.index(n)].spec
        shape, stride = spec.shape, spec.stride
    return {
        "name": leaf.name,
        "dtype": writer.write(leaf.tensor.dtype),
        "shape": writer.write(code.with_registers(shape)),
        "stride": writer.write(code.with_registers(stride)),
    }


def _argument(
    call: TracedCall, taken: int | ScalarInput, code: SizeCode, writer: CxxWriter
) -> dict[str, Any]:
    if isinstance(taken, ScalarInput):
        number: Any = code.with_registers((taken.value,))
        return {"number": writer.write(number[0]), "dtype": writer.write(taken.spec.dtype)}
    if (place := call.places[taken]) is not None:
        return {"input": place}
    return {"weight": writer.write(call.values[taken])}


def _with_views(plan: Plan, parts: Partition) -> tuple[Plan, list[int]]:
    """Add the views that autograd would replay to a plan. Returns it and the slot of each of the
    graph's outputs.
    """
    slots: list[int | None] = [*range(plan.inputs), *plan.outputs[: parts.results]]
    calls: list[PlanStep] = []
    fresh = slot_count(plan)
    for step in parts.aliasing:
        if isinstance(step, VersionBump):
            continue
        if not isinstance(step, ViewReplay):
            raise UsageError("the result is a new parameter, which cannot be saved")
        made = tuple(range(fresh, fresh + step.outputs))
        fresh += step.outputs
        source = slots[step.source]
        assert source is not None
        op = aten.detach.default if step.op is None else step.op
        calls.append(Call(op, (Slot(source), *step.args), {}, made))
        slots += made
    places = [slots[_place(output, plan.inputs)] for output in parts.outputs]
    assert None not in places
    # The views come after all other steps, so that no input is freed: the caller owns them here.
    kept = [one for one in plan.steps if not (isinstance(one, Free) and one.slot < plan.inputs)]
    return replace(plan, steps=(*kept, *calls)), places  # type: ignore[return-value]


def _place(output: Output, inputs: int) -> int:
    match output:
        case Result(index):
            return inputs + index
        case FromInput(index) | ViewOf(index):
            return index
    raise TypeError(f"not an output: {output!r}")
