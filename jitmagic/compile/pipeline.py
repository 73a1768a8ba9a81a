"""Runs the stages of a compile in order; reads as a table of contents.

    compile_frame       snapshot -> Entry (guards, executable or residual) | Eager | PendingBuild |
                        Postponed
      trace               tracing.py: which sizes and numbers are symbols, where the frame ends
      (passes)            graph_passes.py: registered passes edit the graph of each stage
      compile_graph       torch-level graph -> executable; backends.py: "eager", the user's
        joint, partition    subgraphs.py, data_partitions.py, sizes.py: of several graphs or sizes;
                            fused_attention.py: attention that is written out becomes one call
          forward             executable.py: lower, schedule, render, load
          backward            lazy_backwards.py: the same stages, at its first use
      emit                entries.py: guards and result, or an entry that runs eager
                          background.py: emit waits, while compile_graph runs on another thread

Every stage runs inside `record.stage(name)`, which keeps its result and time for explanations and
updates the progress line. If a stage fails, the frame runs in eager with a FallbackWarning;
`Unsupported` (fullgraph) and KeyboardInterrupt pass through.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import GraphModule

from ..autograd.autograd_function import BackwardCache, fx_executable, make_callable
from ..autograd.backward_graphs import SavedLayouts
from ..autograd.joint import trace_joint
from ..autograd.partition import partition
from ..autograd.replay import Replay
from ..autograd.result import Joint, Partition, output_specs
from ..autograd.stages import mark_stages
from ..budget import OutOfTime, TooCostly, affordable, within
from ..bytecode import FrameSnapshot
from ..errors import OperationFailed, Unsupported
from ..frame.eager import eager_entry, reason_not_to_trace
from ..frame.handle import Handle
from ..frame.native import Entry
from ..frame.original import gives_back_always
from ..frame.sandbox import sandbox
from ..frame.tag import tag
from ..frame.torch_compile_boundary import hide
from ..graph.symbolic.data_split import split_at_data
from ..guards.state import is_transformed_call
from ..late import late_names
from ..options import Options
from ..records import Eager, Failed, PendingBuild, Postponed, Recording, TookTooLong
from ..spec import TensorSpec
from ..symbols.probe import noting
from ..torch_types import Executable
from ..trace.residual.resume import FlatCode
from ..trace.restarts import Stop
from ..trace.result import Constant, Return, Trace
from ..trace.varying.concrete import places_of
from .backends import call_backend, example_inputs, interpreted_by_torch
from .background import build_in_background, compile_on_worker, may_wait
from .entries import (
    check_backwards,
    has_operations,
    left_to_eager,
    make_entry,
    wrap_executable,
)
from .executable import build_executable, builders_for_sizes
from .fused_attention import with_fused_attention
from .graph_passes import edit_captured, edit_joint, edit_parts
from .lazy_backwards import build_backward, prepare_backward, stand_in_inputs, warn_of_replay
from .retracing import has_chosen_symbols
from .sized_backwards import SizedBackwards, SizedGraphs
from .sizes import CompiledGraph, SizeCompiler, SizedState, compile_sizes
from .subgraphs import compile_subgraphs
from .thread_state import has_observers
from .tracing import note_numbers, stop_before, trace_frame, trace_statically

if TYPE_CHECKING:
    from ..autograd.freezing import frozen_parts
    from ..graph.verify import verify
    from ..trace.residual.generators import rewrite_generator
    from .buckets import compile_buckets
    from .data_partitions import compile_partitions
    from .frozen_weights import FrozenExecutable, frozen_places
    from .func_transforms import under_transforms
else:
    late_names(
        globals(),
        {
            "autograd.freezing": "frozen_parts",
            "compile.buckets": "compile_buckets",
            "compile.data_partitions": "compile_partitions",
            "compile.frozen_weights": "FrozenExecutable, frozen_places",
            "compile.func_transforms": "under_transforms",
            "graph.verify": "verify",
            "trace.residual.generators": "rewrite_generator",
        },
    )

__all__ = [
    "compile_backward",
    "compile_frame",
    "flatten",
    "rewrite_generator",
    "size_compiler",
    "sized_backwards",
    "warn_of_replay",
]

Examples = Callable[[], Sequence[torch.Tensor]]  # tensors like the graph's inputs
Made = Callable[[], Any]
flatten = FlatCode.of
_ATTEMPTS = 4  # traces of a frame; each failed one names an operation to break the graph before
# Python functions of jitmagic that compiled graphs call: hidden from torch.compile.
for _called_in_graph in (
    BackwardCache.__call__,
    BackwardCache.make,
    Replay.__call__,
    SizeCompiler.missed,
):
    hide(_called_in_graph.__code__)


def compile_frame(
    handle: Handle, snapshot: FrameSnapshot, record: Recording
) -> Entry | Eager | PendingBuild | Postponed:
    """Compile one call's frame for every later call that passes the same guards.

    Returns a PendingBuild if something has to be built in the background first.
    """
    record.leaves_thread &= not has_observers()
    if may_wait(handle.options):
        record.wanted = []
    compile_ = partial(_compile_frame, handle, snapshot, record)
    return _in_sandbox(handle, snapshot, record, compile_)  # type: ignore[no-any-return]


def _in_sandbox(handle: Handle, snapshot: FrameSnapshot, record: Recording, compile_: Made) -> Any:
    """Run a part of a compile on the calling thread, unseen by modes, hooks and observers."""
    options, earlier = handle.options, len(record.stages)
    try:
        with sandbox(), within(options.budget), noting(record.asked):
            return compile_()
    except TooCostly:
        return Postponed()
    except OutOfTime as over:
        failed = TookTooLong.after(options.budget, record.stages[earlier:])
        if options.fullgraph or options.on_error == "raise":
            raise Unsupported(failed.why, failed.hint, handle.resume_line) from None
        return eager_entry(handle.run_hooked, snapshot, over.guards, failed)


def _compile_frame(
    handle: Handle, snapshot: FrameSnapshot, record: Recording
) -> Entry | Eager | PendingBuild | Postponed:
    """Compile a frame, ending its graph before an operation that a stage refuses."""
    if (refused := reason_not_to_trace(snapshot)) is not None:
        if handle.options.fullgraph:
            raise Unsupported(
                refused.why, "call it in another way, or without fullgraph=True", None
            )
        return refused
    root = handle.flat.root
    if root.is_suspended and root.releases_arguments and gives_back_always(handle.original):
        return Eager("the generator has made an object with a finalizer")
    # That an operation cannot be differentiated is only found by running autograd on the finished
    # trace. The frame is then traced again, with a graph break before that operation.
    stop: Stop | None = None
    for _ in range(_ATTEMPTS):
        try:
            return _attempt(handle, snapshot, record, stop)
        except OperationFailed as failed:
            stop = stop_before(failed, stop)
    return _attempt(handle, snapshot, record, stop)


def _attempt(
    handle: Handle, snapshot: FrameSnapshot, record: Recording, stop: Stop | None
) -> Entry | Eager | PendingBuild | Postponed:
    """Compile with symbolic sizes; if a stage then fails, with the sizes of this call."""
    with record.stage("trace") as stage, affordable(record.affordable):
        traced, assumed = trace_frame(handle, snapshot, stop)
        stage.keep(traced)
    if record.notes_numbers and note_numbers(handle, traced):
        return Postponed()
    if not has_chosen_symbols(traced, assumed):
        return _compile_trace(handle, snapshot, record, traced)
    try:
        return _compile_trace(handle, snapshot, record, traced, is_last=False)
    except Exception as error:  # any stage may fail with sizes: the next line tries without
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
    with record.stage("trace") as stage:
        traced = stage.keep(trace_statically(handle, snapshot, stop, traced, assumed, why))
    return _compile_trace(handle, snapshot, record, traced)


def _compile_trace(
    handle: Handle, snapshot: FrameSnapshot, record: Recording, traced: Trace, is_last: bool = True
) -> Entry | Eager | PendingBuild | Postponed:
    """Compile one trace. `is_last`: no other trace of this frame will be tried."""
    if (eager := left_to_eager(handle, snapshot, traced)) is not None:
        return eager
    if has_operations(traced):
        edit_captured(traced, record)
    if handle.options.verify:
        verify(traced.graph)
    check_backwards(snapshot, traced)
    build = partial(_build, handle, snapshot, record, traced)
    if record.leaves_thread and has_operations(traced):
        finish = partial(_finish, handle, snapshot, record, traced)
        return compile_on_worker(build, finish, record, handle.options)
    return _entry_of(handle, snapshot, record, traced, build, is_last=is_last)


def _finish(
    handle: Handle, snapshot: FrameSnapshot, record: Recording, traced: Trace, built: Made
) -> Any:
    """Make the entry of what another thread has built; `built` returns or raises that."""
    made = partial(_entry_of, handle, snapshot, record, traced, built)
    return _in_sandbox(handle, snapshot, record, made)


def _build(
    handle: Handle, snapshot: FrameSnapshot, record: Recording, traced: Trace
) -> Executable | None:
    """Run the stages between the trace and the entry."""
    if not has_operations(traced):
        return None
    return wrap_executable(compile_graph(handle, traced, snapshot, record), traced, handle.options)


def _entry_of(
    handle: Handle,
    snapshot: FrameSnapshot,
    record: Recording,
    traced: Trace,
    build: Callable[[], Executable | None],
    *,
    is_last: bool = True,
) -> Entry | Eager | PendingBuild | Postponed:
    """Return the entry of a trace, after `build` has returned the executable of its graph."""
    try:
        run = build()
        if record.wanted:
            return build_in_background(record)
        with record.stage("emit"):
            entry = make_entry(handle, snapshot, traced, run, record)
    except OutOfTime as over:
        over.guards = traced.guards
        raise
    except Exception as error:  # a call with other guards may compile
        known = isinstance(error, OperationFailed | Unsupported)
        if known or not is_last or handle.must_raise(record):
            raise
        failed = Failed.of(error, record.failed_in)
        return eager_entry(handle.run_hooked, snapshot, traced.guards, failed)
    if isinstance(entry, Eager):
        return eager_entry(handle.run_hooked, snapshot, traced.guards, entry)
    return entry


# ------------------------------------------------------------------------------------- one graph


def compile_graph(
    handle: Handle, traced: Trace, snapshot: FrameSnapshot, record: Recording
) -> CompiledGraph:
    """Return the chosen backend's callable for a torch-level graph; it returns a flat tuple of
    outputs.
    """
    options = handle.options
    if options.backend == "eager":
        return CompiledGraph(interpreted_by_torch(traced.graph))
    if is_transformed_call():
        # The frame is compared with eager as a whole, which the comparison of parts would disturb.
        retag = partial(
            tag, options=replace(options, keep="compiled"), compiler=handle.family.compiler
        )
        with record.stage("transforms") as stage:
            run, why = under_transforms(traced.graph, traced.mutated, retag)
            stage.keep(why)
        return CompiledGraph(run, interpreted=True)
    # `static` compiles a graph of ints. `compile_sizes` makes one joint graph for all sizes, or
    # calls `static` for each size tuple.
    static: Callable[..., CompiledGraph] = partial(_compile_static, options=options)
    builders = builders_for_sizes(options, record)
    make_inputs = partial(example_inputs, traced.inputs, snapshot)
    if (partitions := split_at_data(traced.graph)) is not None:
        return compile_partitions(traced, partitions, static, builders, options, record)
    if places_of(traced):
        if options.buckets and (
            in_buckets := compile_buckets(traced, make_inputs(), static, options, record)
        ):
            return in_buckets
        # A user's backend gets one graph for all sizes; native kernels of static variants are
        # faster at their own sizes and stay in use for them.
        known = [] if callable(options.backend) else handle.ledger.static_shapes(snapshot)
        return compile_sizes(traced, make_inputs(), static, builders, options, record, known)
    return static(traced, make_inputs, record)


def _compile_static(
    traced: Trace,
    make_inputs: Examples,
    record: Recording,
    asked: Container[int] | None = None,
    *,
    options: Options,
) -> CompiledGraph:
    """Compile a graph of fixed sizes. `asked`: indices of the results that may be differentiated
    (None: all).
    """
    if callable(options.backend):
        return CompiledGraph(call_backend(options.backend, traced.graph, make_inputs, record))
    specs = tuple(entry.spec for entry in traced.inputs)
    whole = (traced.graph, frozen_places(traced.inputs) if options.freeze else frozenset[int]())
    ahead = partial(_compile_ahead, options=options, record=record, frozen=whole)
    return compile_subgraphs(traced.graph, specs, make_inputs, asked, ahead, options, record)


def _compile_ahead(
    gm: torch.fx.GraphModule,
    specs: Sequence[TensorSpec],
    make_inputs: Examples,
    *,
    options: Options,
    record: Recording,
    frozen: tuple[torch.fx.GraphModule, frozenset[int]],
) -> CompiledGraph:
    """Run the AOT stages: joint graph, partition, forward executable, backward at its first use.

    `frozen`: (whole graph of the frame, positions of its constant weights).
    """

    def trace(fused: torch.fx.GraphModule) -> Joint:
        with record.stage("joint") as stage:
            return stage.keep(trace_joint(fused, specs))

    joint = edit_joint(with_fused_attention(gm, trace, options, record), record)
    with record.stage("partition") as stage:
        parts = edit_parts(partition(joint, options.activation_memory_budget), record)
        mark_stages(parts.backward, record.bucket)
        stage.keep(parts)
    build: Callable[..., Executable] = build_executable
    if options.backend == "aot_eager":  # the split alone, to bisect a wrong answer
        build = fx_executable
    if frozen[0] is gm and (run := _of_frozen_weights(parts, frozen[1], build, options, record)):
        return CompiledGraph(make_callable(parts, run, None, gm), output_specs(joint))
    # The forward is built first: its kernels choose the strides of tensors saved for backward
    # (channels_last images), and the backward is compiled for those strides.
    saved = SavedLayouts(parts)
    training = parts.backward is not None
    forward = build(
        parts.forward, "forward", options, record, make_inputs, saved=saved, training=training
    )
    parts = saved.with_final_strides()
    later = record.for_later()  # a backward is built during a later call, with its own record
    backward = prepare_backward(build, parts, options, record, later)
    executable = make_callable(parts, forward, backward, gm, partial(warn_of_replay, later))
    return CompiledGraph(executable, output_specs(joint))


def compile_backward(graph: GraphModule, options: Options, record: Recording) -> Executable:
    """Compile the backward of an entry that another process has compiled."""
    return build_backward(build_executable, graph, options, record)


def size_compiler(
    name: str, state: SizedState, options: Options, record: Recording
) -> SizeCompiler:
    """Return what compiles an entry of another process for further sizes."""
    nothing = Return(Constant(None))
    traced = Trace(name, state.graph, state.inputs, (), (), nothing, mutated=state.mutated)
    static = partial(_compile_static, options=options)
    return SizeCompiler(traced, static, builders_for_sizes(options, record), options, record)


def sized_backwards(graphs: SizedGraphs, options: Options, record: Recording) -> SizedBackwards:
    """Return what compiles the backwards of an entry of another process for further sizes."""
    return SizedBackwards(graphs, builders_for_sizes(options, record), options)


def _of_frozen_weights(
    parts: Partition,
    places: frozenset[int],
    build: Callable[..., Executable],
    options: Options,
    record: Recording,
) -> Executable | None:
    """Return an executable with cached weights; None if weights are differentiated, or nothing
    depends on them alone.
    """
    if not places or parts.backward is not None:
        return None
    halves = frozen_parts(parts.forward, places, options.freeze == "dequantise")
    if halves is None:
        return None
    rest = build(halves.rest, "forward", options, record, partial(stand_in_inputs, halves.rest))
    return FrozenExecutable(fx_executable(halves.folded), rest, halves)
