"""From a traced frame and the executable of its graph to what calls run: an Entry.

Comes in: a Trace whose guards hold in this call, and a callable of its graph. Goes out: an Entry,
natively callable where the frame is one graph with a plain result, else with a residual; or one
that runs as plain Python, where the frame is not to be cut at its graph break.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..bytecode import FrameSnapshot
from ..errors import Unsupported
from ..frame.eager import eager_entry
from ..frame.handle import Handle
from ..frame.ledger import Variant
from ..frame.locked import RetryEager, while_held
from ..frame.native import (
    Entry,
    GuardProgram,
    TimedGraph,
    continue_with,
    lower_guards,
    release_arguments,
)
from ..frame.skip import in_library
from ..graph import regions
from ..graph.recomputed import regions_of
from ..graph.regions import calls_in
from ..guards.guard import GlobalState
from ..options import Options
from ..records import COMPILED, Eager, Recording
from ..runtime.native import (
    Executable,
    freed_results,
    undo_on_error,
    with_held_objects,
    with_numbers,
)
from ..trace.builtins.registry import handles
from ..trace.residual import finalizers
from ..trace.residual.emit import CannotRestore, FrameScope, emit
from ..trace.residual.frame_readers import may_be_looked_at
from ..trace.residual.template import template_of
from ..trace.residual.undo import can_start_over, written_before_raising
from ..trace.result import Break, Trace
from .compared import comparable

__all__ = ["check_backwards", "computes", "left_to_eager", "make_entry", "variant_of", "wrapped"]


handles(release_arguments)(finalizers.begins)


def computes(traced: Trace) -> bool:
    """Whether its graph has an operation."""
    return any(node.op not in ("placeholder", "output") for node in traced.graph.graph.nodes)


def left_to_eager(handle: Handle, snapshot: FrameSnapshot, traced: Trace) -> Entry | Eager | None:
    """The answer for a frame that is not to be cut at its break, but left to plain Python; None: it
    is cut, or has no break. The guards are torch's state and what led to the break: nothing else
    matters to eager. Raises Unsupported under fullgraph.
    """
    if not isinstance(traced.exit, Break):
        return None
    reason = traced.exit.reason
    message, where = in_library(reason.message, traced.exit.where, traced.exit.line)
    if handle.library is None and handle.options.fullgraph:
        raise Unsupported(reason.message, reason.hint, where)
    state = tuple(guard for guard in traced.guards if isinstance(guard, GlobalState))
    if reason.whole_frame and (handle.resume_line is None or reason.plain_rest):
        guards = (*state, *traced.because)
        return eager_entry(handle.run_plainly, snapshot, guards, Eager(message, where))
    body = handle.flat.root.body
    if _is_looked_at(handle, snapshot) and (body.cellvars or body.freevars):
        why = "a callee may look at its variables (f_locals), and inner functions share some"
        return eager_entry(handle.run_plainly, snapshot, state, Eager(why, where))
    if reason.spreads and not computes(traced):
        guards = (*state, *traced.because)
        return eager_entry(handle.run_hooked, snapshot, guards, Eager(message, where))
    if handle.library is None:
        return None
    eager = Eager(f"library code is compiled whole or not at all: {reason.message}", where)
    if not traced.because:
        return eager
    return eager_entry(handle.run_hooked, snapshot, (*state, *traced.because), eager)


def _is_looked_at(handle: Handle, snapshot: FrameSnapshot) -> bool:
    """Return whether callees may look at the variables of the frame, which are kept whole then.
    Found out at its first break: what resumes there is cut from the same root.
    """
    root = handle.flat.root
    if root.is_looked_at is None:
        root.is_looked_at = handle.library is None and may_be_looked_at(snapshot)
    return bool(root.is_looked_at)


def check_backwards(snapshot: FrameSnapshot, traced: Trace) -> None:
    """Have each backward of an autograd function, and each that computes a region again, check what
    it relies on of Python's state.
    """
    for later in _later(traced):
        steps, _ = lower_guards(later.guards, (), snapshot.globals, snapshot.builtins)
        later.holds = GuardProgram(steps).check


def _later(traced: Trace) -> list[Any]:
    """The user's functions that the backward of a graph stands for."""
    calls = [call.original for _, call in calls_in(traced.graph)]
    return [one for one in (*calls, *regions_of(traced.graph)) if one is not None]


# ------------------------------------------------------------------------- around the executable


