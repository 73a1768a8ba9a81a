"""The order of the stages: the only file that knows it. Read it as a table of contents.

    compile_frame   snapshot -> Entry (guards, executable or residual) | Eager
      compile_graph   torch-level graph -> callable: backend "native", "aot_eager", "eager", yours
        build_native    one ATen graph -> executable: lower, schedule, render, load; when asked,
                      tune: products before the schedule, kernels before they are rendered

Every stage runs inside `record.stage(name)`, which keeps its result and time for explanations and
lets the progress line speak. A stage that fails makes the frame run as eager, visibly
(FallbackWarning); `Unsupported` (fullgraph) and KeyboardInterrupt pass through.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch

from .autograd.joint import trace_joint
from .autograd.partial import backward_without
from .autograd.partition import partition
from .autograd.replay import Replay
from .autograd.result import output_specs
from .autograd.saved import Saved
from .autograd.shell import Once, make_callable, replayed
from .backwards import at_first_use, build_backward, made_up, tell_of_replay, tell_once
from .bytecode import FrameSnapshot
from .codegen import render
from .comparable import comparable
from .errors import CompileFailed, OperationFailed, Unsupported
from .frame.beside import hide
from .frame.eager import before_trace, eager_entry
from .frame.handle import Handle
from .frame.ledger import Variant
from .frame.locked import Again, while_held
from .frame.native import Entry, GuardProgram, continue_with, lower_guards
from .frame.sandbox import sandbox
from .graph.autocast import modes_kept
from .graph.data_split import split_at_data
from .graph.lazy_module import written
from .graph.python_numbers import in_python
from .graph.subgraphs import Split, split_into_subgraphs
from .graph.verify import verify as verify_graph
from .guards.guard import GlobalState
from .guards.read import read_source
from .loops.lower import device_of_kernels, lower
from .loops.verify import verify as verify_loops
from .options import Options
from .pieces import compile_pieces
from .records import BUILDING, COMPILED, USERS_BACKEND, Begun, Eager, Failed, Recording
from .runtime.ahead import build_ahead, still_missing
from .runtime.examples import examples
from .runtime.load import load
from .runtime.native import spent, split_graph, undoing, with_numbers
from .runtime.tiers import tell_of_no_compiler, tell_of_weaker
from .schedule import schedule, turned_outputs
from .sized_joint import Builders
from .sizes import Build, Compiled, Sized, sized
from .spec import TensorSpec
from .target import Target, find_target, weaker_target
from .titles import call_places, titles_of
from .trace.concrete import places_of
from .trace.emit import CannotRestore, FrameScope, emit
from .trace.restarts import Stop
from .trace.result import Break, GraphInput, Trace
from .trace.resume import FlatCode
from .trace.template import template_of
from .trace.undo import can_start_over, written_before_raising
from .tracing import has_own_symbols, stop_before, trace_frame, trace_statically
from .tuning import best_kernels, best_products

__all__ = ["compile_frame", "flatten"]

Graph = Callable[..., tuple[Any, ...]]
Examples = Callable[[], Sequence[torch.Tensor]]  # tensors like the graph's inputs
flatten = FlatCode.of
# Python of ours that compiled graphs call: torch.compile, where it runs too, passes over it.
for _called_in_graph in (Once.__call__, Replay.__call__, Sized.missed):
    hide(_called_in_graph.__code__)
_ATTEMPTS = 4  # at one frame, each of which found an operation that cannot be compiled


def compile_frame(
    handle: Handle, snapshot: FrameSnapshot, record: Recording
) -> Entry | Eager | Begun:
    """Compile one call's frame for every later call that passes the same guards. Begun: C++ kernels
    are built in the background first, and nothing else is kept: the compile that finds them built
    starts over, with the guards of its own call.
    """
    options = handle.options
    if options.background is not False and options.backend == "native" and not options.tunes:
        record.wanted = []
    with sandbox():  # no mode, hook or observer of the user's sees the compile
        return _compile_frame(handle, snapshot, record)


def _compile_frame(
    handle: Handle, snapshot: FrameSnapshot, record: Recording
) -> Entry | Eager | Begun:
    """Where a stage refuses an operation the graph ends before it, like at any other break."""
    if (refused := before_trace(snapshot)) is not None:
        if handle.options.fullgraph:
            raise Unsupported(refused.why, "call it otherwise, or without fullgraph=True", None)
        return refused
    # Only autograd, not the tracer, finds out that an operation cannot be differentiated: the frame
    # is then traced again, up to it.
    stop: Stop | None = None
    for _ in range(_ATTEMPTS):
        try:
            return _attempt(handle, snapshot, record, stop)
        except OperationFailed as failed:
            stop = stop_before(failed, stop)
    return _attempt(handle, snapshot, record, stop)


def _attempt(
    handle: Handle, snapshot: FrameSnapshot, record: Recording, stop: Stop | None
) -> Entry | Eager | Begun:
    """With sizes as symbols, unless that has a stage fail; then as they are in this call."""
    with record.stage("trace") as stage:
        traced = stage.keep(trace_frame(handle, snapshot, stop))
    if not has_own_symbols(handle, traced):
        return _compile_trace(handle, snapshot, record, traced)
    try:
        return _compile_trace(handle, snapshot, record, traced, is_last=False)
    except Exception as error:
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
    with record.stage("trace") as stage:
        traced = stage.keep(trace_statically(handle, snapshot, stop, traced, why))
    return _compile_trace(handle, snapshot, record, traced)


def _compile_trace(
    handle: Handle, snapshot: FrameSnapshot, record: Recording, traced: Trace, is_last: bool = True
) -> Entry | Eager | Begun:
    """`is_last`: nothing else is tried for this frame."""
    options = handle.options
    if isinstance(traced.exit, Break):
        if handle.library is None and options.fullgraph:
            reason = traced.exit.reason
            raise Unsupported(reason.message, reason.hint, traced.exit.where)
        if (entry := _whole_as_eager(handle, snapshot, traced)) is not None:
            return entry
    if options.verify:
        verify_graph(traced.graph)
    try:
        graph = compile_graph(handle, traced, snapshot, record) if _computes(traced) else None
        if record.wanted:
            return Begun(build_ahead(record.wanted, partial(_told, record)).wait, record.stages)
        with record.stage("emit"):
            entry = _make_entry(handle, snapshot, traced, graph)
    except Exception as error:  # calls that these guards do not fit may fare better
        known = isinstance(error, OperationFailed | Unsupported)
        if known or not is_last or handle.must_raise(record):
            raise
        failed = Failed.of(error, record.failed_in)
        return eager_entry(handle.run_hooked, snapshot, traced.guards, failed)
    if isinstance(entry, Eager):
        return eager_entry(handle.run_hooked, snapshot, traced.guards, entry)
    entry.notes = _variant(handle, traced, record)
    entry.notes.foresees = traced.foresees
    return entry


def _variant(handle: Handle, traced: Trace, record: Recording) -> Variant:
    ends = Eager(end.reason.message, end.where) if (end := traced.unexpected_break) else None
    constants = {symbol.origin: symbol.where for symbol in traced.specialized}
    compared, later = comparable(handle, traced), tuple(record.later)
    return Variant(traced.guards, COMPILED, later, ends, compared, traced.varying, constants)


def _told(record: Recording, build: Callable[[Callable[[str], None]], None]) -> None:
    """Build kernels on another thread, with the progress line."""
    with record.stage(BUILDING) as stage:
        build(lambda text: stage.say(f"{text}, running as eager meanwhile"))


def _whole_as_eager(handle: Handle, snapshot: FrameSnapshot, traced: Trace) -> Entry | Eager | None:
    """The answer for a frame that is not to be cut at a break, but left to plain Python; None: it
    is cut. The guards are torch's state and what led to the break: nothing else matters to eager.
    """
    assert isinstance(traced.exit, Break)
    reason, where = traced.exit.reason, traced.exit.where
    state = tuple(guard for guard in traced.guards if isinstance(guard, GlobalState))
    if reason.whole_frame and handle.goes_on is None:
        guards = (*state, *traced.because)
        return eager_entry(handle.run_plainly, snapshot, guards, Eager(reason.message, where))
    if reason.spreads and not _computes(traced):
        guards = (*state, *traced.because)
        return eager_entry(handle.run_hooked, snapshot, guards, Eager(reason.message, where))
    if handle.library is None:
        return None
    eager = Eager(f"library code is compiled whole or not at all: {reason.message}", where)
    if not traced.because:
        return eager
    return eager_entry(handle.run_hooked, snapshot, (*state, *traced.because), eager)


def _computes(traced: Trace) -> bool:
    return any(node.op not in ("placeholder", "output") for node in traced.graph.graph.nodes)


def _make_entry(
    handle: Handle, snapshot: FrameSnapshot, traced: Trace, graph: Graph | None
) -> Entry | Eager:
    """Natively callable when the frame is one graph with a plain result, else with a residual."""
    template = template_of(traced) if traced.lock is None else None
    sources = tuple(entry.source for entry in traced.inputs)
    if template is not None:
        wanted = (*sources, *template.sources)
        steps, registers = lower_guards(traced.guards, wanted, snapshot.globals, snapshot.builtins)
        # What guards have read of the call is not read again for the graph or the result.
        inputs, read_again = registers[: len(sources)], registers[len(sources) :]
        shape = template.with_registers(read_again)
        run = graph if graph is not None else _no_graph
        entry = Entry(GuardProgram(steps), run, inputs if graph else (), shape, False)
        entry.mutates = not can_start_over(traced)  # eager must not repeat a graph that raised
        return entry
    steps, _ = lower_guards(traced.guards, (), snapshot.globals, snapshot.builtins)
    scope = FrameScope(
        snapshot.globals,
        snapshot.builtins,
        handle.resume_dispatcher,
        continue_with,
        again := Again(handle, is_locked=traced.lock is not None),
    )
    try:
        residual = emit(traced, handle.flat, graph, scope)
    except CannotRestore as error:
        return Eager(str(error))
    program, run = GuardProgram(steps), residual
    if traced.lock is not None:
        run = while_held(traced.lock, program, residual, handle.run_plainly)
    again.entry = Entry(program, run, None, None, isinstance(traced.exit, Break))
    return again.entry


def _no_graph() -> tuple[Any, ...]:
    """The executable of a frame that computes nothing."""
    return ()


# ------------------------------------------------------------------------------------- one graph


def compile_graph(
    handle: Handle, traced: Trace, snapshot: FrameSnapshot, record: Recording
) -> Graph:
    """The chosen backend's callable for a torch-level graph; returns a flat tuple of outputs."""
    # From the inside out: each wraps the one before, and costs a call only where it is needed.
    options = handle.options
    numbers = tuple(i for i, entry in enumerate(traced.inputs) if entry.is_scalar)
    run = _compile_by(handle, traced, snapshot, record)
    if traced.spent_results and options.backend in ("native", "aot_eager"):  # no autograd ran
        run = spent(run, traced.spent_results, traced.grad_inputs)
    if numbers:
        run = with_numbers(run, numbers)
    draws = any(node.meta.get("random") for node in traced.graph.graph.nodes)
    if (traced.mutated or draws) and can_start_over(traced):
        copied = _written_half_way(traced, options)
        run = undoing(run, copied, draws) if copied or draws else run
    return run


