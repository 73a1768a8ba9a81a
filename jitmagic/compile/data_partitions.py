"""A graph in which data decide sizes, compiled in pieces (graph/symbolic/data_split.py).

Comes in: a Trace, its pieces, and how a graph of fixed sizes is compiled. Goes out: one callable.
What makes a size runs as eager does, between the pieces; one behind it that has such sizes is an
executable for each vector of them (sizes.py), with one set of kernels, made for an example of these
sizes before the first call. Gradients flow from piece to piece, as each is an autograd node.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ..errors import OperationFailed
from ..graph.node_meta import changes_mode, devices_in, specs_in
from ..graph.operators.autocast import modes_kept
from ..graph.symbolic.data_split import Piece, Pieces
from ..options import Options
from ..records import Recording
from ..runtime.examples import examples
from ..runtime.native import Executable, split_graph, torch_call
from ..spec import TensorSpec
from ..trace.result import NOWHERE, GraphInput, Trace
from ..trace.varying.concrete import hints_of, places_of, with_hints
from .sized_joint import Builders
from .sizes import CompiledGraph, Sized

__all__ = ["compile_pieces", "results_of", "trace_of"]

Compile = Callable[..., CompiledGraph]


def compile_pieces(
    traced: Trace,
    split: Pieces,
    compile_static: Compile,
    builders: Builders,
    options: Options,
    record: Recording,
) -> CompiledGraph:
    """The executable. Raises what a stage raises."""
    specs = [entry.spec for entry in traced.inputs]
    runs = []
    for piece in split.pieces:
        part = piece.part
        own = trace_of(traced, piece, [specs[slot] for slot in part.inputs])
        if piece.by_data:
            run, made = _as_eager(own.graph), None
        elif places_of(own) and options.cuda_graphs and _is_on_gpu(own.graph):
            # Recorded for one size: a compile for each count would never pay.
            run, made = modes_kept(own.graph, own.graph.forward), None
        elif places_of(own):
            run, made = _for_all_sizes(own, piece, compile_static, builders, options, record), None
        else:
            inputs = partial(examples, [entry.spec for entry in own.inputs])
            run, made, _ = compile_static(own, inputs, record, None, piece.asked)
        runs.append((run, part.inputs, part.outputs, part.dead))
        specs += results_of(own) if made is None else made
    run = split_graph(len(traced.inputs), tuple(runs), split.outputs)
    return CompiledGraph(run, in_parts=True)


def _is_on_gpu(gm: GraphModule) -> bool:
    return any(device.type == "cuda" for device in devices_in(gm))


def trace_of(traced: Trace, piece: Piece, specs: Sequence[TensorSpec]) -> Trace:
    """The piece as a frame's whole graph. `specs`: what it is given, as it was made; what got a
    history by a write of a piece before has it here.
    """
    inputs = []
    for node, made in zip(piece.part.graph.graph.find_nodes(op="placeholder"), specs, strict=True):
        written = node.meta["spec"].requires_grad and not made.requires_grad
        spec = replace(made, requires_grad=True, is_leaf=False) if written else made
        node.meta["spec"] = spec
        inputs.append(GraphInput("between pieces", NOWHERE, spec))
    return replace(traced, graph=piece.part.graph, inputs=tuple(inputs), mutated=())


def results_of(own: Trace) -> list[TensorSpec]:
    """What its graph gives."""
    output = next(iter(reversed(own.graph.graph.nodes)))
    return [node.meta["spec"] for node in output.args[0]]  # type: ignore[union-attr]


def _for_all_sizes(
    own: Trace,
    piece: Piece,
    compile_static: Compile,
    builders: Builders,
    options: Options,
    record: Recording,
) -> Executable:
    made = Sized(own, partial(compile_static, asked=piece.asked), builders, options, record)
    hints = hints_of(own)
    inputs = examples([entry.spec for entry in with_hints(own).inputs])
    if not made.is_expected(hints):
        return made.run
    with record.stage(f"sizes {hints}") as stage:
        try:
            made.add(hints, inputs, record)
        except OperationFailed:
            raise
        except Exception as error:  # the program may never meet it, and compiles what it does meet
            stage.keep(f"are no example: {error}")
    return made.run


# ------------------------------------------------------------------------ what runs as eager does


def _as_eager(gm: GraphModule) -> Executable:
    """The calls, one after the other, without Python where their arguments are plain. Modes do not
    matter to integers.
    """
    nodes = list(gm.graph.nodes)
    if not any(spec.dtype.is_floating_point for node in nodes for spec in specs_in(node)):
        nodes = [node for node in nodes if not changes_mode(node)]
    slots = {node: n for n, node in enumerate(n for n in nodes if n.op == "placeholder")}
    inputs, calls, total = len(slots), [], len(slots)
    for node in nodes:
        if node.op in ("placeholder", "output"):
            continue
        whole = node.args[0] if node.target is operator.getitem else None
        if isinstance(whole, Node) and isinstance(whole.meta["spec"], tuple):
            slots[node] = slots[whole] + node.args[1]
            continue
        if (made := _as_call(node)) is None:
            return modes_kept(gm, gm.forward)
        run, read, results = made
        calls.append((run, tuple(slots[one] for one in read), results, ()))
        slots[node], total = total, total + results
    return split_graph(inputs, tuple(calls), tuple(slots[node] for node in nodes[-1].args[0]))


def _as_call(node: Node) -> tuple[Executable, list[Node], int] | None:
    """What runs the call, what it reads, and how many results it has; None: it takes what is no
    tensor and no constant.
    """
    given = (*node.args, *node.kwargs.values())
    read = list(dict.fromkeys(one for one in given if isinstance(one, Node)))
    spec = node.meta["spec"]
    if spec is None:
        return None
    results = len(spec) if isinstance(spec, tuple) else 1
    flat = isinstance(spec, TensorSpec) or all(isinstance(one, TensorSpec) for one in spec)
    if not flat or read != node.all_input_nodes or any(n.meta["spec"] is None for n in read):
        return None
    places = {one: (n,) for n, one in enumerate(read)}
    arguments = tuple(places[one] if isinstance(one, Node) else (one, None) for one in given)
    target: Any = node.target
    if isinstance(target, str):
        target = getattr(torch.Tensor, target)
    return torch_call(len(read), target, arguments, tuple(node.kwargs)), read, results
