"""Makes one joint graph for all values of the floats that its calls read at run time.

Such a float is an argument that must be a Python number (dropout's p). In `x * n` the number is a
0-dim tensor of the graph, and needs none of this.

In: the trace function, and a torch-level graph with such numbers (graph/symbolic/number_ranges.py).
Out: the joint graph, where READS_NUMBER of a 0-dim tensor replaces each number. torch's C++ has no
symbolic floats, so the graph is traced twice, with numbers that no program contains. Where the two
traces differ, a float is a function of these numbers (symbols/probe.py). The joint graph
computes it in float64, as C++ does. Raises for differences that are not such a function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import Argument

from ..errors import CompileFailed, OperationFailed
from ..graph.node_meta import lines_of
from ..graph.symbolic.merge_graphs import GraphsDiffer, merge_graphs, same
from ..graph.symbolic.number_ranges import READS_NUMBER, number_in
from ..graph.target_names import call_name
from ..spec import TensorSpec
from ..symbols.expr import Expr
from ..symbols.interval import ANY_FLOAT
from ..symbols.probe import read_float, unlikely_float
from ..symbols.symbolic_numbers import Apply, Number, Symbol
from ..torch_types import AnyFunction, OpOverload
from .nodes import alias_root, erase_dead
from .recording.recorder import Sym
from .result import EagerSaved, Joint

__all__ = ["Numbers", "for_all_numbers"]

aten = torch.ops.aten
_NODES: Mapping[str, OpOverload] = {
    "+": aten.add.Tensor, "-": aten.sub.Tensor, "*": aten.mul.Tensor, "/": aten.div.Tensor,
    "neg": aten.neg.default, "sqrt": aten.sqrt.default,
}  # fmt: skip


class Numbers:
    """The values of the numbers in one trace, and the nodes that read them."""

    def __init__(self, which: int) -> None:
        self._which = which  # 0 in the first trace, 1 in the second
        self.values: dict[Symbol, float] = {}
        self.readers: list[Node] = []  # of the joint graph, in order

    def read(self, node: Node, tensor: Sym) -> float:
        """Return the number that the calls get in place of the tensor's value."""
        count = len(self.values)
        value = unlikely_float(node.meta["range"], count, self._which)
        self.values[Symbol(f"n{count}", float, ANY_FLOAT, "number")] = value
        reader = tensor.node.graph.call_function(READS_NUMBER, (tensor.node,))
        reader.meta.update(spec=None, lines=lines_of(node), traced_float=value)
        self.readers.append(reader)
        return value


def for_all_numbers(gm: GraphModule, trace: Callable[[Numbers | None], Joint]) -> Joint:
    """Return the joint graph that `trace` gives, with numbers in it. Raises what `trace` raises,
    and OperationFailed for a number whose use is not a recognised function.
    """
    nodes = gm.graph.find_nodes(op="call_function", target=number_in)
    if not nodes:
        return trace(None)
    first, second = Numbers(0), Numbers(1)
    joint, other = trace(first), trace(second)
    try:
        graph, copies = _joined(joint.module, other.module, first, second)
    except GraphsDiffer as error:
        node = nodes[0]
        user = next(iter(node.users), node)
        where = next(iter(lines_of(node)), None)
        why = f"a number that varies: {error}"
        raise OperationFailed(call_name(user.target), why, node, where) from error
    if (joint.grad_inputs, joint.outputs) != (other.grad_inputs, other.outputs):
        raise CompileFailed("autograd: gradients depend on the value of a number")
    eager_saved = dict(joint.eager_saved)
    for reader in first.readers:  # backward recomputes what it derives from the number
        node = alias_root(reader.all_input_nodes[0])
        eager_saved[node] = eager_saved.get(node, EagerSaved(0)) | EagerSaved(
            EagerSaved.ALL_TANGENTS
        )
    return replace(
        joint, module=graph, eager_saved={copies[node]: of for node, of in eager_saved.items()}
    )


def _joined(
    one: GraphModule, two: GraphModule, first: Numbers, second: Numbers
) -> tuple[GraphModule, Mapping[Node, Node]]:
    """Merge the two graphs; also map each node of the first graph to its copy."""
    symbols = list(first.values)
    values = [first.values, dict(zip(symbols, second.values.values(), strict=True))]
    makers = _Makers(dict(zip(symbols, first.readers, strict=True)))

    def join(a: object, b: object) -> object:
        if type(a) is not float or type(b) is not float or a == b:
            return same(a, b)
        expr = read_float(values, (a, b))
        if expr is None:
            raise GraphsDiffer(f"{a} and {b} are not a recognised function of it")
        return makers.node(expr)

    made = merge_graphs(one, two, join, makers.copies)
    for reader in first.readers:
        # This key kept unused readers alive until the graphs were merged.
        del makers.copies[reader].meta["traced_float"]
    erase_dead(made.graph)
    return made, makers.copies


class _Makers:
    """Creates nodes for functions of the numbers on demand."""

    def __init__(self, readers: Mapping[Symbol, Node]) -> None:
        self._readers = readers
        self.copies: dict[Node, Node] = {}
        self._tensors: dict[Expr, Node] = {}
        self._numbers: dict[Expr, Node] = {}

    def node(self, expr: Expr) -> Node:
        if expr not in self._numbers:
            tensor = self._tensor(expr)
            self._numbers[expr] = self._call(READS_NUMBER, (tensor,), None)
        return self._numbers[expr]

    def _tensor(self, expr: Expr) -> Node:
        if isinstance(expr, Symbol):
            return self.copies[self._readers[expr]].all_input_nodes[0]
        if expr not in self._tensors:
            self._tensors[expr] = self._computed(expr)
        return self._tensors[expr]

    def _computed(self, expr: Expr) -> Node:
        assert isinstance(expr, Apply)
        args = tuple(
            one.value if isinstance(one, Number) else self._tensor(one) for one in expr.args
        )
        spec = next(one.meta["spec"] for one in args if isinstance(one, Node))
        if expr.op == "single":
            rounded = self._cast(args[0], torch.float32)  # type: ignore[arg-type]
            return self._cast(rounded, torch.float64)
        if not isinstance(args[0], Node):
            return self._of_constant(expr.op, args[0], args[1], spec)  # type: ignore[arg-type]
        return self._call(_NODES[expr.op], args, spec)

    def _cast(self, node: Node, dtype: torch.dtype) -> Node:
        spec = replace(node.meta["spec"], dtype=dtype)
        return self._call(aten._to_copy.default, (node,), spec, dtype=dtype)

    def _of_constant(self, op: str, number: float, node: Node, spec: TensorSpec) -> Node:
        """Record `1 - p` or `1 / p`."""
        if op == "-":
            return self._call(aten.rsub.Scalar, (node, number), spec)
        inverse = self._call(aten.reciprocal.default, (node,), spec)
        return inverse if number == 1.0 else self._call(aten.mul.Tensor, (inverse, number), spec)

    def _call(
        self,
        target: AnyFunction,
        args: tuple[Node | float, ...],
        spec: TensorSpec | None,
        **kwargs: Argument,
    ) -> Node:
        graph = next(iter(self.copies.values())).graph
        made = graph.call_function(target, args, kwargs)
        made.meta.update(spec=spec, lines=())
        return made
