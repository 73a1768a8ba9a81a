"""Traces a frame: decides which of its sizes and numbers are symbols, and where it has to end.

Input: a handle, whose ledger knows which sizes and numbers differed between calls, and a frame.
Output: a Trace. The frame is traced up to several times, until the choices below are settled:

  * Sizes that the frame itself changes (a cache that grows at every call) become symbols at once,
    because no later call has the old size.
  * Symbols that the user did not ask for must not cost more than they save: a frame that breaks
    only with symbolic sizes is traced for the sizes of its call, and the Trace says why.
  * A loop whose trip count varies runs in Python, with one compiled iteration
    (trace/python_loops/rolled.py), unless fullgraph forbids breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch

from ..bytecode import FrameSnapshot
from ..errors import OperationFailed, UserLine
from ..frame.dynamic import declared_numbers, dynamic_dims, is_argument, marked_static
from ..frame.handle import Handle
from ..frame.never_hooked import is_library_file
from ..graph.node_meta import lines_of
from ..guards.guard import Guard
from ..guards.read import read_source
from ..guards.source import Source
from ..symbols.interval import INT64, Interval
from ..symbols.scalar import Symbol
from ..symbols.size import SizeOf, hintless, is_tensor_symbol
from ..trace.breaks import FailedOperation
from ..trace.machine import trace
from ..trace.python_loops.peeled import should_peel
from ..trace.python_loops.rolled import (
    Loops,
    ends_at_loop,
    ends_at_other_loop,
    idle_loop_around,
    items_of_iteration,
    leave_open_loops,
    leave_to_python,
    loops_of,
    numbers_of_iteration,
    record_facts,
    roll,
    trip_count_origins,
    unroll,
)
from ..trace.restarts import Stop
from ..trace.result import Break, Trace
from ..trace.varying.concrete import places_of
from ..trace.varying.growing_sizes import Resized, resized
from ..trace.varying.maybe_one_dims import MaybeOneDims
from ..trace.varying.symbolic import DynamicDims, SizeHistory, specialized

__all__ = ["has_own_symbols", "stop_before", "trace_frame", "trace_statically"]

Dims = Callable[[Source, torch.Tensor], Mapping[int, Interval]]
_PARAMETERS = 4  # factor on `unroll_limit` in library code: optimizers loop over all parameters


def trace_frame(handle: Handle, snapshot: FrameSnapshot, stop: Stop | None) -> Trace:
    """Return the trace to compile for this call."""
    options, varying = handle.options, _varying(handle, snapshot)
    if handle.library is not None:
        longer = replace(options, unroll_limit=_PARAMETERS * options.unroll_limit)
        return trace(snapshot, longer, stop, varying)
    traced = _trace_sizes(handle, snapshot, stop, varying)
    record_facts(handle.flat, traced, snapshot)
    return traced


def _varying(handle: Handle, snapshot: FrameSnapshot) -> frozenset[Source] | None:
    """Return the numbers that differed between calls, and those that the options name."""
    differing = handle.ledger.varying(snapshot)
    declared = declared_numbers(handle.options, snapshot.code.co_varnames, snapshot.args)
    return differing if not declared else declared | (differing or frozenset())


def _trace_sizes(
    handle: Handle, snapshot: FrameSnapshot, stop: Stop | None, varying: frozenset[Source] | None
) -> Trace:
    """Trace with symbols for the sizes that vary."""
    options, differing = handle.options, partial(handle.ledger.differing_sizes, snapshot)
    dynamic = dynamic_dims(options, differing)
    earlier = SizeHistory(handle.ledger.earlier_sizes(snapshot))
    if handle.resume_line is not None:
        resume_facts, args = handle.flat.root.resume_facts, (*snapshot.args, *snapshot.cells)
        dynamic = dynamic_dims(options, differing, resume_facts.is_constant)
        dynamic = dynamic and partial(_merged_dims, dynamic, resume_facts.ranges)
        earlier = replace(earlier, at_break=resume_facts.size_at)
        flat = handle.flat
        read = flat.item if options.dynamic is True and flat.head in resume_facts.reads else None
        numbers = resume_facts.numbers_of(flat.parameters, args, read) | numbers_of_iteration(flat)
        varying = varying if not numbers else numbers | (varying or frozenset())
    run = partial(_trace_loops, handle, snapshot, stop, varying, earlier)
    traced = _with_maybe_one_dims(run, dynamic, earlier)
    if options.dynamic is None and dynamic is not None:
        changed = resized(traced, lambda source: marked_static(read_source(source, snapshot)))
        # First with dimensions of size one as symbols too, then without them.
        for ones in (True, False) if changed else ():
            again = run(partial(_merged_dims, dynamic, partial(_changed, changed, ones)))
            if has_own_symbols(handle, again) and (not ones or _ends_alike(again, traced)):
                traced = again
                break
    # If this trace breaks only because of symbols that jitmagic chose, constants are better.
    if not (isinstance(traced.exit, Break) and has_own_symbols(handle, traced)):
        return traced
    if ends_at_loop(traced) or _has_many_static(handle, snapshot):
        return traced
    why = f"a graph break: {traced.exit.reason.message}"
    static = trace_statically(handle, snapshot, stop, traced, why, traced.exit.where)
    return traced if isinstance(static.exit, Break) else static


def _has_many_static(handle: Handle, snapshot: FrameSnapshot) -> bool:
    """Return whether one more static variant would leave most sizes to eager.

    A variant of all sizes that has a break serves them. For a GRU layer over 27 lengths with
    backward() in the step, 8 variants and eager for the rest took 26 s for 60 calls; 4 variants and
    this one take 18 s.
    """
    return len(handle.ledger.static_shapes(snapshot)) >= handle.options.recompile_limit // 2


def _with_maybe_one_dims(
    run: Callable[[Dims | None], Trace],
    dims: Dims | None,
    earlier: SizeHistory,
) -> Trace:
    """Use unbacked sizes for varying dimensions that are or were of size one, unless that adds a
    break: one variant then serves whichever dimension is of size one next.
    """
    if dims is None:
        return run(None)
    from_one = MaybeOneDims(dims, earlier)
    traced = run(from_one.observed)
    if not from_one.is_found:
        return traced
    again = run(from_one.ranges)
    return again if _ends_alike(again, traced) else traced


def _trace_loops(
    handle: Handle,
    snapshot: FrameSnapshot,
    stop: Stop | None,
    varying: frozenset[Source] | None,
    earlier: SizeHistory,
    dims: Dims | None,
) -> Trace:
    """Trace, then trace again as long as a loop is better left to Python, rolled or peeled.

    A loop whose trip count varies is left to Python, unless fullgraph forbids breaks or an
    iteration needs its index as a constant.
    """
    flat, options = handle.flat, handle.options
    if not options.fullgraph:
        leave_to_python(flat, handle.ledger.differing_loops(snapshot))
    dynamic = dims and DynamicDims(dims, earlier)
    items = items_of_iteration(flat, (*snapshot.args, *snapshot.cells))
    numbers = varying if not items else items | (varying or frozenset())
    known = partial(_known, handle)
    traced = trace(snapshot, options, stop, numbers, dynamic, *known())
    leave_to_python(flat, traced.plain_loops)
    handle.family.never_hook(traced.plain_callees)
    # This frame is one iteration, which needs the value of its index: rolling would need one
    # variant for each iteration.
    if any(constant.origin in items for constant in traced.specialized):
        unroll(flat)
        traced = trace(snapshot, options, stop, varying, dynamic, *known())
    run = partial(trace, snapshot, options, stop, numbers, dynamic)
    # Loops whose iterations record nothing between two breaks: only their callees are compiled.
    if not options.fullgraph and (calling := leave_open_loops(flat, traced)):
        known = partial(known, calling=calling)
        traced = run(*known())
    rounds = [] if options.fullgraph else trip_count_origins(traced)
    if rounds:  # loops were unrolled although their trip count varies: try to roll them
        rolled = run(*known(may_roll=True))
        if plain := idle_loop_around(flat, traced, rolled):
            leave_to_python(flat, plain)
            rolled = run(*known())
        traced = rolled if plain or ends_at_loop(rolled) else traced
    # The first iteration may find inputs of another layout or aliasing than later ones (the states
    # of an LSTM start as one tensor of zeros). It then joins this graph: loop peeling.
    if ends_at_other_loop(flat, traced):
        behind = run(*known(may_roll=True, peels=True))
        traced = behind if should_peel(flat, traced, behind) else traced
    roll(flat, traced)
    return traced


def _known(
    handle: Handle,
    may_roll: bool = False,
    peels: bool = False,
    calling: Mapping[int, tuple[Guard, ...]] | None = None,
) -> tuple[Loops, Callable[[str], bool] | None]:
    """Return (how the tracer treats each loop, in which files it speculates branches on data).

    `calling`: for the loops that Python runs as a whole, the guards under which that was decided.
    """
    may_speculate = is_library_file if handle.ledger.speculates else None
    may_leave = not handle.options.fullgraph
    return loops_of(handle.flat, may_roll, peels, may_leave, calling), may_speculate


def _changed(
    changed: Resized, ones: bool, source: Source, tensor: torch.Tensor
) -> Mapping[int, Interval]:
    """Return the dimensions whose size the frame itself changes, with their ranges."""
    return changed.ranges(source, tensor, is_argument(source, tensor), ones)


def _ends_alike(one: Trace, other: Trace) -> bool:
    """Return whether neither trace has a break, or both break at the same instruction."""
    ends = [trace.exit.index if isinstance(trace.exit, Break) else None for trace in (one, other)]
    return ends[0] == ends[1]


def _merged_dims(
    dims: Dims,
    more: Dims,
    source: Source,
    tensor: torch.Tensor,
) -> Mapping[int, Interval]:
    """Merge the varying dimensions of `more` into those of `dims`."""
    found = dict(dims(source, tensor))
    static = marked_static(tensor)
    for place, limits in more(source, tensor).items():
        if place not in static and found.get(place, INT64) == INT64:
            found[place] = limits
    return dict(sorted(found.items()))


def has_own_symbols(handle: Handle, traced: Trace) -> bool:
    """Return whether sizes became symbols because they changed between calls, not on request."""
    symbols = places_of(traced)
    found = any(is_tensor_symbol(symbol) and not _was_asked_for(symbol) for symbol in symbols)
    return handle.options.dynamic is None and found


def _was_asked_for(symbol: Symbol) -> bool:
    return hintless(symbol) and not (isinstance(symbol.origin, SizeOf) and symbol.origin.growing)


def trace_statically(
    handle: Handle,
    snapshot: FrameSnapshot,
    stop: Stop | None,
    symbolic: Trace,
    why: str,
    where: UserLine | None = None,
) -> Trace:
    """Trace with the sizes of this call, and record `why`."""
    origins = {symbol.origin for symbol in places_of(symbolic)}
    varying = _varying(handle, snapshot)
    numbers = None if varying is None else frozenset(one for one in varying if one not in origins)
    static = trace(snapshot, handle.options, stop, numbers, None, *_known(handle))
    constants = tuple(specialized(symbol, why, where) for symbol in places_of(symbolic))
    return replace(static, specialized=(*static.specialized, *constants))


def stop_before(failed: OperationFailed, last: Stop | None) -> Stop:
    """Return where the next trace ends. Raises `failed` if that is not before the last stop."""
    step = failed.node.meta.get("step")
    lines = lines_of(failed.node)
    if step is None or not lines or (last is not None and step >= last.step):
        raise failed
    reason = FailedOperation.of(name=failed.name, why=failed.why.partition("\n")[0])
    return Stop(step, reason, lines[-1])
