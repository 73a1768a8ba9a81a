"""A graph in which data decide sizes, compiled in pieces (graph/data_split.py).

Comes in: a Trace, its pieces, and how a graph of fixed sizes is compiled. Goes out: one callable.
What makes a size runs as eager does, between the pieces; one behind it that has such sizes is an
executable for each vector of them (sizes.py), with one set of kernels, made for an example of these
sizes before the first call. Gradients flow from piece to piece, as each is an autograd node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from .errors import OperationFailed
from .graph.autocast import modes_kept
from .graph.concrete import spec_at
from .graph.data_split import Piece, Pieces
from .options import Options
from .records import Recording
from .runtime.examples import examples
from .runtime.native import split_graph
from .sizes import Compiled, Sized
from .spec import TensorSpec
from .symbols.expr import Expr
from .trace.concrete import hints_of, places_of
from .trace.result import GraphInput, Trace

__all__ = ["compile_pieces"]

Executable = Callable[..., tuple[Any, ...]]
Compile = Callable[..., Compiled]


def compile_pieces(
    traced: Trace,
    split: Pieces,
    compile_static: Compile,
    options: Options,
    record: Recording,
) -> Executable:
    """The executable. Raises what a stage raises."""
    specs = [entry.spec for entry in traced.inputs]
    runs = []
    for piece in split.pieces:
        part = piece.part
        own = _trace_of(traced, piece, [specs[slot] for slot in part.inputs])
        if piece.by_data:
            run, made = modes_kept(own.graph, own.graph.forward), None
        elif places_of(own):
            run, made = _for_all_sizes(own, piece, compile_static, options, record), None
        else:
            inputs = partial(examples, [entry.spec for entry in own.inputs])
            run, made = compile_static(own, inputs, record, None, piece.asked)
        runs.append((run, part.inputs, part.outputs, part.dead))
        specs += _results(own) if made is None else made
    return split_graph(len(traced.inputs), tuple(runs), split.outputs)


def _trace_of(traced: Trace, piece: Piece, specs: Sequence[TensorSpec]) -> Trace:
    """The piece as a frame's whole graph."""
    placeholders = piece.part.graph.graph.find_nodes(op="placeholder")
    for node, spec in zip(placeholders, specs, strict=True):
        node.meta["spec"] = spec
    source = traced.inputs[0].source
    inputs = tuple(GraphInput("between pieces", source, spec) for spec in specs)
    return replace(traced, graph=piece.part.graph, inputs=inputs, mutated=())


def _results(own: Trace) -> list[TensorSpec]:
    output = next(iter(reversed(own.graph.graph.nodes)))
    return [node.meta["spec"] for node in output.args[0]]  # type: ignore[union-attr]


def _for_all_sizes(
    own: Trace, piece: Piece, compile_static: Compile, options: Options, record: Recording
) -> Executable:
    made = Sized(own, partial(compile_static, asked=piece.asked), options, record)
    hints = hints_of(own)
    at_hints: dict[Expr, int] = dict(zip(places_of(own), hints, strict=True))
    inputs = examples([spec_at(entry.spec, at_hints) for entry in own.inputs])
    with record.stage(f"sizes {hints}") as stage:
        try:
            made.add(hints, inputs, record)
        except OperationFailed:
            raise
        except Exception as error:  # the program may never meet it, and compiles what it does meet
            stage.keep(f"are no example: {error}")
    return made.run
