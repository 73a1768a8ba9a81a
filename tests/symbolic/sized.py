"""Graphs whose sizes are symbols, out of graphs that were recorded at prime sizes.

A number that a prime divides is that symbol times the rest: for tests, where nothing else is that
big. What the product does instead is another matter (graph/symbolic/sym_node.py).
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from jitmagic.spec import TensorSpec
from jitmagic.symbols.interval import Interval
from jitmagic.symbols.predicates import Predicates
from jitmagic.symbols.size import Dimension, size_of
from jitmagic.symbols.symbolic_numbers import Symbol
from tests.loops.recording import record

__all__ = ["EDGES", "PRIMES", "symbolic_graph"]

PRIMES = (101, 211, 401)  # far from each other, and from what a program has of its own
EDGES = (2, 3, 15, 16, 17, 64, 100)
_COUNT = itertools.count()


def symbolic_graph(
    fn: Callable[..., Any], make: Callable[..., Sequence[torch.Tensor]], hints: Sequence[int]
) -> tuple[torch.fx.GraphModule, Predicates]:
    """The ATen graph of fn on `make(*sizes)`, with Sizes for the sizes; `hints`: of one call."""
    primes = PRIMES[: len(hints)]
    symbols = [
        Symbol(f"s{n}", int, Interval(2, 2**31), ("a test", next(_COUNT)))
        for n in range(len(hints))
    ]
    found = Predicates(dict(zip(symbols, hints, strict=True)))
    sizes = [size_of(symbol, found.context) for symbol in symbols]
    gm, _ = record(fn, *make(*primes))

    def sized(part: Any) -> Any:
        if isinstance(part, TensorSpec):
            shape, stride = sized(part.shape), sized(part.stride)
            return TensorSpec(shape, stride, part.dtype, part.device)
        if isinstance(part, tuple):
            return tuple(sized(item) for item in part)
        if isinstance(part, list):
            return [sized(item) for item in part]
        if isinstance(part, dict):
            return {key: sized(item) for key, item in part.items()}
        return _symbolic(part, primes, sizes) if type(part) is int else part

    for node in gm.graph.nodes:
        node.meta["spec"] = sized(node.meta.get("spec"))
        if node.op == "call_function" and node.target is not operator.getitem:
            node.args, node.kwargs = sized(node.args), sized(dict(node.kwargs))
    return gm, found


def _symbolic(number: int, primes: Sequence[int], sizes: Sequence[Dimension]) -> Dimension:
    """A product of primes, or a sum of few of them."""
    for plus in (0, *range(-4, 5)):
        rest, made = number - plus, 1
        for prime, size in zip(primes, sizes, strict=True):
            while rest and rest % prime == 0:
                rest, made = rest // prime, made * size
        if not isinstance(made, int):
            return made * rest + plus
    return number
