"""Makes long sums of floats of blocks, so that their error stays that of a short sum.

In: the loop form of a CPU kernel. Out: the same, in which every sum of more than BLOCK steps
accumulates blocks (blocks.py chooses them), whose sums are then added with compensation, whatever
loops enclose them and whatever else is in the pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from ...lazy_dataclass import dataclass, field, replace
from ...loops.expr import Axis, AxisVar, Expr, Integer, add
from ...symbols.size import expr_of, hint_of
from ..kernel import (
    Accumulate,
    For,
    Join,
    Kernel,
    Let,
    Partial,
    Parts,
    Result,
    Start,
    Statement,
    Store,
    Total,
    Trips,
    Var,
)
from ..kernel_walk import block_of, with_blocks
from ..loop_form import Body
from .blocks import BlockLevel, Span, block_level, has_run_time_blocks
from .loops import adds_floats, least_of

__all__ = ["in_blocks"]


def in_blocks(kernel: Kernel, of_rows: bool) -> Kernel:
    """Return the kernel with long sums in blocks. `of_rows`: each sum is one of many."""
    sums = _Sums(of_rows)
    body = sums.body(kernel.body, {})
    return replace(kernel, body=_with_totals(body, sums.changed)) if sums.changed else kernel


@dataclass(slots=True)
class _Sums:
    of_rows: bool
    changed: dict[Var, Total] = field(default_factory=dict)
    count: int = 0

    def body(self, body: Body, tests: Mapping[str, Trips]) -> Body:
        return tuple(made for each in body for made in self.statement(each, tests))

    def statement(self, each: Statement, tests: Mapping[str, Trips]) -> Body:
        if isinstance(each, Trips):
            tests = {**tests, each.name: each}
        if isinstance(each, For):
            chain = _chain(each)
            inside = chain[-1].body
            totals = [a.total for a in inside if isinstance(a, Accumulate) and adds_floats(a.total)]
            if totals:
                inside = self.body(inside, tests)
                return self.sum(chain, inside, totals, [_span(loop, tests) for loop in chain])
        return (with_blocks(each, lambda body: self.body(body, tests)),)

    def sum(
        self, chain: Sequence[For], inside: Body, totals: Sequence[Total], spans: Sequence[Span]
    ) -> Body:
        """Return the loops of a chain with the sums inside in blocks, if they are long."""
        level = block_level(spans, self.of_rows, _elements(totals))
        if level is None:
            return _nested(chain, inside)
        varies = has_run_time_blocks(level, spans)
        for total in totals:
            size = level.size if isinstance(level.size, Expr) else Integer(level.size)
            single = (spans[0].stop, size) if varies else None
            self.changed[total.var] = replace(total, method="blocks", one_block=single)
        if varies:
            return self.varying_blocks(level, chain, inside, totals, spans[0])
        blocks = {t.var: replace(t, var=replace(t.var, name=self.name("sum"))) for t in totals}
        outside, rest = chain[: level.depth], [*chain[level.depth :]]
        if level.size:
            loop, rest[0] = self.blocks(level, rest[0], spans[level.depth])
        body = (
            *map(Start, blocks.values()),
            *_nested(rest, _accumulating(inside, blocks)),
            *(Join(self.changed[var], block.var) for var, block in blocks.items()),
        )
        if level.size:
            body = (replace(loop, body=body),)
        return _nested(outside, body)

    def blocks(self, level: BlockLevel, loop: For, span: Span) -> tuple[For, For]:
        """Return a loop over the blocks of a loop, and the loop over one block."""
        start = Axis(self.name("block"), span.axis.extent)
        at, size = AxisVar(start), level.size
        end = add(at, size if isinstance(size, Expr) else Integer(size))
        stop = end if level.even else least_of(span.stop, end)
        most = None if isinstance(size, Expr) else size
        inner = replace(loop, start=at, stop=stop, most=most, trips="")
        return For((start,), (), start=span.start, stop=span.stop, step=size), inner

    def varying_blocks(
        self,
        level: BlockLevel,
        chain: Sequence[For],
        inside: Body,
        totals: Sequence[Total],
        span: Span,
    ) -> Body:
        """Return loops over the blocks of a loop whose length is known at run time."""
        # Most often there is one block, whose sum is then the result, without a compensated total,
        # through which row sums of 64 columns took twice as long.
        start = Axis(self.name("block"), span.axis.extent)
        end = Axis(f"{start.name}_end", span.axis.extent)
        blocks = {total.var: block_of(total) for total in totals}
        first = replace(chain[0], start=AxisVar(start), stop=AxisVar(end), trips="")
        body = _nested((first, *chain[1:]), _accumulating(inside, blocks))
        size = level.size if isinstance(level.size, Expr) else Integer(level.size)
        begun = tuple(self.changed[total.var] for total in totals)
        return (Parts(start, end, size, span.stop, begun, body),)

    def name(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count - 1}"


def _chain(loop: For) -> list[For]:
    """Return loops each of which is all of the body of the one before."""
    chain = [loop]
    while len(loop.body) == 1 and isinstance(loop.body[0], For):
        loop = loop.body[0]
        chain.append(loop)
    return chain


def _nested(chain: Sequence[For], body: Body) -> Body:
    for loop in reversed(chain):
        body = (replace(loop, body=body),)
    return body


def _span(loop: For, tests: Mapping[str, Trips]) -> Span:
    (axis,) = loop.axes
    stop = expr_of(axis.extent) if loop.stop is None else loop.stop
    extent = axis.extent if loop.most is None else loop.most
    width = loop.step if loop.kind == "vector" and isinstance(loop.step, int) else 1
    is_one_step = loop.trips in tests and tests[loop.trips].most == 1
    return Span(axis, loop.start, stop, extent, width, is_one_step)


def _elements(totals: Sequence[Total]) -> int:
    """Return the elements of a sum whose blocks are added in float64; 0 for other sums."""
    wide = [total for total in totals if total.wide]
    return prod(hint_of(axis.extent) for axis in wide[0].axes) if wide else 0


def _accumulating(body: Body, blocks: Mapping[Var, Total]) -> Body:
    """Accumulate into blocks in place of the totals."""
    return tuple(
        replace(each, total=blocks[each.total.var])
        if isinstance(each, Accumulate) and each.total.var in blocks
        else each
        for each in body
    )


def _with_totals(body: Body, changed: Mapping[Var, Total]) -> Body:
    """Replace descriptions of accumulators where these begin and end."""

    def change(body: Body) -> Body:
        return tuple(_changed(with_blocks(each, change), changed) for each in body)

    return change(body)


def _changed(each: Statement, changed: Mapping[Var, Total]) -> Statement:
    match each:
        case Start(total) if total.var in changed:
            return Start(changed[total.var])
        case Let(target, Result(total, dtype, across)) if total.var in changed:
            return Let(target, Result(changed[total.var], dtype, across))
        case Store(buffer, offset, Partial(total, dtype, across)) if total.var in changed:
            return Store(buffer, offset, Partial(changed[total.var], dtype, across))
    return each
