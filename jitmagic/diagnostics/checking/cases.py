"""cases: captures the graphs of one call with their input tensors, and runs functions on them.

Input: a function and its arguments. Output: a `Case` for each graph, which minify shrinks and
passport compares, and the results of a function on a case's tensors: returned tensors, inputs after
the call, and gradients.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Interpreter, Node

from ...api import handle_of, tagged_copy, tagged_handle
from ...autograd.nodes import copy_graph
from ...guards.source import describe
from ...lazy_dataclass import dataclass, field, fields, replace
from ...options import Options, make_options
from ...torch_types import AnyFunction, Kwargs
from ...trace.result import (
    BuildDict,
    BuildList,
    BuildTuple,
    FromGraph,
    FromSource,
    Recipe,
    Return,
    SetAttr,
    Trace,
)
from ..builds import operations_of
from ..whole_call import whole

__all__ = [
    "AFTERWARDS",
    "CapturedCall",
    "Case",
    "Results",
    "Values",
    "as_tensor",
    "attributes_of",
    "capture_call",
    "changed_options",
    "chosen_options",
    "collect_results",
    "copy_of",
    "lifted",
    "name_of",
    "random_tensor",
    "result_labels",
    "same_random_numbers",
    "source_of",
    "with_outputs",
    "without_waste",
]  # fmt: skip

AFTERWARDS = ", after the call"  # suffix of the name for the value of an input after the call
_KEYWORDS = ("backend", "mode", "fullgraph", "dynamic")
# Options that depend on the machine and are left out of scripts.
_MACHINE_OPTIONS = (
    "background",
    "cache_dir",
    "cache_size",
    "compile_seconds",
    "cxx",
    "persist",
    "shared_caches",
    "verify",
)


def changed_options(options: Options) -> dict[str, object]:
    """Return the options that differ from the defaults of their mode, as keywords of `jit`."""
    plain = Options()
    implied = replace(make_options(plain, mode=options.mode), mode=plain.mode)
    changed = {f.name: getattr(options, f.name) for f in fields(Options)
             if getattr(options, f.name) != getattr(implied, f.name)
             and f.name not in _MACHINE_OPTIONS}  # fmt: skip
    own = {name: changed.pop(name) for name in tuple(changed) if name not in _KEYWORDS}
    return {**changed, "options": own} if own else changed


def chosen_options(fn: object, options: Kwargs) -> Kwargs:
    """Return these keywords of `jit`; without any, those that `fn` is tagged with."""
    known = handle_of(fn)
    return options or (changed_options(known.options) if known is not None else {})


def name_of(fn: object) -> str:
    """Return the name under which reports show a function or module."""
    known = handle_of(fn)
    return known.label if known is not None else getattr(fn, "__name__", type(fn).__name__)


@dataclass(frozen=True)
class CapturedCall:
    """One call whose graphs ran as eager: its result, and graphs with copies of their inputs."""

    cases: tuple[Case, ...]
    traces: tuple[Trace, ...]
    result: object


def capture_call(
    fn: AnyFunction, args: Sequence[object], kwargs: Mapping[str, object]
) -> CapturedCall:
    """Call `fn` once, with all its side effects, and capture its graphs."""
    graphs: list[tuple[GraphModule, list[Tensor]]] = []

    def collect(gm: GraphModule, example: Sequence[Tensor]) -> AnyFunction:
        graphs.append((gm, [copy_of(tensor) for tensor in example]))
        return gm.forward

    tagged = tagged_copy(fn, {"backend": collect})
    result = whole(tagged(*args, **kwargs))
    found = (record.result("trace") for record in tagged_handle(tagged).journal)
    traces = tuple(trace for trace in found if isinstance(trace, Trace))
    labels = result_labels(traces[0]) if len(traces) == len(graphs) == 1 else {}
    cases = tuple(
        Case(lifted(graph), (*inputs, *map(copy_of, attributes_of(graph))), labels)
        for graph, inputs in graphs
    )
    return CapturedCall(cases, traces, result)


def result_labels(trace: Trace) -> dict[int, str]:
    """Return by index the name of each graph result in the user's program: `result['loss']`."""
    labels: dict[int, str] = {}
    for effect in trace.effects:
        if isinstance(effect, SetAttr) and isinstance(effect.object, FromSource):
            _label(effect.value, f"{describe(effect.object.source)}.{effect.name}", labels)
    if isinstance(trace.exit, Return):
        _label(trace.exit.value, "result", labels)
    return labels


