"""Captures a call as one functional ATen graph, for all sizes that are declared dynamic.

In: an ExampleCall. Out: a `Capture`: the trace of the call with its Sizes, and the joint graph of
the forward alone. The stages are those of a compile: the tracer, then autograd's recording, which
removes writes and views, with fewer decompositions. Raises Unsupported, with the user's line, for
what one graph cannot express. Nothing is compiled, and no live object changes.
"""

from __future__ import annotations

from functools import partial
from types import FunctionType
from typing import Any

import torch

from ..autograd.joint import trace_joint
from ..autograd.result import Joint
from ..autograd.symbolic_joint import trace_sized_joint
from ..bytecode import FrameSnapshot
from ..compile.retracing import settle
from ..errors import CompileFailed, OperationFailed, Unsupported, UserLine
from ..frame.never_hooked import in_library
from ..frame.sandbox import sandbox
from ..graph.gradients import gradients
from ..graph.symbolic.data_split import split_at_data
from ..guards.guard import SizesRelate
from ..guards.read import UNREADABLE, read_source
from ..guards.source import Argument, Item, Source
from ..lazy_dataclass import dataclass
from ..options import Options
from ..spec import TensorSpec
from ..symbols.expr import Expr, Integer, integer
from ..symbols.interval import Interval, UnbackedRange
from ..symbols.predicates import Predicates, fresh_sizes, read_as_ints
from ..symbols.size import SizeOf, origin_at
from ..symbols.symbolic_numbers import Symbol
from ..trace.assumptions import Assumptions
from ..trace.machine import trace
from ..trace.result import Break, GraphInput, Trace
from ..trace.varying.concrete import data_symbols, hints_of, places_of, ranges_of, with_sizes
from ..trace.varying.varying_sizes import VaryingSizes
from .call import ExampleCall, Extent
from .decompositions import TABLE

__all__ = ["FRAME", "LARGEST", "Capture", "Input", "Place", "capture"]

_TARGET, _ARGS, _KWARGS = Argument(0, "target"), Argument(1, "args"), Argument(2, "kwargs")
LARGEST = 2**31  # a larger bound counts as no bound
Place = tuple[int, int]  # (leaf, dimension) of a symbol; dimension -1 is an int itself


def _program(target: Any, args: Any, kwargs: Any) -> Any:
    """Call the target: the frame that is traced, so that hooks and `*args` need no special case."""
    return target(*args, **kwargs)


assert isinstance(_program, FunctionType)
FRAME = _program


@dataclass(frozen=True, slots=True, eq=False)
class Input:
    """An input of the joint graph: a leaf's number or a tensor that the program reads elsewhere.

    `number`: the value of a 0-dim tensor that is computed from sizes, if it is neither.
    """

    entry: GraphInput
    leaf: int | None = None
    tensor: torch.Tensor | None = None
    number: Any = None


