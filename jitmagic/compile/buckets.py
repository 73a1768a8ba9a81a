"""Runs batches of any size at a few sizes, the buckets: rows are added before, and cut off after.

Input: a Trace whose batch size is a symbol, and `options.buckets`. Output: a callable of the
graph's inputs that compiles one static graph per bucket, when a call first needs it: its kernels
know all sizes, and CUDA graphs can replay it. The added rows are copies of the last one, so no
operation raises for them that would not raise for the caller's rows. Results are copies of the
first rows, laid out as eager lays them out.

Only graphs in which rows are computed apart from each other are run like this
(autograd/batch_independence.py); for others there is a warning with the reason, and the graph is
compiled for all sizes as without the option.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from threading import RLock

import torch

from ..autograd.batch_independence import batch_dims, mixed_rows
from ..autograd.partition import partition
from ..autograd.result import Result, output_specs
from ..autograd.symbolic_joint import trace_sized_joint
from ..budget import within
from ..errors import warn
from ..frame.sandbox import sandbox
from ..graph.symbolic.concrete import ScalarInput, spec_at
from ..options import Options
from ..records import COMPILED, Failed, Recording
from ..spec import TensorSpec
from ..symbols.expr import Expr
from ..symbols.predicates import Predicates, fresh_sizes
from ..symbols.size import Size
from ..symbols.symbolic_numbers import Symbol, symbols_of
from ..torch_types import Executable
from ..trace.result import Trace
from ..trace.varying.concrete import data_symbols, hints_of, places_of, ranges_of, with_sizes
from .sizes import Compile, CompiledGraph, compile_at, op_by_op

__all__ = ["compile_buckets"]


class _Refused(Exception):
    """Raised with the reason why a graph cannot run in buckets."""


def compile_buckets(
    traced: Trace,
    inputs: Sequence[torch.Tensor],
    compile_static: Compile,
    options: Options,
    record: Recording,
) -> CompiledGraph | None:
    """Compile the bucket of this call; None, with a warning, if rows may depend on each other."""
    sizes = sorted({size for _, buckets in options.buckets or () for size in buckets})
    if any(limits.low > sizes[-1] for limits in ranges_of(traced).values()):
        return None  # larger batches
    try:
        with record.stage("buckets") as stage:
            plan = _Plan(traced, sizes)
            stage.keep(f"{plan.symbol} in {', '.join(map(str, plan.buckets))}")
    except _Refused as refused:
        warn(f"{traced.name}: no batch buckets, because {refused}; it is compiled for all sizes")
        return None
    run = _Bucketed(plan, compile_static, options, record.for_later())
    run.compile(plan.bucket_of(hints_of(traced)[0]), inputs, record)
    return CompiledGraph(run)


class _Plan:
    """Holds what a graph needs to run in buckets. The constructor raises _Refused."""

    def __init__(self, traced: Trace, sizes: Sequence[int]) -> None:
        self.traced = traced
        if len(places_of(traced)) != 1 or data_symbols(traced):
            raise _Refused("other sizes vary too")
        [(self.symbol, self.place)] = places_of(traced).items()
        if self.place[1] != 0:
            raise _Refused("the size that varies is not the first dimension of an argument")
        if traced.mutated:
            raise _Refused("it writes to its arguments")
        predicates, known = fresh_sizes(ranges_of(traced), hints_of(traced))
        own = next(iter(predicates.symbols))
        sized, taken = with_sizes(traced, known)
        if any(isinstance(one, ScalarInput) and _depends(one.value, own) for one in taken):
            raise _Refused("it computes a number from the batch size")
        joint = trace_sized_joint(sized.graph, [entry.spec for entry in sized.inputs])
        parts = partition(joint)
        if parts.backward is not None:
            raise _Refused("its result is differentiated (use torch.no_grad)")
        if any(out != Result(n, False) for n, out in enumerate(joint.outputs)):
            raise _Refused("a result is an argument or a view of one")
        if (refusal := mixed_rows(parts.forward, own)) is not None:
            raise _Refused(refusal)
        self.results: list[tuple[int | None, TensorSpec]] = list(
            zip(batch_dims(parts.forward, own), output_specs(joint), strict=True)
        )
        self._own = own
        # Inputs with the batch, and their specs over the symbol of the trace.
        self.batched = {
            n: entry.spec
            for n, entry in enumerate(traced.inputs)
            if any(_depends(size, self.symbol) for size in entry.spec.shape)
        }
        self.buckets = self._buckets(sizes, predicates)

    def _buckets(self, sizes: Sequence[int], predicates: Predicates) -> list[int]:
        """Return the buckets that this variant of the graph is valid for."""
        limits = ranges_of(self.traced)[self.symbol]
        found = [n for n in sizes if limits.has(n) and predicates.holds_for((n,))]
        if not found or found[-1] < limits.high:
            raise _Refused(
                f"its code for {limits.low} to {limits.high} rows has no bucket of "
                f"{limits.high}; add that size to the buckets"
            )
        return found

    def bucket_of(self, rows: int) -> int:
        """Return the smallest bucket that holds so many rows."""
        return self.buckets[bisect_left(self.buckets, rows)]

    def padded(self, n: int, x: torch.Tensor, bucket: int) -> torch.Tensor:
        """Return input n with copies of its last row up to the bucket's size."""
        spec = spec_at(self.batched[n], {self.symbol: bucket})
        made = torch.empty_strided(spec.shape, spec.stride, dtype=x.dtype, device=x.device)
        made[: len(x)] = x
        made[len(x) :] = x[-1:]
        return made

    def cut(self, results: Sequence[object], rows: int) -> tuple[object, ...]:
        """Return copies of the first rows of the results, in eager's layout."""
        made = []
        for (dim, spec), result in zip(self.results, results, strict=True):
            if dim is None or not isinstance(result, torch.Tensor):
                made.append(result)
                continue
            own = spec_at(spec, {self._own: rows})
            copy = torch.empty_strided(own.shape, own.stride, dtype=own.dtype, device=own.device)
            made.append(copy.copy_(result.narrow(dim, 0, own.shape[dim])))
        return tuple(made)