def _label(recipe: Recipe, path: str, labels: dict[int, str]) -> None:
    match recipe:
        case FromGraph(index=index):
            labels[index] = path
        case BuildTuple(items=items) | BuildList(items=items):
            for number, item in enumerate(items):
                _label(item, f"{path}[{number}]", labels)
        case BuildDict(keys=keys, values=values):
            for key, value in zip(keys, values, strict=True):
                _label(value, f"{path}[{getattr(key, 'value', '...')!r}]", labels)


@contextmanager
def same_random_numbers() -> Iterator[None]:
    """Restore torch's random generators afterwards."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices):
        yield


def copy_of(tensor: Tensor) -> Tensor:
    """Return a leaf tensor with the same values, strides and requires_grad."""
    shape, stride, dtype = tensor.shape, tensor.stride(), tensor.dtype
    fresh = torch.empty_strided(shape, stride, dtype=dtype, device=tensor.device)
    with torch.no_grad():
        if not any(s == 0 and n > 1 for n, s in zip(shape, stride, strict=True)):
            fresh.copy_(tensor)
        else:
            fresh = tensor.detach().clone()
    return fresh.requires_grad_(tensor.requires_grad)


Results = dict[str, Tensor | None]


@dataclass(frozen=True)
class Case:
    """A graph without attributes, and input tensors for it.

    labels: by index, names of its results in the user's program, if known
    """

    graph: Graph
    inputs: tuple[Tensor, ...]
    labels: Mapping[int, str] = field(default_factory=dict)

    @property
    def size(self) -> tuple[int, int]:
        elements = sum(tensor.numel() for tensor in self.inputs)
        return len(operations_of(self.graph)), elements

    @property
    def names(self) -> list[str]:
        """The names of the inputs."""
        return [node.name for node in self.graph.find_nodes(op="placeholder")]

    @property
    def freed(self) -> frozenset[int]:
        """Indices of results whose autograd graph was freed by a backward inside the graph."""
        results = self.graph.output_node().args[0]
        flat = results if isinstance(results, tuple | list) else (results,)
        return frozenset(
            n for n, node in enumerate(flat) if isinstance(node, Node) and node.meta.get("freed")
        )

    def function(self) -> AnyFunction:
        source, names = source_of(self.graph, "repro")
        exec(compile(source, "<jitmagic repro>", "exec"), names)
        repro: AnyFunction = names["repro"]
        return repro


def source_of(graph: Graph, name: str) -> tuple[str, dict[str, Any]]:
    """Return the graph as the source of a plain function, and the values of its global names."""
    code = graph.python_code("self")
    text = code.src.strip()
    body = text[text.index("def forward(self") :]
    head = body.replace("def forward(self, ", f"def {name}(", 1)
    return head.replace("def forward(self)", f"def {name}()", 1), dict(code.globals)


def collect_results(
    fn: AnyFunction,
    inputs: Sequence[Tensor],
    names: Sequence[str] = (),
    freed: Container[int] = (),
) -> Results:
    """Run `fn` on copies of the inputs; return results, inputs after the call, and gradients.

    names: names of the inputs, for the keys of the result
    freed: indices of results that cannot be differentiated, as `fn` ran a backward through them
    """
    names = names or [f"input {i}" for i in range(len(inputs))]
    own = [copy_of(tensor) for tensor in inputs]
    torch.manual_seed(0)
    flat = _flat(fn(*own))
    results = [r for r in flat if isinstance(r, Tensor)]
    kept = [r for n, r in enumerate(flat) if isinstance(r, Tensor) and n not in freed]
    wanted = [r for r in kept if r.requires_grad]
    results_by_name: Results = {f"result {i}": r.detach().clone() for i, r in enumerate(results)}
    results_by_name |= {
        f"{n}{AFTERWARDS}": x.detach().clone() for n, x in zip(names, own, strict=True)
    }
    leaves = {n: x for n, x in zip(names, own, strict=True) if x.requires_grad}
    if not wanted or not leaves:
        return results_by_name
    # Random tangents, as ones would hide errors: with them the gradient of a softmax or a norm is
    # zero.
    uneven = [random_tensor(r.shape, r.stride(), r.dtype, str(r.device)) for r in wanted]
    gradients = torch.autograd.grad(wanted, list(leaves.values()), uneven, allow_unused=True)
    return results_by_name | {f"gradient of {n}": g for n, g in zip(leaves, gradients, strict=True)}


def _flat(result: object) -> list[object]:
    if isinstance(result, (tuple, list)):
        return [leaf for part in result for leaf in _flat(part)]
    return [result]


def as_tensor(leaf: Any) -> Any:
    """Return a number as a tensor, so that it can be compared; return anything else unchanged."""
    if isinstance(leaf, int) and not -(2**63) <= leaf < 2**63:
        return leaf
    return torch.tensor(leaf) if isinstance(leaf, (bool, int, float)) else leaf


def attributes_of(gm: GraphModule) -> tuple[Tensor, ...]:
    """Return the tensors that the graph reads as attributes, in the input order of `lifted`."""
    targets = dict.fromkeys(n.target for n in gm.graph.nodes if n.op == "get_attr")
    return tuple(operator.attrgetter(str(target))(gm) for target in targets)


def lifted(gm: GraphModule) -> Graph:
    """Return the graph with its attributes as further inputs."""
    graph = copy_graph(gm.graph)
    holders = graph.find_nodes(op="placeholder")
    placeholders: dict[object, Node] = {}
    last = holders[-1] if holders else None
    for node in [n for n in graph.nodes if n.op == "get_attr"]:
        if node.target not in placeholders:
            with graph.inserting_after(last) if last else graph.inserting_before():
                last = placeholders[node.target] = graph.placeholder(f"c{len(placeholders)}")
        node.replace_all_uses_with(placeholders[node.target])
        graph.erase_node(node)
    return graph


def with_outputs(case: Case, names: Sequence[str]) -> Case:
    """Return the case reduced to the values with these names and everything they depend on."""
    graph = copy_graph(case.graph)
    nodes = {node.name: node for node in graph.nodes}
    graph.output_node().args = (tuple(nodes[name] for name in names),)
    return without_waste(graph, case.inputs)


def without_waste(graph: Graph, inputs: Sequence[Tensor]) -> Case:
    """Remove unused operations and inputs; in-place operations on used values stay."""
    graph.eliminate_dead_code(is_impure_node=lambda node: node.op in ("placeholder", "output"))
    kept = []
    for node, tensor in zip(list(graph.find_nodes(op="placeholder")), inputs, strict=True):
        if node.users:
            kept.append(tensor)
        else:
            graph.erase_node(node)
    return Case(graph, tuple(kept))


class Values(Interpreter):
    """Runs the graph of a case as eager and records the value of every node."""

    def __init__(self, case: Case) -> None:
        super().__init__(GraphModule({}, copy(case.graph)))
        self.case = case
        self.values: dict[str, Any] = {}
        self.run(*(copy_of(tensor) for tensor in case.inputs))

    def run_node(self, node: Node) -> object:
        self.values[node.name] = value = super().run_node(node)
        return value

    def tensor_operations(self) -> list[Node]:
        """Return the operations of the case that have a tensor as result."""
        nodes = operations_of(self.case.graph)
        return [node for node in nodes if isinstance(self.values[node.name], Tensor)]


def random_tensor(
    shape: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    where: str = "cpu",
    requires_grad: bool = False,
    low: int = 0,
    high: int = 0,
    scale: float = 1.0,
) -> Tensor:
    """Return a random tensor drawn with seed 0, so that it is always the same.

    Floats are standard normal times `scale`; integers are uniform from `low` to `high` inclusive.
    """
    generator = torch.Generator().manual_seed(0)
    if dtype == torch.bool:
        values = torch.randint(0, 2, tuple(shape), generator=generator)
    elif dtype.is_floating_point or dtype.is_complex:
        values = torch.randn(tuple(shape), generator=generator, dtype=torch.float32) * scale
    else:
        values = torch.randint(low, high + 1, tuple(shape), generator=generator)
    # An expanded dimension (stride 0) has one element in memory.
    held = [1 if s == 0 else n for n, s in zip(shape, stride, strict=True)]
    fresh = torch.empty_strided(held, tuple(stride), dtype=dtype, device=where)
    if fresh.numel():
        fresh.copy_(values[tuple(slice(n) for n in held)])
    return fresh.as_strided(tuple(shape), tuple(stride)).requires_grad_(requires_grad)