class Leaves:
    """The flat arguments of the call as the tracer finds them: by source, and by identity."""

    def __init__(self, call: ExampleCall, snapshot: FrameSnapshot) -> None:
        self.call, self.snapshot = call, snapshot
        tensors = [(n, leaf.value) for n, leaf in enumerate(call.leaves)]
        self.by_id = {id(v): n for n, v in tensors if isinstance(v, torch.Tensor)}
        self.numbers = dict(self._numbers())

    def _numbers(self) -> Any:
        for n, leaf in enumerate(self.call.leaves):
            if -1 in leaf.varying:
                if leaf.argument is None:
                    why = f"{leaf.path} is an int inside a container, which cannot be dynamic"
                    raise _refusal(why, None, "make it an argument, or a tensor")
                which, key = leaf.argument
                yield Item(_ARGS if which == "args" else _KWARGS, key), n

    def of_tensor(self, tensor: object) -> int | None:
        """Return the number of the leaf that is this tensor."""
        return self.by_id.get(id(tensor))

    def place(self, origin: object) -> Place | None:
        """Return the place of a symbol of the trace; None for a stride or a size elsewhere."""
        if isinstance(origin, Source) and origin in self.numbers:
            return self.numbers[origin], -1
        if not isinstance(origin, SizeOf):
            return None
        try:
            leaf = self.of_tensor(read_source(origin.source, self.snapshot))  # type: ignore[arg-type]
        except UNREADABLE:
            return None
        return None if leaf is None else (leaf, origin.dim)

    def assumptions(self) -> Assumptions:
        """Return what the trace assumes: the symbols, none of which share sizes by chance."""
        sizes = VaryingSizes(self._requested, self._apart)
        return Assumptions(frozenset(self.numbers) or None, sizes=sizes, is_exporting=True)

    def _requested(self, source: Source, tensor: torch.Tensor) -> dict[int, Interval]:
        leaf = self.of_tensor(tensor)
        extents = {} if leaf is None else self.call.leaves[leaf].varying
        return {dim: _range(extent) for dim, extent in extents.items()}

    def _apart(self, source: Source, dim: int) -> tuple[int | None, ...]:
        """Return an invented earlier size, which is the same for dimensions of one name only."""
        leaf = self.of_tensor(read_source(source, self.snapshot))
        if leaf is None or dim not in (varying := self.call.leaves[leaf].varying):
            return ()
        return (2 + hash(varying[dim].name or (leaf, dim)) % 2**40,)


@dataclass(frozen=True, slots=True, eq=False)
class Capture:
    """A call as a graph. `relations` hold between the symbols, whose places are in `places`."""

    snapshot: FrameSnapshot
    trace: Trace
    joint: Joint
    inputs: tuple[Input, ...]
    leaves: Leaves
    places: dict[Symbol, Place]
    ranges: dict[Symbol, Interval]
    relations: tuple[tuple[str, Expr, Expr], ...]

    def spec_of(self, leaf: int) -> TensorSpec | None:
        """Return the spec of an argument that the program reads."""
        for entry in self.trace.inputs:
            value = read_source(entry.source, self.snapshot)
            if self.leaves.of_tensor(value) == leaf:
                return entry.spec
        return None


def capture(call: ExampleCall) -> Capture:
    """Trace the call and record it; raises Unsupported."""
    snapshot = FrameSnapshot.of_call(FRAME, (call.target, call.args, call.kwargs))
    leaves = Leaves(call, snapshot)
    with sandbox():
        run = partial(trace, snapshot, Options(fullgraph=True), None)
        traced, _, _ = settle(run, leaves.assumptions())
        _check(traced)
        try:
            return _recorded(snapshot, traced, leaves)
        except OperationFailed as error:
            lines: Any = error.node.meta.get("lines", ())
            where = lines[-1] if lines else None
            raise _refusal(f"{error.name} cannot be exported: {error.why}", where) from error
        except CompileFailed as error:
            raise _refusal(str(error).partition("\n")[0], None) from error


def _refusal(why: str, where: UserLine | None, hint: str = "") -> Unsupported:
    hint = hint or "leave that part out of what is exported, or write it with other operations"
    return Unsupported(why, hint, where)


def _check(traced: Trace) -> None:
    """Raise Unsupported for a graph break, and for state that no exported program has."""
    if isinstance(traced.exit, Break):
        reason = traced.exit.reason
        message, where = in_library(reason.message, traced.exit.where, traced.exit.line)
        raise _refusal(f"an exported program is one graph: {message}", where, reason.hint)
    if traced.draws or any(entry.is_drawn for entry in traced.inputs):
        why = "random numbers of Python or numpy are drawn"
        raise _refusal(why, None, "draw them with torch, or pass them as arguments")
    if traced.speculates:
        why = "a branch depends on the values of a tensor"
        raise _refusal(why, None, "use torch.where or torch.cond")
    if split_at_data(traced.graph) is not None:
        why = "the shape of a result, or the branch that runs, depends on the values of a tensor"
        origins: list[Any] = [symbol.origin for symbol in data_symbols(traced)]
        line = origins[0].where if origins else None
        raise _refusal(why, line, "use a mask, or an operation of fixed shape")


