"""Writes a captured graph with torch's own symbols, as an exported program holds it.

In: a Capture. Out: a flat torch.fx.Graph of functional ATen calls, whose nodes carry torch's fake
tensors as `meta["val"]`. jitmagic's sizes become SymInts of one ShapeEnv: a symbol for each dynamic
dimension, and nodes that compute the sizes which operations take as arguments.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.proxy import GraphAppendingTracer, Proxy

from ..compat.export import (
    FakeTensorMode,
    PythonReferenceAnalysis,
    ShapeEnv,
    expression_of,
    int_oo,
    symbolic_size,
    sympy_interp,
)
from ..errors import Unsupported, UsageError, UserLine
from ..graph.dispatch_mode import by_python_dispatcher
from ..graph.nested import map_nodes
from ..spec import contiguous_strides
from ..symbols.context import COMPARISONS
from ..symbols.expr import Expr, Integer, Leaf
from ..symbols.polynomial import application
from ..symbols.size import Size
from ..symbols.symbolic_numbers import Number, Symbol
from ..torch_types import OpOverload
from .call import ExampleCall
from .call import Leaf as CallLeaf
from .capture import FRAME, LARGEST, Capture, Place

__all__ = ["ExportGraph"]

aten = torch.ops.aten
_SIZES = (torch.SymInt, torch.SymFloat, torch.SymBool)
_IN_TORCH: Mapping[str, Callable[..., Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "//": operator.floordiv, "%": operator.mod, "**": operator.pow, "int **": operator.pow,
    "neg": operator.neg, "min": torch.sym_min, "max": torch.sym_max, "float": torch.sym_float,
    "sqrt": torch.sym_sqrt,
}  # fmt: skip


class ExportGraph:
    """A graph under construction, and the values that its nodes have for torch's tools."""

    def __init__(self, call: ExampleCall, capture: Capture) -> None:
        self.graph = Graph()
        self.env = ShapeEnv(duck_shape=False)
        self.mode = FakeTensorMode(shape_env=self.env, allow_non_fake_inputs=True)
        self._call, self._capture = call, capture
        self.sizes: dict[Place, torch.SymInt] = {}
        self._readers: dict[Any, Node] = {}  # torch's symbol -> the node that reads it
        self._computed: dict[Any, Any] = {}  # torch's expression -> its node or number
        self._known: dict[Expr, Any] = {}
        self._meta: dict[str, Any] = {}

    # -- sizes -----------------------------------------------------------------------------------

    def add_sizes(self) -> None:
        """Add a symbol for each place that varies, with the relations that the graph relies on."""
        found = self._capture
        for symbol, place in found.places.items():
            limits = found.ranges.get(symbol)
            if limits is not None and limits.low == limits.high:
                self._known[symbol] = int(limits.low)
            elif limits is not None:
                low, high = int(limits.low), None if limits.high >= LARGEST else int(limits.high)
                if (declared := self._call.leaves[place[0]].varying.get(place[1])) is not None:
                    low = max(low, declared.low)
                    highs = [n for n in (high, declared.high) if n is not None]
                    high = min(highs) if highs else None
                self._known[symbol] = self._add_size(place, low, high)
        for symbol, place in found.places.items():
            if symbol not in found.ranges:  # the symbol of the joint graph for the same size
                first = next(one for one, other in found.places.items() if other == place)
                self._known[symbol] = self._known[first]
        for op, left, right in found.relations:
            sides = self.in_torch(left), self.in_torch(right)
            if None not in sides:
                bool(COMPARISONS[op](*sides))  # torch's environment then knows it

    def _add_size(self, place: Place, low: int, high: int | None) -> torch.SymInt:
        n, dim = place
        value = self._call.leaves[n].value
        text = f"L['flat_args'][{n}]"
        if dim >= 0:
            text, value = f"{text}.size()[{dim}]", value.shape[dim]
        self.sizes[place] = symbolic_size(self.env, text, value, low, high)
        return self.sizes[place]

    def leaf(self, n: int) -> Any:
        """Return the value of an argument: a fake tensor, a SymInt or a constant.

        Raises UsageError if a size that is declared dynamic has to be a constant.
        """
        leaf = self._call.leaves[n]
        spec = self._capture.spec_of(n)
        if not isinstance(leaf.value, torch.Tensor):
            number = self.sizes.get((n, -1), leaf.value)
            self._check_extents(leaf, {-1: number})
            return number
        shape: list[Any] = list(leaf.value.shape)
        stride: list[Any] = list(leaf.value.stride())
        if spec is not None:
            shape, stride = (list(map(self.in_torch, part)) for part in (spec.shape, spec.stride))
        else:  # the program does not read it
            for dim, extent in leaf.varying.items():
                shape[dim] = self._add_size((n, dim), extent.low, extent.high)
            stride = list(contiguous_strides(tuple(shape)))
        self._check_extents(leaf, dict(enumerate(shape)))
        return self.empty(shape, stride, leaf.value)

    def _check_extents(self, leaf: CallLeaf, found: Mapping[int, Any]) -> None:
        for dim, extent in leaf.varying.items():
            if not extent.is_required:
                continue
            what = leaf.path if dim < 0 else f"dimension {dim} of {leaf.path}"
            if not isinstance(found[dim], torch.SymInt):
                raise UsageError(
                    f"{what} is declared dynamic, but the program is valid for {found[dim]} alone: "
                    "leave it out of dynamic=..., or write the program without a constant size"
                )
            expr = expression_of(found[dim])
            limits = self.env.var_to_range[expr] if expr.is_Symbol else None
            if limits is None or not extent.is_exact:
                continue
            low, high = limits.lower, limits.upper
            if low > extent.low or (high != int_oo and (extent.high is None or high < extent.high)):
                high = None if high == int_oo else int(high)
                raise UsageError(
                    f"{what} is declared dynamic from {extent.low} to {extent.high or 'any size'}, "
                    f"but the program is valid from {low} to {high or 'any size'}: "
                    f"declare {{{dim}: ({low}, {high})}}"
                )

    def in_torch(self, number: Any) -> Any:
        """Return a number of jitmagic's in torch's symbols; None for one with other symbols."""
        expr = number.expr if isinstance(number, Size) else number
        if not isinstance(expr, Expr):
            return expr
        if expr not in self._known:
            self._known[expr] = self._in_torch(expr)
        return self._known[expr]

    def _in_torch(self, expr: Expr) -> Any:
        match expr:
            case Integer(value) | Number(value):
                return value
            case Symbol():
                return None
            case Leaf() if not expr.parts:
                return None
        op, parts = application(expr)
        given = [self.in_torch(part) for part in parts]
        if op not in _IN_TORCH:
            raise Unsupported(f"{op} of a size that varies cannot be exported", "", None)
        return None if None in given else _IN_TORCH[op](*given)

    def read_sizes(self, nodes: Mapping[int, Node]) -> None:
        """Add the nodes that read the symbols of the leaves at these nodes."""
        for (n, dim), size in self.sizes.items():
            symbol = expression_of(size)
            if not symbol.is_Symbol or symbol in self._readers:
                continue
            node = nodes[n] if dim < 0 else self.call(aten.sym_size.int, nodes[n], dim)
            self._readers[symbol] = node

    def node_of(self, size: Any) -> Any:
        """Return the node, or the number, of a SymInt or SymFloat."""
        expr = expression_of(size)
        if expr not in self._computed:
            tracer = GraphAppendingTracer(self.graph)
            known = {symbol: Proxy(node, tracer) for symbol, node in self._readers.items()}
            last = self.graph._root.prev
            made = sympy_interp(PythonReferenceAnalysis, known, expr)
            while (last := last.next) is not self.graph._root:
                self._evaluate(last)
            self._computed[expr] = made.node if isinstance(made, Proxy) else made
        return self._computed[expr]

    # -- nodes -----------------------------------------------------------------------------------

    def placeholder(self, name: str, value: Any) -> Node:
        """Add an input. `value`: a fake tensor, SymInt or constant."""
        node = self.graph.placeholder(name)
        node.target = node.name  # torch.fx makes names of nodes unique, not parameters
        node.meta["val"] = value
        return node

    def fake(self, tensor: torch.Tensor) -> Any:
        """Return the fake tensor of a parameter, buffer or constant."""
        return self.mode.from_tensor(tensor, static_shapes=True)

    def empty(self, shape: Any, stride: Any, like: torch.Tensor) -> Any:
        """Return a fake tensor of these sizes, which may be SymInts."""
        with self.mode, self.env.suppress_guards():
            made = torch.empty_strided(shape, stride, dtype=like.dtype, device=like.device)
            return made.requires_grad_(like.requires_grad)

    def at(self, node: Node) -> None:
        """Attribute the nodes that follow to the lines and modules of a captured node."""
        lines: tuple[UserLine, ...] = node.meta.get("lines", ())
        lines = tuple(line for line in lines if line.filename != FRAME.__code__.co_filename)
        modules = [line.module for line in lines if line.module is not None]
        self._meta = {
            "stack_trace": "\n".join(f"  {line}" for line in lines),
            "nn_module_stack": {
                path: (path.partition(".")[2], kind) for path, kind in modules
            },
        }  # fmt: skip

    def call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Node:
        """Add a call; its arguments may hold sizes of jitmagic's."""
        args, kwargs = map_nodes((args, kwargs), lambda node: node, self._argument)
        name = target._opname if isinstance(target, OpOverload) else None
        node = self.graph.create_node("call_function", target, args, kwargs, name)
        self._evaluate(node)
        return node

    def _argument(self, value: Any) -> Any:
        if isinstance(value, Size):
            value = self.in_torch(value)
        return self.node_of(value) if isinstance(value, _SIZES) else value

    def _evaluate(self, node: Node) -> None:
        """Run a call on the values of its arguments."""
        args, kwargs = map_nodes((node.args, node.kwargs), lambda one: one.meta["val"])
        # The stages have shown that the graph is valid for all sizes in range. torch would add
        # guards for choices that change no result: a convolution's library for batches up to 15.
        with self.mode, torch.no_grad(), self.env.suppress_guards():
            try:
                node.meta["val"] = node.target(*args, **kwargs)  # type: ignore[operator]
            except RuntimeError:  # C++ that reads a size as an int; torch has some of it in Python
                with by_python_dispatcher(True):
                    node.meta["val"] = node.target(*args, **kwargs)  # type: ignore[operator]
        node.meta.update(self._meta)

    def item(self, tensor: Node) -> Any:
        """Return the number in a 0-dim tensor, as a symbol of torch's that no argument decides."""
        with self.mode, torch.no_grad(), self.env.ignore_fresh_unbacked_symbols():
            value = tensor.meta["val"].item()
        symbol = expression_of(value)
        if symbol not in self._readers:
            node = self.graph.call_function(aten._local_scalar_dense.default, (tensor,))
            node.meta.update(self._meta, val=value, unbacked_bindings={symbol: ()})
            self._readers[symbol] = node
        return value

    def copy(self, node: Node, made: Mapping[Node, Any]) -> Node:
        """Add a call of the captured graph."""
        self.at(node)
        target = node.target
        is_portable = isinstance(target, OpOverload) and target.namespace != "jitmagic"
        if not is_portable and target is not operator.getitem:
            lines: tuple[UserLine, ...] = node.meta.get("lines", ())
            name = getattr(target, "__name__", str(target))
            raise Unsupported(
                f"{name} is no operation of ATen, and only jitmagic could run it",
                "leave that part out of what is exported",
                lines[-1] if lines else None,
            )
        args, kwargs = map_nodes((node.args, node.kwargs), made.__getitem__, self._argument)
        return self.call(target, *args, **kwargs)  # type: ignore[arg-type]
