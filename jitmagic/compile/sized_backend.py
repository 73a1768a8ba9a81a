"""One graph for all sizes, handed to the user's own backend once.

Comes in: a Trace with Sizes, the values of its symbols in one call, and that call's inputs. Goes
out: a SizedBackend, which serves all values that its predicates are true of. The backend gets what
torch.compile gives it: a GraphModule whose inputs include each size as a SymInt, before the first
tensor that has it, and example inputs with SymInts among the tensors. What it decides by one of
those is a predicate. Where it reads one as an int, or raises, the caller goes without: the backend
gets a graph of ints then, for each size tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..graph.symbolic.size_inputs import is_size, size_in_order, with_size_inputs
from ..graph.symbolic.sym_node import as_torch
from ..records import Recording
from ..trace.result import Trace
from ..trace.varying.concrete import places_of, ranges_of
from .backends import call_backend
from .sized_joint import Made, own_sizes

__all__ = ["SizedBackend"]

Vector = tuple[int, ...]


class SizedBackend:
    """A user backend's callable for all sizes, used as SizedJoint is. Raises what the backend
    raises.
    """

    in_parts = False
    compiled = 1
    verify = None  # no graph of jitmagic's own to compare

    def __init__(
        self,
        backend: Callable[..., Any],
        traced: Trace,
        values: Vector,
        inputs: Sequence[torch.Tensor],
        record: Recording,
    ) -> None:
        self.predicates, sizes = own_sizes(ranges_of(traced), values)
        gm, self._order = with_size_inputs(traced.graph, places_of(traced), sizes)
        examples = [
            as_torch(sizes[size_in_order(place)]) if is_size(place) else inputs[place]
            for place in self._order
        ]
        self._run = call_backend(backend, gm, lambda: examples, record)

    def holds(self, values: Vector) -> bool:
        """Return whether the backend's callable serves these values."""
        return self.predicates.holds_for(values)

    is_ready = holds

    def made(self, values: Vector, inputs: int, record: Recording) -> Made:
        """The executable of these values, which `holds` is true of."""
        run, order = self._run, self._order

        def at_values(*given: torch.Tensor) -> tuple[Any, ...]:
            return run(*[values[size_in_order(n)] if is_size(n) else given[n] for n in order])

        return Made(at_values, None, (self.predicates,))