def _written_half_way(traced: Trace, options: Options) -> tuple[int, ...]:
    """The inputs that a graph may have written when it raises."""
    early = written_before_raising(traced)
    if not early or options.backend not in ("native", "aot_eager"):
        return early
    return early if _runs_in_parts(traced.graph) else ()


def _runs_in_parts(gm: torch.fx.GraphModule) -> bool:
    """Whether one executable writes before another one may raise."""
    try:
        return split_at_data(gm) is not None or split_into_subgraphs(gm) is not None
    except CompileFailed:  # it cannot be cut
        return False


def _compile_by(handle: Handle, traced: Trace, snapshot: FrameSnapshot, record: Recording) -> Graph:
    options = handle.options

    def make_inputs() -> list[torch.Tensor]:
        return [_example(entry, snapshot) for entry in traced.inputs]

    if options.backend == "eager":
        return modes_kept(traced.graph, written(in_python(traced.graph)).forward)
    # Symbols end here: the autograd split sees the sizes of one call, kernels may serve all sizes.
    static: Callable[..., Compiled] = partial(_compile_static, options=options)
    builders = _builders(options, record)
    if (pieces := split_at_data(traced.graph)) is not None:
        return compile_pieces(traced, pieces, static, builders, options, record)
    if places_of(traced):
        known = handle.ledger.static_shapes(snapshot)
        return sized(traced, make_inputs(), static, builders, options, record, known)
    return static(traced, make_inputs, record, None)[0]