def wrapped(run: Executable, traced: Trace, options: Options, in_parts: bool) -> Executable:
    """The executable as the frame calls it. `in_parts`: as a CompiledGraph's."""
    # From the inside out: each wraps the one before, and costs a call only where it is needed.
    if traced.spent_results and options.backend in ("native", "aot_eager"):  # no autograd ran
        run = freed_results(run, traced.spent_results, traced.grad_inputs)
    if numbers := tuple(i for i, entry in enumerate(traced.inputs) if entry.is_scalar):
        run = with_numbers(run, numbers)
    draws = any(node.meta.get("random") for node in traced.graph.graph.nodes)
    if (traced.mutated or draws) and can_start_over(traced):
        copied, watched = _written_half_way(traced, options, in_parts)
        run = undo_on_error(run, copied, draws, watched) if copied or watched or draws else run
    # Without objects of the call, too: autograd's nodes check state only where a call holds some.
    if not traced.held and not any(later.guards for later in _later(traced)):
        return run
    count = len(traced.inputs)
    interpreted = options.backend not in ("native", "aot_eager")
    return _interpreted_holding(run, count) if interpreted else with_held_objects(run, count)


def _interpreted_holding(run: Executable, count: int) -> Executable:
    """`run` is called with so many of the arguments; torch's own nodes keep the others."""

    def call(*args: Any) -> tuple[Any, ...]:
        with regions.holding(args[count:]):
            return run(*args[:count])

    return call


def _written_half_way(
    traced: Trace, options: Options, in_parts: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The inputs that a graph may have written when something raises that may, and those that only
    an error that nobody expects finds written: one executable of ours writes when nothing can raise
    any more.
    """
    if options.backend in ("native", "aot_eager") and not in_parts:
        return (), ()
    copied = written_before_raising(traced)
    return copied, tuple(n for n in traced.mutated if n not in copied)


# ------------------------------------------------------------------------------ guards and result


def make_entry(
    handle: Handle, snapshot: FrameSnapshot, traced: Trace, run: Executable | None
) -> Entry | Eager:
    """`run`: the executable, or None. Eager, where what the frame does cannot be written down."""
    alone = handle.resume_line is not None and handle.flat.let_go is not None
    template = template_of(traced) if traced.lock is None and not alone else None
    sources = (*(entry.source for entry in traced.inputs), *traced.held)
    if template is not None:
        wanted = (*sources, *template.sources)
        steps, registers = lower_guards(traced.guards, wanted, snapshot.globals, snapshot.builtins)
        # What guards have read of the call is not read again for the graph or the result.
        inputs, read_again = registers[: len(sources)], registers[len(sources) :]
        shape = template.with_registers(read_again)
        called = run if run is not None else _no_graph
        entry = Entry(GuardProgram(steps), called, inputs if run else (), shape, False)
        entry.mutates = not can_start_over(traced)  # eager must not repeat a graph that raised
        return entry
    steps, _ = lower_guards(traced.guards, (), snapshot.globals, snapshot.builtins)
    scope = FrameScope(
        snapshot.globals,
        snapshot.builtins,
        handle.resume_dispatcher,
        continue_with,
        release_arguments,
        retry := RetryEager(handle, is_locked=traced.lock is not None),
    )
    try:
        graph = None if run is None else TimedGraph(run)
        residual: Callable[..., Any] = emit(traced, handle.flat, graph, scope)
    except CannotRestore as error:
        return Eager(str(error))
    program = GuardProgram(steps)
    if traced.lock is not None:
        residual = while_held(traced.lock, program, residual, handle.run_plainly)
    end = traced.exit
    hooked = isinstance(end, Break) and end.reason.hooks_callees and not end.callee_holds
    entry = Entry(program, residual, None, None, hooked)
    retry.set_entry(entry)
    return entry


def _no_graph() -> tuple[Any, ...]:
    """The executable of a frame that computes nothing."""
    return ()


def variant_of(handle: Handle, traced: Trace, record: Recording) -> Variant:
    """What the entry remembers."""
    ends = None
    if (end := traced.unexpected_break) is not None:
        ends = Eager(*in_library(end.reason.message, end.where, end.line))
    constants = {symbol.origin: symbol.where for symbol in traced.specialized}
    compared, later = comparable(handle, traced), tuple(record.later)
    known = traced.guards, COMPILED, later, ends, compared, traced.varying, constants
    return Variant(*known, speculates=traced.foresees, loops=traced.idle_loops)
