"""How a frame is traced: which of its sizes and numbers may be symbols, and where it has to end.

Comes in: a handle, whose ledger tells what varies, and a frame. Goes out: a Trace. Where the frame
itself leaves a tensor of another size than it found, that is traced again with the size as a symbol
at once: no call will find the old one. Symbols that
nobody asked for may not cost more than they save: a frame whose graph breaks with sizes as symbols,
and does not without, is traced for the sizes of its call, and the Trace says why.
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
from ..frame.skip import is_library_file
from ..graph.node_meta import lines_of
from ..guards.guard import Guard
from ..guards.read import read_source
from ..guards.source import Source
from ..symbols.interval import INT64, Interval
from ..symbols.scalar import Symbol
from ..symbols.size import SizeOf, hintless, is_tensor_symbol
from ..trace.breaks import FailedOperation
from ..trace.machine import trace
from ..trace.python_loops.peeled import is_peeled
from ..trace.python_loops.rolled import (
    Loops,
    begins_loop,
    counts_of_rounds,
    ends_at_loop,
    hand_on,
    idle_around,
    items_of_round,
    loops_of,
    note,
    note_open,
    note_plain,
    numbers_of_round,
    unroll,
)
from ..trace.restarts import Stop
from ..trace.result import Break, Trace
from ..trace.varying.concrete import places_of
from ..trace.varying.growing_sizes import Resized, resized
from ..trace.varying.maybe_one_dims import FromOne
from ..trace.varying.symbolic import DynamicDims, Earlier, specialized

__all__ = ["has_own_symbols", "stop_before", "trace_frame", "trace_statically"]

Dims = Callable[[Source, torch.Tensor], Mapping[int, Interval]]
_PARAMETERS = 4  # how many times longer the loops of optimizers may be than the user's


def trace_frame(handle: Handle, snapshot: FrameSnapshot, stop: Stop | None) -> Trace:
    """The trace that is compiled for this call."""
    options, varying = handle.options, _varying(handle, snapshot)
    if handle.library is not None:
        longer = replace(options, unroll_limit=_PARAMETERS * options.unroll_limit)
        return trace(snapshot, longer, stop, varying)
    traced = _trace_sizes(handle, snapshot, stop, varying)
    hand_on(handle.flat, traced, snapshot)
    return traced


def _varying(handle: Handle, snapshot: FrameSnapshot) -> frozenset[Source] | None:
    """Numbers that differed, and those that the options name."""
    differing = handle.ledger.varying(snapshot)
    declared = declared_numbers(handle.options, snapshot.code.co_varnames, snapshot.args)
    return differing if not declared else declared | (differing or frozenset())


def _trace_sizes(
    handle: Handle, snapshot: FrameSnapshot, stop: Stop | None, varying: frozenset[Source] | None
) -> Trace:
    """With sizes as symbols where they vary."""
    options, differing = handle.options, partial(handle.ledger.differing_sizes, snapshot)
    dynamic = dynamic_dims(options, differing)
    earlier = Earlier(handle.ledger.earlier_sizes(snapshot))
    if handle.resume_line is not None:
        handed_on, args = handle.flat.root.handed_on, (*snapshot.args, *snapshot.cells)
        dynamic = dynamic_dims(options, differing, handed_on.is_constant)
        dynamic = dynamic and partial(_also, dynamic, handed_on.ranges)
        earlier = replace(earlier, at_break=handed_on.size_at)
        flat = handle.flat
        read = flat.item if options.dynamic is True and flat.head in handed_on.reads else None
        numbers = handed_on.numbers_of(flat.parameters, args, read) | numbers_of_round(flat)
        varying = varying if not numbers else numbers | (varying or frozenset())
    run = partial(_trace_loops, handle, snapshot, stop, varying, earlier)
    traced = _from_one(run, dynamic, earlier)
    if options.dynamic is None and dynamic is not None:
        changed = resized(traced, lambda source: marked_static(read_source(source, snapshot)))
        for ones in (True, False) if changed else ():
            again = run(partial(_also, dynamic, partial(_changed, changed, ones)))
            if has_own_symbols(handle, again) and (not ones or _ends_alike(again, traced)):
                traced = again
                break
    if not (isinstance(traced.exit, Break) and has_own_symbols(handle, traced)):
        return traced
    if ends_at_loop(traced) or _has_many_static(handle, snapshot):
        return traced
    why = f"a graph break: {traced.exit.reason.message}"
    static = trace_statically(handle, snapshot, stop, traced, why, traced.exit.where)
    return traced if isinstance(static.exit, Break) else static


def _has_many_static(handle: Handle, snapshot: FrameSnapshot) -> bool:
    """Return whether one more static variant would leave most sizes to eager: a variant of all
    sizes that has a break serves them. Of a GRU layer over 27 lengths with backward() in the step,
    8 variants and eager for the rest took 26 s for 60 calls; 4 variants and this one take 18 s.
    """
    return len(handle.ledger.static_shapes(snapshot)) >= handle.options.recompile_limit // 2


def _from_one(
    run: Callable[[Dims | None], Trace],
    dims: Dims | None,
    earlier: Earlier,
) -> Trace:
    """Where a dimension that varies is or was of size one, sizes by which nothing is decided, if
    that ends no graph: they serve whichever dimension is of size one next.
    """
    if dims is None:
        return run(None)
    from_one = FromOne(dims, earlier)
    traced = run(from_one.noted)
    if not from_one.is_found:
        return traced
    again = run(from_one.ranges)
    return again if _ends_alike(again, traced) else traced


def _trace_loops(
    handle: Handle,
    snapshot: FrameSnapshot,
    stop: Stop | None,
    varying: frozenset[Source] | None,
    earlier: Earlier,
    dims: Dims | None,
) -> Trace:
    """Loops whose number of rounds varies (it is a symbol) are Python's, unless a graph break is
    not wanted, or a round needs to know which one it is.
    """
    flat, options = handle.flat, handle.options
    if not options.fullgraph:
        note_plain(flat, handle.ledger.differing_loops(snapshot))
    dynamic = dims and DynamicDims(dims, earlier)
    items = items_of_round(flat, (*snapshot.args, *snapshot.cells))
    numbers = varying if not items else items | (varying or frozenset())
    known = partial(_known, handle)
    traced = trace(snapshot, options, stop, numbers, dynamic, *known())
    note_plain(flat, traced.plain_loops)
    handle.family.never_hook(traced.plain_callees)
    if any(constant.origin in items for constant in traced.specialized):
        unroll(flat)
        traced = trace(snapshot, options, stop, varying, dynamic, *known())
    run = partial(trace, snapshot, options, stop, numbers, dynamic)
    if not options.fullgraph and (calling := note_open(flat, traced)):
        known = partial(known, calling=calling)
        traced = run(*known())
    rounds = [] if options.fullgraph else counts_of_rounds(traced)
    if rounds:
        rolled = run(*known(may_roll=True))
        if plain := idle_around(flat, traced, rolled):
            note_plain(flat, plain)
            rolled = run(*known())
        traced = rolled if plain or ends_at_loop(rolled) else traced
    if begins_loop(flat, traced):
        behind = run(*known(may_roll=True, peels=True))
        traced = behind if is_peeled(flat, traced, behind) else traced
    note(flat, traced)
    return traced


def _known(
    handle: Handle,
    may_roll: bool = False,
    peels: bool = False,
    calling: Mapping[int, tuple[Guard, ...]] | None = None,
) -> tuple[Loops, Callable[[str], bool] | None]:
    """Return what is assumed of loops, and of the files whose branches on data go as in this call.
    `calling`: loops that are Python's where these facts hold.
    """
    foresees = is_library_file if handle.ledger.speculates else None
    may_leave = not handle.options.fullgraph
    return loops_of(handle.flat, may_roll, peels, may_leave, calling), foresees


def _changed(
    changed: Resized, ones: bool, source: Source, tensor: torch.Tensor
) -> Mapping[int, Interval]:
    """The dimensions that the frame itself makes vary."""
    return changed.ranges(source, tensor, is_argument(source, tensor), ones)


def _ends_alike(one: Trace, other: Trace) -> bool:
    """Whether no size has ended a graph, or both end for the same reason."""
    ends = [trace.exit.index if isinstance(trace.exit, Break) else None for trace in (one, other)]
    return ends[0] == ends[1]


def _also(
    dims: Dims,
    more: Dims,
    source: Source,
    tensor: torch.Tensor,
) -> Mapping[int, Interval]:
    """What varies, and more of it."""
    found = dict(dims(source, tensor))
    static = marked_static(tensor)
    for place, limits in more(source, tensor).items():
        if place not in static and found.get(place, INT64) == INT64:
            found[place] = limits
    return dict(sorted(found.items()))


def has_own_symbols(handle: Handle, traced: Trace) -> bool:
    """Whether sizes are symbols because they were seen to change."""
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
    """The trace with the sizes of this call, and `why`."""
    origins = {symbol.origin for symbol in places_of(symbolic)}
    varying = _varying(handle, snapshot)
    numbers = None if varying is None else frozenset(one for one in varying if one not in origins)
    static = trace(snapshot, handle.options, stop, numbers, None, *_known(handle))
    constants = tuple(specialized(symbol, why, where) for symbol in places_of(symbolic))
    return replace(static, specialized=(*static.specialized, *constants))


def stop_before(failed: OperationFailed, last: Stop | None) -> Stop:
    """Where the next trace ends. Raises what failed where it has no place before the last one."""
    step = failed.node.meta.get("step")
    lines = lines_of(failed.node)
    if step is None or not lines or (last is not None and step >= last.step):
        raise failed
    reason = FailedOperation.of(name=failed.name, why=failed.why.partition("\n")[0])
    return Stop(step, reason, lines[-1])