def _builders(options: Options, record: Recording) -> Builders:
    """What one joint graph for all sizes is built with."""
    later = record.for_later()

    def graph(gm: torch.fx.GraphModule, name: str, record: Recording) -> Graph:
        return _build_graph(gm, name, options, record, partial(made_up, gm), None)

    def backward(
        build: Callable[[Recording], Graph], replay: Callable[[], torch.fx.GraphModule]
    ) -> Graph:
        return at_first_use(build, replay, options, later)

    def target(gm: torch.fx.GraphModule) -> Target:
        return find_target(device_of_kernels(gm), options)

    return Builders(target, graph, backward, lambda: tell_of_replay(later))


def _compile_static(
    traced: Trace,
    make_inputs: Examples,
    record: Recording,
    kernels: Build | None,
    asked: Container[int] | None = None,
    *,
    options: Options,
) -> Compiled:
    """`kernels`: asked for executables first. `asked`: whose gradients are asked for; None: all."""
    if callable(options.backend):
        with record.stage(USERS_BACKEND):
            run = options.backend(written(traced.graph), make_inputs())
            if not callable(run):
                raise CompileFailed(f"the backend returned {run!r}, which is not callable")
        return modes_kept(traced.graph, _as_tuple(run)), None

    specs = tuple(entry.spec for entry in traced.inputs)
    whole = traced.graph, specs, options, record, make_inputs, kernels
    try:
        if (split := split_into_subgraphs(traced.graph, asked)) is not None:
            return _compile_split(split, specs, options, record, kernels)
    except OperationFailed:
        raise
    except CompileFailed as failed:  # outputs that share memory, say: one graph does without
        made = _compile_ahead(*whole)
        _tell_of_one_node(record, str(failed))
        return made
    return _compile_ahead(*whole)


