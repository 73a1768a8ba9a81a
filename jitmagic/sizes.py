"""One executable for each vector of sizes that a graph with symbols was called with.

Comes in: a Trace whose inputs have Sizes, and how a static trace is compiled. Goes out: a callable
of the tensors alone, which reads the sizes off them, natively. A vector that is new is a compile of
the graph at these sizes (`trace/concrete.py`), not of the frame: nothing is traced, no guard added.
Further vectors than `limit` run the graph op by op: compiling takes longer than many calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import RLock
from typing import Any

import torch

from .errors import warn
from .frame.sandbox import sandbox
from .graph.autocast import modes_kept
from .records import COMPILED, Failed, Recording
from .runtime.native import BySizes, by_sizes
from .trace.concrete import at_sizes, hints_of, places_of
from .trace.result import Trace

__all__ = ["Sized", "sized"]

Executable = Callable[..., tuple[Any, ...]]
Vector = tuple[int, ...]
Compile = Callable[[Trace, Callable[[], Sequence[torch.Tensor]], Recording], Executable]


def sized(
    traced: Trace,
    inputs: Sequence[torch.Tensor],
    compile_static: Compile,
    limit: int,
    record: Recording,
) -> Executable:
    """The executable, compiled for the sizes of `inputs`. Raises what a stage raises."""
    made = Sized(traced, compile_static, limit, record.for_later())
    made.add(hints_of(traced), inputs, record)
    return made.run


class Sized:
    """Compiles a symbolic graph for the sizes that come; `run` is the executable."""

    __slots__ = ("_compile", "_later", "_limit", "_lock", "_made", "_traced", "run")

    def __init__(self, traced: Trace, compile_: Compile, limit: int, later: Recording) -> None:
        self._traced, self._compile, self._limit, self._later = traced, compile_, limit, later
        self._made: dict[Vector, Executable] = {}
        self._lock = RLock()
        self.run: BySizes = by_sizes(tuple(places_of(traced).values()), self.missed)

    def add(self, values: Vector, inputs: Sequence[torch.Tensor], record: Recording) -> None:
        """Compile for these sizes."""
        self._keep(values, self.compile_for(values, inputs, record))

    def compile_for(
        self, values: Vector, inputs: Sequence[torch.Tensor], record: Recording
    ) -> Executable:
        """The executable of one vector of sizes."""
        concrete, kept = at_sizes(self._traced, values)
        run = self._compile(concrete, lambda: [inputs[place] for place in kept], record)
        return run if len(kept) == len(inputs) else _with_some(run, kept)

    def missed(self, values: Vector, inputs: Sequence[torch.Tensor]) -> Executable:
        """What a call of these sizes runs, which are new."""
        with self._lock:
            if values not in self._made and len(self._made) >= self._limit:
                return self._op_by_op()
            if values not in self._made:
                self._compile_in_call(values, inputs)
            return self._made[values]

    def _compile_in_call(self, values: Vector, inputs: Sequence[torch.Tensor]) -> None:
        record = self._later.for_later()
        try:
            with sandbox():
                self.add(values, inputs, record)
            record.end(COMPILED)
        except Exception as error:  # whatever a stage raised: the graph itself has a right answer
            failed = Failed.of(error, record.failed_in)
            record.end(failed)
            warn(failed.report(f"{record.name} at sizes {values}", "runs op by op"))
            self._keep(values, self._op_by_op())

    def _keep(self, values: Vector, run: Executable) -> None:
        self._made[values] = run
        self.run.add(values, run)

    def _op_by_op(self) -> Executable:
        graph = self._traced.graph
        return modes_kept(graph, graph.forward)


def _with_some(run: Executable, kept: tuple[int, ...]) -> Executable:
    """A graph may take less at certain sizes: without what only told a size."""
    return lambda *inputs: run(*(inputs[place] for place in kept))
