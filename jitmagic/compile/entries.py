"""Builds an Entry from a traced frame and the executable of its graph.

Input: a Trace whose guards hold in this call, and a callable of its graph. Output: an Entry. The
dispatcher calls the graph directly if the frame is one graph with a plain result; otherwise the
Entry has residual bytecode. An Entry may also run the whole frame in eager, if the frame is not to
be split at its graph break.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from ..bytecode import FrameSnapshot
from ..compat.modes import TorchFunctionOfSubclassesOff
from ..errors import Unsupported
from ..frame.eager import eager_entry
from ..frame.handle import Handle
from ..frame.ledger import Variant
from ..frame.locked_frames import RetryEager, while_held
from ..frame.native import (
    Entry,
    EntryForm,
    GuardProgram,
    TimedGraph,
    continue_with,
    lower_guards,
    release_arguments,
)
from ..frame.never_hooked import in_library
from ..frame.original import gives_back_always
from ..graph.targets import regions
from ..graph.targets.recomputed import regions_of
from ..graph.targets.regions import calls_in
from ..graph.wrappers.wrapping import is_wrapper
from ..guards.guard import GlobalState
from ..guards.source import Source
from ..late import late_names
from ..options import Options
from ..records import Eager, Recording
from ..runtime.native import freed_results, undo_on_error, with_held_objects, with_numbers
from ..torch_types import AnyFunction, Executable
from ..trace.breaks import Finalizer
from ..trace.builtins.registry import handles
from ..trace.residual import finalizers
from ..trace.residual.template import template_of
from ..trace.residual.undo import can_start_over, written_before_raising
from ..trace.result import Break, CannotEmit, Trace
from .compared import comparable
from .sizes import CompiledGraph

if TYPE_CHECKING:
    from ..runtime.inner_tensors import InnerTensors, with_inner_tensors
    from ..trace.residual.emit import FrameScope, emit
    from ..trace.residual.frame_readers import callees_may_read_locals
else:
    late_names(
        globals(),
        {
            "runtime.inner_tensors": "InnerTensors, with_inner_tensors",
            "trace.residual.emit": "FrameScope, emit",
            "trace.residual.frame_readers": "callees_may_read_locals",
        },
    )

__all__ = [
    "check_backwards",
    "has_operations",
    "left_to_eager",
    "make_entry",
    "residual_function",
    "wrap_executable",
]


handles(release_arguments)(finalizers.start_watching)


def has_operations(traced: Trace) -> bool:
    """Return whether the trace's graph has an operation."""
    return any(node.op not in ("placeholder", "output") for node in traced.graph.graph.nodes)


def left_to_eager(handle: Handle, snapshot: FrameSnapshot, traced: Trace) -> Entry | Eager | None:
    """Return an entry that runs the frame in eager, if it is not to be split at its graph break.

    None: the frame is split, or has no break. The guards of such an entry are only torch's global
    state and the facts that led to the break. Raises Unsupported under fullgraph.
    """
    if not isinstance(traced.exit, Break):
        return None
    reason = traced.exit.reason
    message, where = in_library(reason.message, traced.exit.where, traced.exit.line)
    if handle.library is None and handle.options.fullgraph:
        raise Unsupported(reason.message, reason.hint, where)
    state = tuple(guard for guard in traced.guards if isinstance(guard, GlobalState))
    if isinstance(reason, Finalizer) and gives_back_always(handle.original):
        handle.flat.root.releases_arguments = True
        return Eager(message, where)
    if reason.whole_frame and (handle.starts_frame or reason.plain_rest):
        guards = (*state, *traced.because)
        return eager_entry(handle.original, snapshot, guards, Eager(message, where))
    body = handle.flat.root.body
    if _has_frame_readers(handle, snapshot) and (body.cellvars or body.freevars):
        why = "a callee may look at its variables (f_locals), and inner functions share some"
        return eager_entry(handle.original, snapshot, state, Eager(why, where))
    if reason.spreads and not has_operations(traced):
        guards = (*state, *traced.because)
        return eager_entry(handle.run_hooked, snapshot, guards, Eager(message, where))
    if handle.library is None:
        return None
    eager = Eager(f"library code is compiled whole or not at all: {reason.message}", where)
    if not traced.because:
        return eager
    return eager_entry(handle.run_hooked, snapshot, (*state, *traced.because), eager)


