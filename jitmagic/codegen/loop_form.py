"""Builds the loop form of a kernel: serial loops around the passes of a nest.

In: a Structure, its buffers, and how reductions accumulate. Out: a Kernel in which every reduction
is an accumulator with a loop of its own, and values are those of the nest. Passes choose other
kinds of loops from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from ..lazy_dataclass import dataclass, field
from ..loops.expr import Axis, AxisVar, Expr, Integer, add, times
from ..loops.ir import Buffer, Reduction
from ..loops.ir import Store as NestStore
from .kernel import (
    Accumulate,
    Atomic,
    For,
    Kernel,
    Let,
    Param,
    Result,
    Start,
    Statement,
    Store,
    Total,
    Var,
)
from .loop_structure import Pass, Structure, passes_in

__all__ = ["exact_total", "loop_form", "params_of", "position_in"]

MakeTotal = Callable[[Reduction, str], Total]


def loop_form(kernel: Structure, buffers: Mapping[str, Buffer], total_of: MakeTotal) -> Kernel:
    """Return the kernel of a nest; `total_of` describes the accumulator of a reduction, which has
    the given name.
    """
    builder = _Builder(kernel, total_of)
    body = builder.passes(kernel.passes, frozenset(kernel.outer), frozenset())
    return Kernel(
        kernel.name,
        params_of(kernel, buffers),
        kernel.symbols,
        _loops(kernel.outer, body),
        kernel.origins,
    )


def params_of(kernel: Structure, buffers: Mapping[str, Buffer]) -> tuple[Param, ...]:
    """Return the parameters for the buffers of a nest."""
    named = [buffers[name] for name in kernel.arguments]
    return tuple(
        Param(name, buffer.dtype, name in kernel.written, 0 in buffer.shape)
        for name, buffer in zip(kernel.arguments, named, strict=True)
    )


def exact_total(node: Reduction, name: str) -> Total:
    """Return an accumulator for scalar loops: sums and products of floats accumulate in float64,
    and sums of float64 are compensated.
    """
    # Eager sums floats in cascade; a single float32 accumulator would err by the length of the sum.
    operand = node.value.dtype
    wide = node.op in ("sum", "prod") and operand.is_floating_point
    var = Var(name, torch.float64 if wide else operand)
    at = Var(f"{name}_at", torch.int64) if node.op in ("argmax", "argmin") else None
    lost = Var(f"{name}_lost", torch.float64) if operand == torch.float64 and wide else None
    return Total(node.op, node.axes, operand, var, at, lost if node.op == "sum" else None)


def position_in(axes: Iterable[Axis]) -> Expr:
    """Return the row-major position of a point among all points of `axes`."""
    position: Expr = Integer(0)
    for axis in axes:
        position = add(times(position, axis.extent), AxisVar(axis))
    return position


def _loops(axes: Sequence[Axis], body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    for axis in reversed(axes):
        body = (For((axis,), body),)
    return body


@dataclass(slots=True)
class _Builder:
    kernel: Structure
    total_of: MakeTotal
    count: int = field(default=0)

    def passes(
        self, passes: Sequence[Pass], bound: frozenset[Axis], ready: frozenset[Reduction]
    ) -> tuple[Statement, ...]:
        """Return the statements of passes inside loops over `bound`, where the results of `ready`
        are known.
        """
        made: list[Statement] = []
        for pass_ in passes:
            made += self._pass(pass_, bound, ready)
            ready |= frozenset(pass_.reductions)
        return tuple(made)

    def _pass(
        self, pass_: Pass, bound: frozenset[Axis], ready: frozenset[Reduction]
    ) -> list[Statement]:
        totals = [self._total(node) for node in pass_.reductions]
        bound |= frozenset(pass_.axes)
        free = self.kernel.free
        nested = passes_in(bound, (), pass_.roots, free, ready=frozenset(ready))
        body = [*self.passes(nested, bound, ready)]
        for node, total in zip(pass_.reductions, totals, strict=True):
            position = None if total.at is None else position_in(total.axes)
            body.append(Accumulate(total, node.value, position))
        body += map(_store, pass_.stores)
        results = [
            Let(node, Result(total, node.dtype))
            for node, total in zip(pass_.reductions, totals, strict=True)
        ]
        return [*map(Start, totals), *_loops(pass_.axes, tuple(body)), *results]

    def _total(self, node: Reduction) -> Total:
        self.count += 1
        return self.total_of(node, f"acc{self.count - 1}")


def _store(store: NestStore) -> Store:
    kind = Atomic if store.mode == "add" else Store
    return kind(store.buffer, store.index[0], store.value)
