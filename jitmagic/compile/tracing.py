"""Traces a frame: what its trace assumes, and where it has to end.

Input: a handle, whose ledger knows which sizes and numbers differed between calls, and a frame.
Output: a Trace and its Assumptions. All that earlier calls have shown is assumed from the first
trace on; `retracing.py` lists the reasons to trace again with other assumptions. What a trace
finds out for later calls is recorded once, after the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from ..bytecode import FrameSnapshot
from ..errors import OperationFailed, this_rank
from ..frame.declared_dynamic import declared_numbers, dynamic_dims, marked_static
from ..frame.handle import Handle
from ..frame.never_hooked import is_library_file
from ..graph.node_meta import lines_of
from ..guards.check import is_number
from ..guards.guard import ValueEquals
from ..guards.read import UNREADABLE, read_source
from ..guards.source import Argument, Length, Source
from ..late import late_names
from ..trace.assumptions import Assumptions
from ..trace.breaks import FailedOperation
from ..trace.machine import trace
from ..trace.python_loops.loop_facts import known_loops, learn, numbers_of_iteration
from ..trace.residual.resume_facts import ResumeFacts
from ..trace.restarts import Stop
from ..trace.result import Trace
from ..trace.varying.varying_sizes import VaryingSizes
from .retracing import constant_sizes, settle

if TYPE_CHECKING:
    from ..frame.agreement.varying import agree
else:
    late_names(globals(), {"frame.agreement.varying": "agree"})

__all__ = ["note_numbers", "stop_before", "trace_frame", "trace_statically"]

_PARAMETERS = 4  # factor on `unroll_limit` in library code: optimizers loop over all parameters


def trace_frame(
    handle: Handle, snapshot: FrameSnapshot, stop: Stop | None
) -> tuple[Trace, Assumptions]:
    """Return the trace to compile for this call, and what it assumes."""
    options = handle.options
    if handle.library is not None:
        longer = replace(options, unroll_limit=_PARAMETERS * options.unroll_limit)
        assumed = Assumptions(handle.ledger.differing_numbers(snapshot))
        return trace(snapshot, longer, stop, assumed), assumed
    traced, assumed, tried = _settled(handle, snapshot, partial(trace, snapshot, options, stop))
    handle.family.never_hook(traced.loops.plain_callees)
    learn(handle.flat, traced, assumed, snapshot)
    return replace(traced, retraced=tried), assumed


def _settled(
    handle: Handle, snapshot: FrameSnapshot, run: Callable[[Assumptions], Trace]
) -> tuple[Trace, Assumptions, tuple[str, ...]]:
    """Return the trace, what it assumes and why it was repeated.

    Ranks whose sizes change at the same call each find what changed on their own. What another one
    has posted while this one traced is assumed by a second trace, at a tenth of the cost of a
    compile: with a variant of its own each, the ranks compiled apart at a later call.
    """
    is_rank = this_rank() is not None
    known = agree(handle, snapshot) if is_rank else 0
    while True:
        settled = settle(run, _known_before(handle, snapshot))
        before, known = known, agree(handle, snapshot) if is_rank else 0
        if known <= before:  # 0 once the store is gone
            return settled


def note_numbers(handle: Handle, traced: Trace) -> bool:
    """Note the numbers that a trace has read and the ledger did not know, so that the next trace
    finds which of them a scheduler changes; return whether there are any.
    """
    known = {guard.source for guard in handle.ledger.noted}
    numbers = tuple(
        guard
        for guard in traced.guards
        if isinstance(guard, ValueEquals)
        and is_number(guard.value)
        and not isinstance(guard.source, Length)
        and guard.source not in known
    )
    handle.ledger.noted += numbers
    return bool(numbers)


def trace_statically(
    handle: Handle,
    snapshot: FrameSnapshot,
    stop: Stop | None,
    traced: Trace,
    assumed: Assumptions,
    why: str,
) -> Trace:
    """Trace with the sizes of this call in place of the symbols of a trace, and record `why`."""
    return trace(snapshot, handle.options, stop, constant_sizes(traced, assumed, why))


def stop_before(failed: OperationFailed, last: Stop | None) -> Stop:
    """Return where the next trace ends. Raises `failed` if that is not before the last stop."""
    step = failed.node.meta.get("step")
    lines = lines_of(failed.node)
    if step is None or not lines or (last is not None and step >= last.step):
        raise failed
    reason = FailedOperation.of(name=failed.name, why=failed.why.partition("\n")[0])
    return Stop(step, reason, lines[-1])


# -- known before the first trace -----------------------------------------------------------------


def _known_before(handle: Handle, snapshot: FrameSnapshot) -> Assumptions:
    """Return what the first trace assumes."""
    options, ledger, flat = handle.options, handle.ledger, handle.flat
    values = (*snapshot.args, *snapshot.cells)
    loops = known_loops(flat, values, may_leave=not options.fullgraph)
    if not options.fullgraph:
        loops = replace(loops, plain=loops.plain | ledger.differing_loops(snapshot))
    # A variant of all sizes that has a break serves many sizes. For a GRU layer over 27 lengths
    # with backward() in the step, 8 static variants and eager for the rest took 26 s for 60 calls;
    # 4 static variants and a symbolic one take 18 s.
    has_many_static = len(ledger.static_shapes(snapshot)) >= options.recompile_limit // 2
    return replace(
        loops,
        numbers=_dynamic_numbers(handle, snapshot),
        sizes=None if options.dynamic is False else _varying_sizes(handle, snapshot),
        keeps_symbols=has_many_static,
        speculates_in=is_library_file if ledger.speculates else None,
    )


def _dynamic_numbers(handle: Handle, snapshot: FrameSnapshot) -> frozenset[Source] | None:
    """Return the numbers that differed between calls, that the options name, or that were symbols
    at the graph break before this frame.
    """
    options, flat = handle.options, handle.flat
    differing = handle.ledger.differing_numbers(snapshot)
    found = declared_numbers(options, snapshot.code.co_varnames, snapshot.args)
    if handle.resume_line is not None:
        facts, values = flat.root.resume_facts, (*snapshot.args, *snapshot.cells)
        read = flat.item if options.dynamic is True and flat.head in facts.reads else None
        found |= facts.numbers_of(flat.parameters, values, read) | numbers_of_iteration(flat)
    return found | (differing or frozenset()) if found else differing


def _varying_sizes(handle: Handle, snapshot: FrameSnapshot) -> VaryingSizes:
    """Return the sizes that differed between calls, that were declared dynamic, or that were
    symbols at the graph break before this frame.
    """
    ledger, options = handle.ledger, handle.options
    differing = ledger.differing_sizes(snapshot)
    resumes = handle.resume_line is not None
    facts = handle.flat.root.resume_facts if resumes else ResumeFacts()
    sizes = VaryingSizes(
        dynamic_dims(options, differing, facts.is_constant),
        ledger.earlier_sizes(snapshot),
        static=lambda source: marked_static(read_source(source, snapshot)),
        facts=facts,
        are_chosen=options.dynamic is None,
    )
    inputs = _tensors(differing, snapshot, with_arguments=resumes or options.dynamic is True)
    has_ones = any(sizes.has_ones(source, tensor) for source, tensor in inputs)
    return replace(sizes, maybe_one=True if has_ones else None)


def _tensors(
    sources: Iterable[Source], snapshot: FrameSnapshot, *, with_arguments: bool
) -> Iterator[tuple[Source, torch.Tensor]]:
    """Yield the tensors that are read from these sources, and those among the arguments."""
    for source in sources:
        try:
            value = read_source(source, snapshot)
        except UNREADABLE:
            continue
        yield source, value
    if with_arguments:
        for index, value in enumerate(snapshot.args):
            if type(value) is torch.Tensor and not value.is_nested:
                yield Argument(index, snapshot.code.co_varnames[index]), value