def _has_frame_readers(handle: Handle, snapshot: FrameSnapshot) -> bool:
    """Return whether callees may read the frame's variables, which then all stay bound.

    Decided at its first break: the resume functions are cut from the same root.
    """
    root = handle.flat.root
    if root.callees_read_locals is None:
        root.callees_read_locals = handle.library is None and callees_may_read_locals(snapshot)
    return bool(root.callees_read_locals)


def check_backwards(snapshot: FrameSnapshot, traced: Trace) -> None:
    """Make backwards of autograd functions and of recomputed regions check the Python state that
    they rely on.
    """
    for later in _backward_functions(traced):
        steps, _ = lower_guards(later.guards, (), snapshot.globals, snapshot.builtins)
        later.holds = GuardProgram(steps).check


def _backward_functions(traced: Trace) -> list[Any]:
    """Return the program's own functions that the backward of a graph may have to run."""
    calls = [call.original for _, call in calls_in(traced.graph)]
    return [one for one in (*calls, *regions_of(traced.graph)) if one is not None]


# ------------------------------------------------------------------------- around the executable


def wrap_executable(compiled: CompiledGraph, traced: Trace, options: Options) -> Executable:
    """Wrap the executable as the frame calls it."""
    run = compiled.run
    interpreted = compiled.interpreted or options.backend not in ("native", "aot_eager")
    # Each wrapper costs one more native call, so it is added only if the trace needs it.
    if traced.freed_results and not interpreted:  # no autograd ran
        run = freed_results(run, traced.freed_results, traced.grad_inputs)
    # Python ints and floats become 0-dim tensors, so that kernels get them as data.
    if numbers := tuple(i for i, entry in enumerate(traced.inputs) if entry.is_scalar):
        run = with_numbers(run, numbers)
    draws = any(node.meta.get("random") for node in traced.graph.graph.nodes)
    if (traced.mutated or draws) and can_start_over(traced):
        copied, watched = _partially_written(traced, interpreted or compiled.in_parts)
        run = undo_on_error(run, copied, draws, watched) if copied or watched or draws else run
    # Backwards with guards need the wrapper even if the trace holds no objects: autograd nodes
    # check guards only in calls made through it.
    if traced.held or any(later.guards for later in _backward_functions(traced)):
        count = len(traced.inputs)
        hold = _interpreted_holding if interpreted else with_held_objects
        run = hold(run, count)
    if interpreted and _has_wrappers(traced):
        run = _without_torch_functions(run)
    plain = torch.Tensor, torch.nn.Parameter
    if others := [n for n, entry in enumerate(traced.inputs) if entry.spec.cls not in plain]:
        run = _on_plain_tensors(run, others)
    return _taking_wrappers_apart(run, traced) if traced.wrappers else run


def _has_wrappers(traced: Trace) -> bool:
    """Return whether the graph computes with wrapper subclasses."""
    return any(is_wrapper(node.meta.get("val")) for node in traced.graph.graph.nodes)


def _without_torch_functions(run: Executable) -> Executable:
    """Run a graph whose calls have been through `__torch_function__` when they were traced."""

    def call(*args: object) -> tuple[object, ...]:
        with TorchFunctionOfSubclassesOff():
            return run(*args)

    return call


def _on_plain_tensors(run: Executable, places: Sequence[int]) -> Executable:
    """Pass instances of subclasses as plain tensors, so that no call of the graph runs their
    `__torch_function__`, which the trace has followed.
    """

    def call(*args: Any) -> tuple[object, ...]:
        inputs = list(args)
        with TorchFunctionOfSubclassesOff():
            for place in places:
                inputs[place] = inputs[place].as_subclass(torch.Tensor)
        return run(*inputs)

    return call


def _taking_wrappers_apart(run: Executable, traced: Trace) -> Executable:
    """Pass inner tensors with the history of their wrapper in place of those without."""
    wrappers = list(traced.wrappers)
    taken = tuple(
        (n, wrappers.index(part.source), part.number)
        for n, part in enumerate(one.wrapper for one in traced.inputs)
        if part is not None
    )
    parents = [part.parent for part in traced.wrappers.values()]
    inside = [(-1, -1) if p is None else (wrappers.index(p.source), p.number) for p in parents]
    differentiable = {row[1:] for row in taken} | set(inside)
    forms = []
    for number, part in enumerate(traced.wrappers.values()):
        layout, gradients = part.rewrap.layout, part.rewrap.gradients
        assert gradients is not None
        parts = tuple(
            (name, (number, place) in differentiable, gradients.shapes.get(place))
            for place, name in enumerate(layout.names)
        )
        forms.append(InnerTensors(parts, *inside[number], partial(gradients.around, layout)))
    return with_inner_tensors(run, len(traced.inputs), tuple(forms), taken)


