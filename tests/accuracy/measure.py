"""How far eager and compiled programs are from float64.

In: programs and how to compile. Out: a Row per program and output: the root mean square errors of
eager and ours over all seeds, relative to the result. Programs are compiled together as one
function over separate inputs: they share a translation unit, not a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import jitmagic

from .programs import Program, draw

__all__ = ["Every", "Row", "Summary", "jitted", "mean_row", "measure", "summary"]

GEOMEAN, WORST = 1.5, 4.0  # what is allowed, as multiples of eager's error
Results = list[list[Tensor]]
Every = Callable[..., list[tuple[Tensor, ...]]]


@dataclass(frozen=True, slots=True)
class Row:
    """Relative errors of one output; `unit` is one unit in the last place of its dtype."""

    title: str
    eager: float
    ours: float
    unit: float

    @property
    def ratio(self) -> float:
        """Ours to eager's, where an error below one unit in the last place counts as one."""
        return max(self.ours, self.unit) / max(self.eager, self.unit)


@dataclass(frozen=True, slots=True)
class Summary:
    count: int
    geomean: float
    worst: Row

    @property
    def good(self) -> bool:
        return self.geomean <= GEOMEAN and self.worst.ratio <= WORST


def summary(rows: Sequence[Row]) -> Summary:
    """Geometric mean and worst ratio, of what rounds at all."""
    rows = [row for row in rows if row.ours or row.eager]
    logs = [math.log(row.ratio) for row in rows]
    return Summary(len(rows), math.exp(sum(logs) / len(rows)), max(rows, key=lambda r: r.ratio))


def mean_row(rows: Sequence[Row]) -> Row:
    """One output's errors at several seeds, in the geometric mean."""
    eager, ours = (
        math.exp(sum(math.log(max(error, row.unit)) for error, row in pairs) / len(rows))
        for pairs in ([(r.eager, r) for r in rows], [(r.ours, r) for r in rows])
    )
    return Row(rows[0].title, eager, ours, rows[0].unit)


def jitted(**options: object) -> Callable[[Every], Every]:
    """Compilation by jitmagic with these options; no call of it is eager's turn."""
    return lambda fn: jitmagic.jit(fn, options={"keep": "compiled", **options})


def measure(
    programs: Sequence[Program],
    seeds: int,
    compiler: Callable[[Every], Every],
    device: str = "cpu",
) -> list[Row]:
    """All programs in one compiled function; they agree in `grad`."""

    def every(*groups: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        return [p.fn(*group) for p, group in zip(programs, groups, strict=True)]

    compiled = compiler(every)
    errors: list[_Errors] = []
    for seed in range(seeds):
        inputs = [[x.to(device) for x in draw(p, seed)] for p in programs]
        wide = [[x.double() for x in group] for group in inputs]
        grad = programs[0].grad
        exact, eager, ours = (
            _results(fn, given, grad, seed)
            for fn, given in ((every, wide), (every, inputs), (compiled, inputs))
        )
        if not errors:
            errors = [
                _Errors(p.title if n == 0 else f"{p.title} [{n}]")
                for p, outs in zip(programs, exact, strict=True)
                for n in range(len(outs))
            ]
        for each, *tensors in zip(errors, *map(_flat, (exact, eager, ours)), strict=True):
            each.take(*tensors)
    return [each.row() for each in errors]


def _flat(results: Results) -> list[Tensor]:
    return [tensor for group in results for tensor in group]


def _results(
    fn: Every,
    inputs: Sequence[Sequence[Tensor]],
    grad: bool,
    seed: int,
) -> Results:
    """Per program its outputs, then the gradients of its inputs."""
    leaves = [[x.detach().clone().requires_grad_(grad) for x in group] for group in inputs]
    outs = fn(*leaves)
    results = [[out.detach() for out in group] for group in outs]
    if grad:
        flat = [out for group in outs for out in group]
        generator = torch.Generator().manual_seed(seed + 1000)
        weights = [torch.randn(o.shape, generator=generator).to(o) for o in flat]
        torch.autograd.backward(flat, weights)
        for group, result in zip(leaves, results, strict=True):
            result += [x.grad for x in group if x.grad is not None]
    return results


class _Errors:
    """Squares of one output, pooled over the seeds."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.exact = self.eager = self.ours = self.unit = 0.0

    def take(self, exact: Tensor, eager: Tensor, ours: Tensor) -> None:
        assert (ours.dtype, ours.shape) == (eager.dtype, eager.shape), self.title
        self.unit = torch.finfo(eager.dtype).eps
        self.exact += float(exact.square().sum())
        self.eager += float((eager.double() - exact).square().sum())
        self.ours += float((ours.double() - exact).square().sum())

    def row(self) -> Row:
        size = math.sqrt(self.exact) or 1.0
        return Row(self.title, math.sqrt(self.eager) / size, math.sqrt(self.ours) / size, self.unit)
