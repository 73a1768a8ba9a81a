"""Builds the loop form of a kernel: loops around the passes of a nest.

In: a Structure, its buffers. Out: a Kernel in which every reduction is an accumulator with a loop
of its own, a scan is an accumulator that is read at each point of a loop, and values are those of
the nest. LoopBuilder makes serial loops with accumulators for scalars; a target with vectors
overrides which loops there are (cpp/loops.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import count

import torch

from ..lazy_dataclass import replace
from ..loops.expr import Axis, AxisVar, Expr, Integer, add, times
from ..loops.ir import Buffer, Reduction, Scan, Value
from ..loops.ir import Store as NestStore
from ..schedule.score import points
from .kernel import (
    BEGIN,
    END,
    Accumulate,
    Atomic,
    For,
    Grain,
    Kernel,
    Let,
    Parallel,
    Param,
    Result,
    Start,
    Statement,
    Store,
    Total,
    Var,
)
from .loop_structure import Pass, Structure, passes_in, scans_of

__all__ = [
    "Accumulated",
    "Body",
    "LoopBuilder",
    "loop_form",
    "on_threads",
    "params_of",
    "plain_loops",
    "position_in",
]

Body = tuple[Statement, ...]
Accumulated = Reduction | Scan


def loop_form(kernel: Structure, buffers: Mapping[str, Buffer]) -> Kernel:
    """Return the kernel of a nest as serial loops."""
    builder = LoopBuilder(kernel)
    body = plain_loops(kernel.outer, builder.passes(kernel.passes, frozenset(kernel.outer)))
    return Kernel(kernel.name, params_of(kernel, buffers), kernel.symbols, body, kernel.origins)


def params_of(kernel: Structure, buffers: Mapping[str, Buffer]) -> tuple[Param, ...]:
    """Return the parameters for the buffers of a nest."""
    made = []
    for name in kernel.arguments:
        buffer, is_written = buffers[name], name in kernel.written
        is_constant = not is_written and buffer.role != "temp"
        made.append(Param(name, buffer.dtype, is_written, 0 in buffer.shape, is_constant))
    return tuple(made)


def position_in(axes: Iterable[Axis]) -> Expr:
    """Return the row-major position of a point among all points of `axes`."""
    position: Expr = Integer(0)
    for axis in axes:
        position = add(times(position, axis.extent), AxisVar(axis))
    return position


def plain_loops(axes: Sequence[Axis], body: Body) -> Body:
    """Return serial loops around a body, the last axis innermost."""
    for axis in reversed(axes):
        body = (For((axis,), body),)
    return body


def on_threads(loop: For, grain: int | Grain = 1) -> Parallel:
    """Return a loop whose points run on several threads."""
    part = replace(loop, start=AxisVar(BEGIN), stop=AxisVar(END))
    return Parallel(points(loop.axes), grain, (part,))


class LoopBuilder:
    """Writes the statements of passes."""

    def __init__(self, kernel: Structure) -> None:
        self.kernel = kernel
        self.free = dict(kernel.free)  # the axes of every value
        self._count = count()

    def new_name(self, prefix: str) -> str:
        """Return a name that the kernel does not have yet."""
        return f"{prefix}{next(self._count)}"

    def passes(
        self,
        passes: Sequence[Pass],
        bound: frozenset[Axis],
        ready: frozenset[Value] = frozenset(),
    ) -> Body:
        """Return the statements of passes inside loops over `bound`, where the results of `ready`
        are known.
        """
        made: list[Statement] = []
        for pass_ in passes:
            made += self.pass_(pass_, bound, ready)
            ready |= frozenset(pass_.reductions)
        return tuple(made)

    def pass_(self, pass_: Pass, bound: frozenset[Axis], ready: frozenset[Value]) -> Body:
        """Return a pass: its accumulators, its loops, its results."""
        scans = scans_of(pass_, self.saved_before(pass_))
        accumulated: tuple[Accumulated, ...] = (*scans, *pass_.reductions)
        totals = {node: self.total(node) for node in accumulated}
        body = self.point(pass_, bound | frozenset(pass_.axes), ready, totals)
        results = [Let(node, Result(totals[node], node.dtype)) for node in pass_.reductions]
        return (*map(Start, totals.values()), *plain_loops(pass_.axes, body), *results)

    def point(
        self,
        pass_: Pass,
        bound: frozenset[Axis],
        ready: frozenset[Value],
        totals: Mapping[Accumulated, Total],
    ) -> Body:
        """Return the statements of one point: nested reductions, scans, accumulations, then
        stores.
        """
        nested = passes_in(bound, (), pass_.roots, self.free, ready=ready)
        made = [*self.passes(nested, bound, ready)]
        for node, total in totals.items():
            if isinstance(node, Scan):
                made += [Accumulate(total, node.value), Let(node, Result(total, node.dtype))]
        made += self.saves(pass_)
        for node, total in totals.items():
            if isinstance(node, Reduction):
                position = None if total.at is None else position_in(total.axes)
                made.append(Accumulate(total, node.value, position))
        return (*made, *map(_store, pass_.stores))

    def saved_before(self, pass_: Pass) -> Collection[Value]:
        """Return the values of a point that an earlier pass has saved."""
        return ()

    def saves(self, pass_: Pass) -> Body:
        """Return the statements that save values of a point for later passes."""
        return ()

    def total(self, node: Accumulated) -> Total:
        """Return an accumulator of scalars: sums and products of floats accumulate in float64, and
        sums of float64 are compensated.
        """
        # Eager sums floats in cascade; a single float32 accumulator would err by the length of the
        # sum.
        name, operand = self.new_name("acc"), node.value.dtype
        wide = node.op in ("sum", "prod") and operand.is_floating_point
        var = Var(name, torch.float64 if wide else operand)
        at = Var(f"{name}_at", torch.int64) if node.op in ("argmax", "argmin") else None
        is_compensated = node.op == "sum" and operand == torch.float64
        lost = Var(f"{name}_lost", torch.float64) if is_compensated else None
        axes, method = ((node.axis,), "scan") if isinstance(node, Scan) else (node.axes, "plain")
        return Total(node.op, axes, operand, var, at, lost, method)


def _store(store: NestStore) -> Store:
    kind = Atomic if store.mode == "add" else Store
    return kind(store.buffer, store.index[0], store.value)
