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

from .bytecode import FrameSnapshot
from .errors import OperationFailed, UserLine
from .frame.dynamic import dynamic_dims, is_argument, marked_static
from .frame.handle import Handle
from .frame.skip import is_library_file
from .graph.node_meta import lines_of
from .guards.read import read_source
from .guards.source import Source
from .symbols.interval import INT64, Interval
from .symbols.size import SizeOf
from .trace.breaks import FailedOperation
from .trace.concrete import places_of
from .trace.machine import trace
from .trace.restarts import Stop
from .trace.result import Break, Trace
from .trace.symbolic import specialized
from .trace.written_back import Resized, resized

__all__ = ["has_own_symbols", "stop_before", "trace_frame", "trace_statically"]

Dims = Callable[[Source, torch.Tensor], Mapping[int, Interval]]
_PARAMETERS = 4  # how many times longer the loops of optimizers may be than the user's


def trace_frame(handle: Handle, snapshot: FrameSnapshot, stop: Stop | None) -> Trace:
    """The trace that is compiled for this call."""
    options, varying = handle.options, handle.ledger.varying(snapshot)
    if handle.library is not None:
        longer = replace(options, unroll_limit=_PARAMETERS * options.unroll_limit)
        return trace(snapshot, longer, stop, varying)
    foresees = is_library_file if handle.ledger.foresees else None
    dynamic = dynamic_dims(options, partial(handle.ledger.differing_sizes, snapshot))
    traced = trace(snapshot, options, stop, varying, dynamic, foresees)
    if options.dynamic is None and dynamic is not None:
        changed = resized(traced, lambda source: marked_static(read_source(source, snapshot)))
        if changed:
            dims = partial(_also, dynamic, changed)
            again = trace(snapshot, options, stop, varying, dims, foresees)
            traced = again if has_own_symbols(handle, again) else traced
    if not (isinstance(traced.exit, Break) and has_own_symbols(handle, traced)):
        return traced
    why = f"a graph break: {traced.exit.reason.message}"
    static = trace_statically(handle, snapshot, stop, traced, why, traced.exit.where)
    return traced if isinstance(static.exit, Break) else static


def _also(
    dims: Dims, changed: Resized, source: Source, tensor: torch.Tensor
) -> Mapping[int, Interval]:
    """The dimensions that vary, and those that the frame itself makes vary."""
    found = dict(dims(source, tensor))
    kept = marked_static(tensor)
    others = changed.dims(source, tensor, is_argument(source, tensor))
    for dim in others - found.keys() - kept:
        found[dim] = INT64
    return dict(sorted(found.items()))


def has_own_symbols(handle: Handle, traced: Trace) -> bool:
    """Whether sizes are symbols because they were seen to change."""
    symbols = places_of(traced)
    found = any(isinstance(s.origin, SizeOf) and not s.origin.unbacked for s in symbols)
    return handle.options.dynamic is None and found


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
    varying = handle.ledger.varying(snapshot)
    numbers = None if varying is None else frozenset(one for one in varying if one not in origins)
    foresees = is_library_file if handle.ledger.foresees else None
    static = trace(snapshot, handle.options, stop, numbers, None, foresees)
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
