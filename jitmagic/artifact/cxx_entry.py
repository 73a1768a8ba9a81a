"""Compiles a function for one example, and describes the result as data.

In: a callable, arguments, and a Writer that takes kernels and tensors. Out: a description of the
inputs and outputs, and of the plan with its kernels and weights. The stages are those of a call
(compile/pipeline.py) in inference: no gradients are recorded. A call that Python would have to
finish, because the graph breaks or an object changes, is refused.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from ..autograd.joint import trace_joint
from ..autograd.partition import partition
from ..autograd.result import (
    FromInput,
    Output,
    Partition,
    Result,
    VersionBump,
    ViewOf,
    ViewReplay,
)
from ..budget import within
from ..bytecode import FrameSnapshot
from ..codegen.plan import Call, KernelSource, Plan, PlanStep, Slot
from ..compat.pytree import keystr, tree_flatten_with_path
from ..compile.executable import render_graph
from ..compile.graph_passes import edit_captured, edit_joint, edit_parts
from ..compile.lazy_backwards import stand_in_inputs
from ..compile.retracing import settle
from ..devices import Target, find_target
from ..errors import CompileFailed, Unsupported, UsageError
from ..frame.sandbox import sandbox
from ..graph.verify import verify
from ..guards.guard import NoOverlap
from ..guards.read import read_source
from ..loops.lower import device_of_kernels
from ..options import Options
from ..records import Journal, Recording
from ..runtime.native import SavedEntry, lower_plan, slot_count
from ..runtime.store import open_store
from ..runtime.toolchain import library_bytes
from ..runtime.translation_units import build_units
from ..trace.assumptions import Assumptions
from ..trace.machine import trace
from ..trace.result import (
    Break,
    BuildDict,
    BuildList,
    BuildTuple,
    Constant,
    FromGraph,
    FromSource,
    Recipe,
    Trace,
)
from .cxx_file import Writer

__all__ = ["Entry", "compile_entry"]

aten = torch.ops.aten
_CONSTANT_WEIGHTS = "call .eval() on the module first, or pass the tensor as an argument"


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the file, as nested data, and the instruction set of its kernels."""

    described: dict[str, Any]
    isa: str


def compile_entry(
    fn: Callable[..., Any], args: tuple[Any, ...], options: Options, writer: Writer
) -> Entry:
    """Compile `fn(*args)` for inference. Raises UsageError or CompileFailed."""
    leaves = _tensors_of(args)
    snapshot = FrameSnapshot.of_call(_frame_of(fn), args)
    record = Recording(getattr(fn, "__name__", type(fn).__name__), Journal())
    with torch.no_grad(), sandbox(), within(options.budget):
        traced, _, _ = settle(partial(trace, snapshot, options, None), Assumptions())
        _check(traced)
        edit_captured(traced, record)
        if options.verify:
            verify(traced.graph)
        joint = edit_joint(trace_joint(traced.graph, [i.spec for i in traced.inputs]), record)
        parts = edit_parts(partition(joint, options.activation_memory_budget), record)
        gm = parts.forward
        target = _target(gm, options)
        made = render_graph(
            gm, "forward", target, options, record, partial(stand_in_inputs, gm)
        )
        plan, source = made.plan, made.source
        kernels = _kernels(source, target, options, writer)
    values = [read_source(entry.source, snapshot) for entry in traced.inputs]
    places = {id(leaf): n for n, (_, leaf) in enumerate(leaves)}
    arguments = [places.get(id(value)) for value in values]
    _check_writes(traced, arguments)
    whole, slots = _with_views(plan, parts)
    results = dict(_results(traced, traced.exit.value, ""))  # type: ignore[attr-defined]
    outputs = []
    for name, recipe in results.items():
        if isinstance(recipe, FromGraph):
            slot = slots[recipe.index]
        else:
            slot = _slot_of_source(recipe, traced, snapshot)
        outputs.append((name, slot))
    whole = replace(whole, outputs=tuple(slot for _, slot in outputs), titles=(), call_lines=())
    return Entry(
        {
            "inputs": [
                {
                    "name": name,
                    "dtype": writer.encode(leaf.dtype),
                    "shape": list(leaf.shape),
                    "stride": list(leaf.stride()),
                }
                for name, leaf in leaves
            ],
            "outputs": [name for name, _ in outputs],
            "arguments": [
                {"input": place} if place is not None else {"weight": writer.encode(value)}
                for place, value in zip(arguments, values, strict=True)
            ],
            "written": sorted({arguments[n] for n in traced.mutated}),  # type: ignore[type-var]
            "distinct": any(isinstance(guard, NoOverlap) for guard in traced.guards),
            "program": writer.encode(lower_plan(whole, {n: SavedEntry(n) for n in kernels})),
            "constants": writer.encode(plan.constants),
            "kernels": kernels,
        },
        target.isa,
    )