def _depends(size: object, symbol: Symbol) -> bool:
    return isinstance(size, Size) and symbol in symbols_of(size.expr)


class _Bucketed:
    """Runs calls at the size of their bucket. Threads may call it at the same time: a bucket is
    compiled once, while other threads that need it wait.
    """

    def __init__(
        self, plan: _Plan, compile_static: Compile, options: Options, later: Recording
    ) -> None:
        self._plan, self._compile = plan, compile_static
        self._options, self._later = options, later
        self._runs: dict[int, Executable] = {}  # at most one for each bucket
        self._lock = RLock()

    def __call__(self, *inputs: torch.Tensor) -> tuple[object, ...]:
        plan = self._plan
        rows = inputs[plan.place[0]].shape[0]
        bucket = plan.bucket_of(rows)
        run, given = self._runs.get(bucket), list(inputs)
        if rows != bucket:
            for n in plan.batched:
                given[n] = plan.padded(n, inputs[n], bucket)
        if run is None:
            run = self._compiled_in_call(bucket, given)
        results = run(*given)
        return tuple(results) if rows == bucket else plan.cut(results, rows)

    def compile(self, bucket: int, inputs: Sequence[torch.Tensor], record: Recording) -> Executable:
        """Compile one bucket. `inputs`: of any number of rows; examples for tuning."""
        plan = self._plan
        given = [
            plan.padded(n, x, bucket) if n in plan.batched else x for n, x in enumerate(inputs)
        ]
        known: dict[Expr, object] = {plan.symbol: bucket}
        made = compile_at(plan.traced, known, given, self._compile, record)
        self._runs[bucket] = made.run
        return made.run

    def _compiled_in_call(self, bucket: int, inputs: Sequence[torch.Tensor]) -> Executable:
        with self._lock:
            if bucket in self._runs:
                return self._runs[bucket]
            record = self._later.for_later()
            try:
                with sandbox(), within(self._options.budget):
                    run = self.compile(bucket, inputs, record)
                record.end(COMPILED)
            except Exception as error:  # op by op, the graph still gives the right result
                failed = Failed.of(error, record.failed_in)
                record.end(failed)
                warn(failed.report(f"{record.name} with {bucket} rows", "runs op by op"))
                run = self._runs[bucket] = op_by_op(self._plan.traced)
            return run