def _interpreted_holding(run: Executable, count: int) -> Executable:
    """Call `run` with the first `count` arguments; torch's autograd nodes hold the others."""

    def call(*args: object) -> tuple[object, ...]:
        with regions.holding(args[count:]):
            return run(*args[:count])

    return call


def _partially_written(traced: Trace, in_parts: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (inputs that may be written before an expected error, other mutated inputs, which are
    written before an error only if that is unexpected).

    Both are empty for a single native executable: it writes after everything that can raise.
    """
    if not in_parts:
        return (), ()
    copied = written_before_raising(traced)
    return copied, tuple(n for n in traced.mutated if n not in copied)


# ------------------------------------------------------------------------------ guards and result


def make_entry(
    handle: Handle,
    snapshot: FrameSnapshot,
    traced: Trace,
    run: Executable | None,
    record: Recording,
) -> Entry | Eager:
    """Return the entry; Eager if the frame's effects cannot be reproduced. `run`: the executable,
    or None.
    """
    alone = handle.resume_line is not None and handle.flat.release is not None
    template = template_of(traced) if traced.lock is None and not alone else None
    if template is not None:
        # Sources that guards have read are not read again for the graph or the result.
        form = EntryForm(traced.sources, template, run is not None)
        steps, registers = lower_guards(
            traced.guards, form.wanted, snapshot.globals, snapshot.builtins
        )
        entry = form.entry(GuardProgram(steps), run, registers)
        entry.mutates = not can_start_over(traced)  # eager must not repeat a graph that raised
        entry.notes = _variant_of(handle, traced, record, form)
        return entry
    steps, _ = lower_guards(traced.guards, (), snapshot.globals, snapshot.builtins)
    retry = RetryEager(handle, is_locked=traced.lock is not None)
    try:
        graph = None if run is None else TimedGraph(run)
        residual: AnyFunction = residual_function(handle, snapshot, traced, graph, retry)
    except CannotEmit as error:
        return Eager(str(error))
    program = GuardProgram(steps)
    if traced.lock is not None:
        residual = while_held(traced.lock, program, residual, handle.original)
    end = traced.exit
    hooked = isinstance(end, Break) and end.reason.hooks_callees and not end.callee_holds
    entry = Entry(program, residual, None, None, hooked)
    retry.set_entry(entry)
    entry.notes = _variant_of(handle, traced, record, None)
    return entry


def residual_function(
    handle: Handle,
    snapshot: FrameSnapshot,
    traced: Trace,
    graph: TimedGraph | None,
    retry: RetryEager,
    renamed: Mapping[Source, Source] = MappingProxyType({}),
) -> FunctionType:
    """Return the Python code around a graph. It reads the values at `renamed` at other sources.

    Raises CannotEmit if there is none.
    """
    scope = FrameScope(
        snapshot.globals,
        snapshot.builtins,
        handle.resume_dispatcher,
        continue_with,
        release_arguments,
        retry,
        renamed,
    )
    return emit(traced, handle.flat, graph, scope)


def _variant_of(
    handle: Handle, traced: Trace, record: Recording, form: EntryForm | None
) -> Variant:
    """Return the Variant that the entry is recorded with."""
    ends = None
    if (end := traced.unexpected_break) is not None:
        ends = Eager(*in_library(end.reason.message, end.where, end.line))
    constants = {symbol.origin: symbol.where for symbol in traced.specialized}
    return Variant(
        traced.guards,
        later=tuple(record.later),
        ends=ends,
        # A pass may change values: calls must not alternate between its results and eager's.
        comparable=None if record.ran_passes else comparable(handle, traced),
        symbols=traced.varying,
        constants=constants,
        speculates=traced.speculates,
        loops=traced.loops.idle,
        form=form,
        warned=traced.warned,
    )