def _frame_of(fn: Callable[..., Any]) -> types.FunctionType:
    """Return a function that calls `fn`; its frame is traced."""

    def forward(*args: Any) -> Any:
        return fn(*args)

    return forward


def _tensors_of(args: tuple[Any, ...]) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors among the arguments, with names such as `[0]['mask']`."""
    found = [
        (keystr(path), leaf)
        for path, leaf in tree_flatten_with_path(args)[0]
        if isinstance(leaf, torch.Tensor)
    ]
    if len({id(leaf) for _, leaf in found}) < len(found):
        raise UsageError("an example passes one tensor twice: pass a copy")
    for name, leaf in found:
        if type(leaf) not in (torch.Tensor, torch.nn.Parameter) or leaf.layout != torch.strided:
            raise UsageError(f"argument {name} is not a plain strided tensor")
        if leaf.device.type != "cpu":
            raise UsageError(f"argument {name} is on {leaf.device}: only CPU tensors can be saved")
    return found


def _check(traced: Trace) -> None:
    """Raise for a trace that Python would have to finish."""
    if isinstance(traced.exit, Break):
        reason = traced.exit.reason
        raise Unsupported(reason.message, reason.hint, traced.exit.where)
    if traced.effects or traced.lock is not None:
        raise UsageError("the call changes Python objects, which a saved program cannot do")
    if traced.draws:
        raise UsageError("the call draws random numbers of Python or numpy: use torch's")
    if traced.wrappers or any(not entry.is_memory for entry in traced.inputs):
        raise UsageError("the call takes numbers or tensor subclasses that cannot be saved")


def _check_writes(traced: Trace, arguments: Sequence[int | None]) -> None:
    for n in traced.mutated:
        if arguments[n] is None:
            name = traced.inputs[n].name
            raise UsageError(f"the call writes to {name}, a weight: {_CONSTANT_WEIGHTS}")


def _target(gm: torch.fx.GraphModule, options: Options) -> Target:
    device = device_of_kernels(gm)
    target = find_target(device, options)
    if target.device != "cpu" or target.tier != "cpp":
        why = f"its kernels are of tier {target.tier!r} on {target.device} ({target.why})"
        raise CompileFailed(f"only C++ kernels for the CPU can be saved: {why}")
    return target


def _kernels(
    source: KernelSource | None, target: Target, options: Options, writer: Writer
) -> dict[str, str]:
    """Return the archive's file of each kernel."""
    if source is None:
        return {}
    store = open_store(options.cache_dir)
    build_units(source.units, target, store, options.budget, lambda _: None)
    made = {}
    for unit in source.units:
        library = library_bytes(unit.text, target, store)
        if library is None:
            raise CompileFailed("the cache folder keeps no files: set JITMAGIC_CACHE_DIR")
        made.update(dict.fromkeys(unit.symbols, writer.add_kernels(library)))
    return made


# -- results --------------------------------------------------------------------------------------


def _results(
    traced: Trace, recipe: Recipe, name: str
) -> Iterator[tuple[str, FromGraph | FromSource]]:
    """Yield the tensors of the result with their paths; None is left out."""
    parts: Iterator[tuple[object, Recipe]]
    match recipe:
        case FromGraph() | FromSource():
            yield name, recipe
            return
        case Constant(None):
            return
        case BuildTuple(items) | BuildList(items):
            parts = iter(enumerate(items))
        case BuildDict(keys, values) if all(isinstance(key, Constant) for key in keys):
            names = [key.value for key in keys if isinstance(key, Constant)]
            parts = iter(zip(names, values, strict=True))
        case _:
            kind = type(recipe).__name__
            raise UsageError(
                f"the result{name} is not made of tensors, tuples, lists and dicts ({kind})"
            )
    for key, part in parts:
        yield from _results(traced, part, f"{name}[{key!r}]")


def _slot_of_source(recipe: FromSource, traced: Trace, snapshot: FrameSnapshot) -> int:
    """Return the plan's slot of a tensor that exists before the call."""
    value = read_source(recipe.source, snapshot)
    for n, entry in enumerate(traced.inputs):
        if read_source(entry.source, snapshot) is value:
            return n
    raise UsageError("the result has an object that is no tensor of the graph")


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
    return replace(plan, steps=(*plan.steps, *calls)), places  # type: ignore[return-value]


def _place(output: Output, inputs: int) -> int:
    match output:
        case Result(index):
            return inputs + index
        case FromInput(index) | ViewOf(index):
            return index
    raise TypeError(f"not an output: {output!r}")
