"""Compiles a graph with data-dependent sizes in partitions (graph/symbolic/data_split.py).

Input: a Trace, its partitions, and a function that compiles a graph of fixed sizes. Output: one
callable. Calls that create a data-dependent size run in eager between the partitions. A partition
that uses such sizes has an executable for each size tuple (sizes.py), with one set of kernels,
built for example sizes before the first call. Each partition is an autograd node, so gradients flow
between them.

A control-flow node (graph/targets/control_flow.py) runs in eager too, and calls the executables
of its branches or loop bodies, each compiled like a graph of its own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch.fx import GraphModule, Node

from ..autograd.nodes import node_spec, result_nodes
from ..errors import OperationFailed
from ..graph.autocast_mode import preserving_autocast, restoring_modes
from ..graph.node_meta import changes_mode, devices_in, specs_in, symbols_in
from ..graph.symbolic.data_split import DataPartition, DataPartitions, split_at_data
from ..graph.targets.control_flow import Body, ControlFlow
from ..lazy_dataclass import dataclass, replace
from ..options import Options
from ..records import Recording
from ..runtime.examples import examples
from ..runtime.native import Step, split_graph, torch_call
from ..spec import TensorSpec
from ..torch_types import Executable
from ..trace.result import NOWHERE, GraphInput, Trace
from ..trace.varying.concrete import hints_of, places_of, with_hints
from .sized_backwards import Builders
from .sizes import CompiledGraph, SizeCompiler

__all__ = ["compile_partitions", "has_all_sizes", "results_of", "trace_of", "trace_of_body"]

Compile = Callable[..., CompiledGraph]


def compile_partitions(
    traced: Trace,
    split: DataPartitions,
    compile_static: Compile,
    builders: Builders,
    options: Options,
    record: Recording,
) -> CompiledGraph:
    """Return the executable that runs the partitions in order. Raises what a stage raises."""
    compiler = _PartCompiler(compile_static, builders, options, record)
    specs = [entry.spec for entry in traced.inputs]
    runs: list[Executable | None] = []
    eager: dict[int, Trace] = {}
    for piece in split.partitions:
        own = trace_of(traced, piece, [specs[slot] for slot in piece.part.inputs])
        if piece.data_dependent:
            eager[len(runs)] = own
            runs.append(None)
            specs += results_of(own)
            continue
        compiled = compiler.compile(own, piece.asked)
        runs.append(compiled.run)
        specs += results_of(own) if compiled.outputs is None else compiled.outputs
    # Bodies come last, as diagnostics expect (diagnostics/builds.py).
    for place, own in eager.items():
        _compile_bodies(own, compiler)
        runs[place] = _as_eager(own.graph)
    steps = [
        Step(run, piece.part.inputs, piece.part.outputs, piece.part.dead)
        for run, piece in zip(runs, split.partitions, strict=True)
        if run is not None
    ]
    return CompiledGraph(split_graph(len(traced.inputs), steps, split.outputs), in_parts=True)


@dataclass(frozen=True, slots=True)
class _PartCompiler:
    """Compiles parts of a frame, for fixed sizes or for all."""

    compile_static: Compile
    builders: Builders
    options: Options
    record: Recording

    def compile(self, own: Trace, asked: frozenset[int]) -> CompiledGraph:
        if not places_of(own):
            inputs = partial(examples, [entry.spec for entry in own.inputs])
            return self.compile_static(own, inputs, self.record, asked)
        if self.options.cuda_graphs and _is_on_gpu(own.graph):
            # A CUDA graph is recorded for one size: one compile per data-dependent size never pays.
            return CompiledGraph(restoring_modes(own.graph, own.graph.forward))
        return CompiledGraph(
            _for_all_sizes(
                own, asked, self.compile_static, self.builders, self.options, self.record
            )
        )

    def compile_body(self, own: Trace) -> Executable:
        """Return the executable of a branch or loop body, whose results the program cannot
        differentiate with respect to each other.
        """
        if (split := split_at_data(own.graph)) is not None:
            parts = self.compile_static, self.builders, self.options, self.record
            return compile_partitions(own, split, *parts).run
        if not has_all_sizes(own):
            return restoring_modes(own.graph, own.graph.forward)
        return self.compile(own, frozenset()).run


def _compile_bodies(own: Trace, compiler: _PartCompiler) -> None:
    """Give each control-flow node of a part the executables of its graphs."""
    # A CUDA graph returns the same memory each time, which the next step of a loop would overwrite.
    options = replace(compiler.options, cuda_graphs=False)
    static = partial(compiler.compile_static, options=options)
    inner = replace(compiler, options=options, compile_static=static)
    with torch.set_grad_enabled(torch.is_grad_enabled()), preserving_autocast():
        for node in own.graph.graph.nodes:
            if changes_mode(node):
                node.target(*node.args)
            elif isinstance(node.target, ControlFlow):
                bodies = node.target.bodies
                node.target = node.target.with_runs(
                    [inner.compile_body(trace_of_body(own, body)) for body in bodies]
                )


def has_all_sizes(own: Trace) -> bool:
    """Return whether each symbolic size in a body is one of its inputs' sizes."""
    read = {symbol for node in own.graph.graph.nodes for symbol in symbols_in(node)}
    return read <= places_of(own).keys()