def _range(extent: Extent) -> Interval:
    high = LARGEST if extent.high is None else min(extent.high, LARGEST)
    # Nothing may be specialised on a size that may be 0 or 1.
    return UnbackedRange(extent.low, high) if extent.low < 2 else Interval(extent.low, high)


def _recorded(snapshot: FrameSnapshot, traced: Trace, leaves: Leaves) -> Capture:
    """Record the graph of the trace as ATen operations."""
    computes_gradients = any(node.target is gradients for node in traced.graph.graph.nodes)
    with torch.set_grad_enabled(computes_gradients):
        if not places_of(traced):
            specs = [entry.spec for entry in traced.inputs]
            joint = trace_joint(traced.graph, specs, table=TABLE)
            inputs = tuple(_input(entry, leaves) for entry in traced.inputs)
            return Capture(snapshot, traced, joint, inputs, leaves, {}, {}, ())
        return _sized(snapshot, traced, leaves)


def _sized(snapshot: FrameSnapshot, traced: Trace, leaves: Leaves) -> Capture:
    fixed: set[Symbol] = set()
    while True:
        predicates, sizes = fresh_sizes(
            ranges_of(traced), hints_of(traced), fixed, usual_layouts=False
        )
        try:
            sized, kept = with_sizes(traced, sizes)
            specs = [entry.spec for entry in sized.inputs]
            joint = trace_sized_joint(sized.graph, specs, table=TABLE)
        except Exception as error:  # a stage may need a size as an int: it is a constant then
            more = read_as_ints(error) - fixed
            if not more:
                raise
            fixed |= more
            continue
        break
    inputs = tuple(
        _input(entry, leaves) if isinstance(place, int) else Input(entry, number=place.value)
        for entry, place in zip(sized.inputs, kept, strict=True)
    )
    old = dict(zip(ranges_of(traced), predicates.symbols, strict=True))
    places = _places(traced, leaves)
    relations = [*_relations(traced), *predicates.relations]
    known = {symbol: place for symbol, place in places.items()}
    known |= {old[symbol]: place for symbol, place in places.items()}
    ranges = {symbol: _found_range(predicates, old[symbol]) for symbol in places}
    return Capture(snapshot, traced, joint, inputs, leaves, known, ranges, tuple(relations))


def _found_range(predicates: Predicates, symbol: Symbol) -> Interval:
    """Return the range for which the joint graph is valid."""
    found = predicates.ranges[symbol].narrowed(symbol.range)
    while ("!=", symbol, integer(int(found.low))) in predicates.relations:
        found = found._replace(low=found.low + 1)
    return found


def _input(entry: GraphInput, leaves: Leaves) -> Input:
    value = read_source(entry.source, leaves.snapshot)
    if (leaf := leaves.numbers.get(entry.source, leaves.of_tensor(value))) is not None:
        return Input(entry, leaf=leaf)
    if isinstance(value, torch.Tensor):
        return Input(entry, tensor=value)
    return Input(entry, number=value)


def _places(traced: Trace, leaves: Leaves) -> dict[Symbol, Place]:
    found = {}
    for symbol, (n, dim) in places_of(traced).items():
        source = traced.inputs[n].source
        place = leaves.place(source if dim == -1 else origin_at(source, dim))
        if place is None:
            raise _refusal(f"a size of {source.describe()} varies, which is no argument", None)
        found[symbol] = place
    return found


def _relations(traced: Trace) -> list[tuple[str, Expr, Expr]]:
    """Return the relations of sizes that the trace relies on, apart from ranges of symbols."""
    found = (guard for guard in traced.guards if isinstance(guard, SizesRelate))
    return [
        (guard.op, guard.left, guard.right)
        for guard in found
        if not (isinstance(guard.left, Symbol) and isinstance(guard.right, Integer))
    ]
