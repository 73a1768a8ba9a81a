"""Splits a graph whose results are computed from one another, and compiles the subgraphs.

Input: a torch-level graph, the specs of its inputs, and a function that compiles one graph. Output:
one callable, and the specs of its outputs. graph/subgraphs.py says why gradients between results
need a split. A graph that cannot be split is compiled whole, with a warning that names the
gradients that are then unavailable.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.fx import GraphModule

from ..errors import CompileFailed, OperationFailed
from ..graph.node_meta import lines_of
from ..graph.subgraphs import Split, Subgraph, split_into_subgraphs
from ..graph.target_names import call_name
from ..late import late_names
from ..options import Options
from ..records import Recording
from ..runtime.examples import examples
from ..runtime.native import Step, split_graph
from ..spec import TensorSpec
from .lazy_backwards import warn_once
from .sizes import CompiledGraph

if TYPE_CHECKING:
    from ..graph.verify import verify
else:
    late_names(globals(), {"graph.verify": "verify"})

__all__ = ["compile_subgraphs"]

Examples = Callable[[], Sequence[torch.Tensor]]
Compile = Callable[[GraphModule, Sequence[TensorSpec], Examples], CompiledGraph]


def compile_subgraphs(
    gm: GraphModule,
    specs: Sequence[TensorSpec],
    make_inputs: Examples,
    asked: Container[int] | None,
    compile_: Compile,
    options: Options,
    record: Recording,
) -> CompiledGraph:
    """Compile a graph, in subgraphs if needed. `asked`: indices of the results that may be
    differentiated; None: all.
    """
    try:
        if (split := split_into_subgraphs(gm, asked)) is not None:
            return _compile_split(split, specs, compile_, options)
    except OperationFailed:
        raise
    except CompileFailed as failed:  # e.g. outputs share memory: compile one graph
        _refuse_hooks(gm, failed)
        compiled = compile_(gm, specs, make_inputs)
        _warn_one_autograd_node(record, str(failed))
        return compiled
    return compile_(gm, specs, make_inputs)


def _refuse_hooks(gm: GraphModule, failed: CompileFailed) -> None:
    """Raise OperationFailed if the frame registers hooks on a result, which would then be lost."""
    for node in gm.graph.nodes:
        if node.meta.get("hooked"):
            why = f"its gradient has a hook, and the graph cannot be split there: {failed}"
            line = next(iter(lines_of(node)), None)
            raise OperationFailed(call_name(node.target), why, node, line) from failed


def _warn_one_autograd_node(record: Recording, why: str) -> None:
    message = (
        f"results of {record.name} that are computed from one another are one autograd node, "
        f"so none can be differentiated with respect to another: {why}\n"
        "  hint: where such gradients are needed, put jitmagic.graph_break() between the results"
    )
    warn_once(record, "one node", message)


def _compile_split(
    split: Split, inputs: Sequence[TensorSpec], compile_: Compile, options: Options
) -> CompiledGraph:
    runs = []

    def gives(subgraph: Subgraph, taken: Sequence[TensorSpec]) -> Sequence[TensorSpec]:
        if options.verify:
            verify(subgraph.graph)
        made = compile_(subgraph.graph, taken, partial(examples, taken))
        runs.append(Step(made.run, *subgraph.slots))
        return made.outputs or ()

    specs = split.follow(inputs, gives)
    run = split_graph(len(inputs), runs, split.outputs)
    return CompiledGraph(run, [specs[slot] for slot in split.outputs], in_parts=True)