def trace_of_body(traced: Trace, body: Body) -> Trace:
    """Return a branch or loop body as a Trace of its own."""
    inputs = tuple(
        GraphInput("in a body", NOWHERE, node.meta["spec"])
        for node in body.graph.graph.find_nodes(op="placeholder")
    )
    return replace(traced, graph=body.graph, inputs=inputs, mutated=())


def _is_on_gpu(gm: GraphModule) -> bool:
    return any(device.type != "cpu" for device in devices_in(gm))


def trace_of(traced: Trace, piece: DataPartition, specs: Sequence[TensorSpec]) -> Trace:
    """Return the partition as a Trace of its own, as if it were the whole graph of a frame.

    `specs` describe its inputs when they were created. An input to which an earlier partition has
    written a tensor with a history requires grad here.
    """
    inputs = []
    for node, made in zip(piece.part.graph.graph.find_nodes(op="placeholder"), specs, strict=True):
        written = node.meta["spec"].requires_grad and not made.requires_grad
        spec = replace(made, requires_grad=True, is_leaf=False) if written else made
        node.meta["spec"] = spec
        inputs.append(GraphInput("between partitions", NOWHERE, spec))
    return replace(traced, graph=piece.part.graph, inputs=tuple(inputs), mutated=())


def results_of(own: Trace) -> list[TensorSpec]:
    """Return the specs of the results of a trace's graph."""
    return [node_spec(node) for node in result_nodes(own.graph)]


def _for_all_sizes(
    own: Trace,
    asked: frozenset[int],
    compile_static: Compile,
    builders: Builders,
    options: Options,
    record: Recording,
) -> Executable:
    made = SizeCompiler(own, partial(compile_static, asked=asked), builders, options, record)
    hints = hints_of(own)
    inputs = examples([entry.spec for entry in with_hints(own).inputs])
    if not made.is_expected(hints):
        return made.run
    with record.stage(f"sizes {hints}") as stage:
        try:
            made.add(hints, inputs, record)
        except OperationFailed:
            raise
        except Exception as error:  # example sizes: no call of the program need have them
            stage.keep(f"failed as an example: {error}")
    return made.run


# ------------------------------------------------------------------------ what runs as eager does


def _as_eager(gm: GraphModule) -> Executable:
    """Return an executable that runs the calls op by op, natively if their arguments are tensors
    and constants. If all values are integers, changes of grad mode and autocast are dropped.
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
            return restoring_modes(gm, gm.forward)
        run, read, results = made
        calls.append(Step(run, tuple(slots[one] for one in read), results))
        slots[node], total = total, total + results
    return split_graph(inputs, calls, tuple(slots[node] for node in nodes[-1].args[0]))


def _as_call(node: Node) -> tuple[Executable, list[Node], int] | None:
    """Return (executable, inputs, number of results) of a call; None if an argument is neither a
    tensor nor a constant.
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
    target = node.target
    if isinstance(target, str):
        target = getattr(torch.Tensor, target)
    return torch_call(len(read), target, arguments, tuple(node.kwargs)), read, results
