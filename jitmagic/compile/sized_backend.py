"""Passes one graph for all sizes to the user's own backend.

Input: a Trace with Sizes, the values of its symbols in one call, and that call's inputs. Output: a
SizedBackend, which serves all values that pass its predicates. The backend gets what torch.compile
gives it: a GraphModule whose inputs include each size as a SymInt, before the first tensor that has
it, and example inputs with SymInts among the tensors. If it branches on such a size, the answer
becomes a predicate. A size that it reads as an int is a constant of the graph.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from ..graph.symbolic.size_inputs import is_size, size_in_order, with_size_inputs
from ..graph.symbolic.sym_node import as_torch
from ..records import Recording
from ..symbols.predicates import fresh_sizes
from ..symbols.symbolic_numbers import Symbol
from ..torch_types import AnyFunction
from ..trace.result import Trace
from ..trace.varying.concrete import places_of, ranges_of
from .backends import call_backend
from .sized_joint import BuiltExecutable
from .template import SizeTuple

__all__ = ["SizedBackend"]


class SizedBackend:
    """A user backend's callable for all sizes, with SizedJoint's interface. Raises what the backend
    raises.
    """

    in_parts = False
    compiled = 1
    verify = None  # no graph of jitmagic's own to compare

    def __init__(
        self,
        backend: AnyFunction,
        traced: Trace,
        values: SizeTuple,
        inputs: Sequence[torch.Tensor],
        record: Recording,
        fixed: Collection[Symbol] = (),
    ) -> None:
        self.predicates, known = fresh_sizes(ranges_of(traced), values, fixed)
        sizes = tuple(known.values())
        gm, self._order = with_size_inputs(traced.graph, places_of(traced), sizes)
        examples = [
            as_torch(sizes[size_in_order(place)]) if is_size(place) else inputs[place]
            for place in self._order
        ]
        self._run = call_backend(backend, gm, lambda: examples, record)

    def holds(self, values: SizeTuple) -> bool:
        """Return whether the backend's callable serves these values."""
        return self.predicates.holds_for(values)

    is_ready = holds

    def made(self, values: SizeTuple, inputs: int, record: Recording) -> BuiltExecutable:
        """Return the executable for these values, for which `holds` is true."""
        run, order = self._run, self._order

        def at_values(*given: torch.Tensor) -> tuple[object, ...]:
            return run(*[values[size_in_order(n)] if is_size(n) else given[n] for n in order])

        return BuiltExecutable(at_values, None, (self.predicates,))