def _tell_of_one_node(record: Recording, why: str) -> None:
    told = (
        f"results of {record.name} that are computed from one another are one autograd node, "
        f"so none can be differentiated with respect to another: {why}\n"
        "  hint: where such gradients are needed, put jitmagic.graph_break() between the results"
    )
    tell_once(record, "one node", told)


def _compile_split(
    split: Split,
    inputs: tuple[TensorSpec, ...],
    options: Options,
    record: Recording,
    kernels: Build | None,
) -> Compiled:
    """Each subgraph is compiled for what those before it give."""
    specs, runs = list(inputs), []
    for subgraph in split.subgraphs:
        if options.verify:
            verify_graph(subgraph.graph)
        taken = tuple(specs[slot] for slot in subgraph.inputs)
        known = taken, options, record, partial(examples, taken), kernels
        run, outputs = _compile_ahead(subgraph.graph, *known)
        runs.append((run, subgraph.inputs, subgraph.outputs, subgraph.dead))
        specs += outputs or ()
    run = split_graph(len(inputs), tuple(runs), split.outputs)
    return run, [specs[slot] for slot in split.outputs]


def _example(entry: GraphInput, snapshot: FrameSnapshot) -> torch.Tensor:
    if entry.is_drawn:
        return examples((entry.spec,))[0]
    value: Any = read_source(entry.source, snapshot)
    if entry.spec.requires_grad and not value.requires_grad:  # the frame makes it a leaf
        value = value.detach().requires_grad_()
    elif entry.is_scalar:
        value = torch.tensor(value, dtype=entry.spec.dtype)
    return cast("torch.Tensor", value)


def _as_tuple(run: Callable[..., Any]) -> Graph:
    """Backends may return a list or a tuple."""

    def call(*inputs: Any) -> tuple[Any, ...]:
        outputs = run(*inputs)
        return outputs if type(outputs) is tuple else tuple(outputs)

    return call


def _compile_ahead(
    gm: torch.fx.GraphModule,
    specs: Sequence[TensorSpec],
    options: Options,
    record: Recording,
    make_inputs: Examples,
    kernels: Build | None,
) -> Compiled:
    """The executable, and what its outputs are like."""
    with record.stage("joint") as stage:
        joint = stage.keep(trace_joint(gm, specs))
    with record.stage("partition") as stage:
        parts = stage.keep(partition(joint))
    build: Callable[..., Graph] = partial(_build_graph, kernels=kernels)
    if options.backend == "aot_eager":  # the split alone, to bisect a wrong answer
        build = replayed
    # The forward is built first: its kernels may choose how saved images lie, which the backward
    # is then compiled for.
    saved = Saved(parts)
    forward = build(parts.forward, "forward", options, record, make_inputs, saved=saved)
    parts = saved.as_they_lie()
    later = record.for_later()  # a backward is built calls later, and is a record of its own
    backward: Once | None = None
    if parts.backward is not None and record.wanted:
        # Nothing runs it: its kernels are wanted, to be built beside the forward's.
        build(backward_without(parts, ()), "backward", options, record, make_inputs)
    if parts.backward is not None:
        backward = Once.of(lambda gm: build_backward(build, gm, options, later), parts)
        record.later.append(weakref.ref(backward))  # status asks it, and keeps nothing alive
    executable = make_callable(parts, forward, backward, gm, lambda: tell_of_replay(later))
    return executable, output_specs(joint)


def _build_graph(
    gm: torch.fx.GraphModule,
    name: str,
    options: Options,
    record: Recording,
    make_inputs: Examples,
    kernels: Build | None,
    saved: Saved | None = None,
) -> Graph:
    """Kernels of the best tier that works; one that fails hands over to the next, visibly."""
    device = device_of_kernels(gm)
    target = find_target(device, options)
    if target.device == "cpu" and target.tier != "cpp" and options.cpu_tier == "auto":
        tell_of_no_compiler(target, options)
    if kernels is not None and (run := kernels(gm, name, target, record)) is not None:
        return run
    while target.tier != "aten":
        try:
            return build_native(gm, name, target, options, record, make_inputs, saved)
        except (CompileFailed, ImportError) as error:
            weaker = weaker_target(target, options)
            tell_of_weaker(name, target, weaker, error)
            target = weaker
    return replayed(gm)


def build_native(
    gm: torch.fx.GraphModule,
    name: str,
    target: Target,
    options: Options,
    record: Recording,
    make_inputs: Examples,
    saved: Saved | None = None,
) -> Graph:
    """One ATen graph to one executable. `saved`: what of its outputs is free to lie as it likes."""
    with record.stage(f"{name}: lower") as stage:
        program = stage.keep(lower(gm, name))
        if options.verify:
            verify_loops(program)
    ours = best_products(program, target, options, record, make_inputs) if options.tunes else {}
    with record.stage(f"{name}: schedule") as stage:
        scheduled = stage.keep(
            schedule(program, target, options, ours, saved.count if saved else 0)
        )
        if options.verify:
            verify_loops(scheduled.program)
    configs = best_kernels(scheduled, target, options, record, make_inputs) if options.tunes else {}
    with record.stage(f"{name}: render") as stage:
        plan, source = render(scheduled, target, configs)
        titles = titles_of(scheduled.program, gm, record.title)
        places = call_places(scheduled.program, gm)
        rendered = stage.keep((replace(plan, titles=titles, places=places), source))
    if record.wanted is not None and (missing := still_missing(rendered[1], target, options)):
        record.wanted.append(missing)
        return _no_graph
    with record.stage(f"{name}: load") as stage:
        loaded = load(*rendered, target, options, tell=stage.say)
        stage.keep(replace(loaded, run=_no_graph))  # the record outlives an entry handed back
    if saved is not None:
        saved.lie(turned_outputs(program, scheduled.program))
    record.kernels += loaded.kernels
    record.cache_hits += loaded.kernels if loaded.cached else 0
    return loaded.run
