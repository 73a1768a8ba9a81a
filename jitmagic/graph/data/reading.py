"""Makes graphs, and structures with graphs in them, of their data.

Input: what writing.py returns. Output: equal graphs, with names, order and metas, whose code is
generated when they first run (lazy_module.py). Contexts and symbols are new objects in each call of
`restored`, which never equal those of another trace. Nothing is checked: the reader of a file has
checked that the data are what was written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ...errors import CannotKeep
from ...symbols.expr import Expr
from ...symbols.predicates import fresh_symbol, is_fresh
from ...symbols.size import Size, SizeFloat
from ...symbols.symbolic_numbers import Symbol
from ..fresh_meta import META
from ..lazy_module import LazyModule, add_node
from ..operators.operator_library import DEFINERS
from ..symbolic.sym_node import as_torch, sizes_in
from ..targets.attention_operators import number_of
from .forms import (
    FormData,
    GraphData,
    LiveData,
    MetaTensor,
    NamedObject,
    NodeRef,
    ObjectData,
    OperatorData,
    Shared,
    SizeData,
    Stored,
    TensorData,
)
from .names import object_at
from .objects import maker_of
from .writing import PLAIN

__all__ = ["graph_of", "restored"]


Live = Callable[[Any], object]


def graph_of(data: GraphData, live: Live | None = None) -> GraphModule:
    """Return the graph of data that `graph_data` returned. `live` returns the live objects of their
    data. The caller sets the checks of guards, as for a new graph.
    """
    return _Reader(data.shared, live).graph(data)


def restored(data: Stored, live: Live | None = None) -> Any:
    """Return the structure of data that `stored` returned."""
    return _Reader(data.shared, live).value(data.value)


class _Reader:
    def __init__(self, shared: Sequence[ObjectData], live: Live | None) -> None:
        self._shared, self._live_of = shared, live
        self._objects: dict[int, object] = {}  # those of `shared` that exist, by index
        self._nodes: list[Node] = []  # of the graph that is being made
        self._known: dict[int, Any] = {}  # by id of data, which `shared` and the caller hold
        self._exprs: dict[Expr, Expr] = {}
        self._memory: dict[int, torch.Tensor] = {}  # the first tensor of each storage

    def graph(self, data: GraphData) -> GraphModule:
        constants = {name: self.value(value) for name, value in data.constants}
        graph, outer, self._nodes = Graph(), self._nodes, []
        value, nodes = self.value, self._nodes
        for one in data.nodes:
            target, args = one.target, value(one.args)
            if type(target) is not str:
                target = value(target)
            kwargs = value(one.kwargs) if one.kwargs else one.kwargs
            node = add_node(graph, one.op, target, args, kwargs, one.name)
            if node.name != one.name:
                node.name = one.name
            # Not by assignment, for which torch runs 20 lines of Python.
            node.meta.update([(name, value(item)) for name, item in one.meta.items()])
            nodes.append(node)
        self._nodes = outer
        return LazyModule(constants, graph, class_name=data.name)

    def value(self, data: Any) -> Any:
        """Return the value that data stand for."""
        kind = type(data)
        if kind in PLAIN:
            return data
        if (read := _READERS.get(kind)) is not None:
            return read(self, data)
        known = self._known
        if (key := id(data)) not in known:
            known[key] = self._of_object(data)
        return known[key]

    def _of_object(self, data: Any) -> Any:
        if isinstance(data, Expr):
            return self._expr(data)
        if isinstance(data, tuple) and hasattr(data, "_fields"):
            return self._tuple(data)
        if is_dataclass(data) and not isinstance(data, type):
            before = {one.name: getattr(data, one.name) for one in fields(data)}
            after = {name: self.value(item) for name, item in before.items()}
            changed = {name: item for name, item in after.items() if item is not before[name]}
            return replace(data, **changed) if changed else data
        return data

    # -- structures ------------------------------------------------------------------------------

    def _tuple(self, data: Any) -> Any:
        made = [self.value(item) for item in data]
        if all([one is other for one, other in zip(made, data, strict=True)]):
            return data
        return tuple(made) if type(data) is tuple else type(data)._make(made)

    def _list(self, data: list[object]) -> list[object]:
        return [self.value(item) for item in data]

    def _dict(self, data: dict[object, object]) -> dict[object, object]:
        return {self.value(key): self.value(item) for key, item in data.items()}

    def _slice(self, data: slice) -> slice:
        return slice(*map(self.value, (data.start, data.stop, data.step)))

    def _set(self, data: Any) -> Any:
        return type(data)(map(self.value, data))

    # -- objects ---------------------------------------------------------------------------------

    def _node(self, data: NodeRef) -> Node:
        return self._nodes[data.index]

    def _of_shared(self, data: Shared) -> Any:
        if data.index not in self._objects:
            self._objects[data.index] = self._object(self._shared[data.index])
        return self._objects[data.index]

    def _object(self, data: ObjectData) -> object:
        return maker_of(data.cls)(*map(self.value, data.parts))

    def _operator(self, data: OperatorData) -> object:
        if data.make not in DEFINERS:
            raise CannotKeep(f"{data.make} defines no operator")
        return data.make(*map(self.value, data.args))

    def _form(self, data: FormData) -> int:
        return number_of(self.value(data.form))

    def _live(self, data: LiveData) -> object:
        if self._live_of is None:
            raise CannotKeep("the graph has live objects of another process")
        return self._live_of(data.data)

    def _named(self, data: NamedObject) -> object:
        if (found := object_at(data.module, data.name)) is None:
            raise CannotKeep(f"{data.module} has no {data.name}")
        return found

    # -- sizes and tensors -----------------------------------------------------------------------

    def _size(self, data: SizeData) -> Size:
        cls = SizeFloat if data.is_float else Size
        return cls(self._expr(data.expr), self._of_shared(data.context))

    def _expr(self, expr: Expr) -> Expr:
        if expr not in self._exprs:
            self._exprs[expr] = self._new_expr(expr)
        return self._exprs[expr]

    def _new_expr(self, expr: Any) -> Any:
        if isinstance(expr, Symbol) and is_fresh(expr):
            origin: Any = expr.origin
            return fresh_symbol(expr.name, expr.range, self._expr(origin[0]))
        parts = [getattr(expr, name) for name in type(expr).__match_args__]
        return type(expr)(*map(self.value, parts))

    def _tensor(self, data: TensorData) -> torch.Tensor:
        return data.tensor

    def _meta(self, data: MetaTensor) -> torch.Tensor:
        layout = [self.value(part) for part in (data.shape, data.stride, data.offset)]
        shape, stride = (tuple(map(as_torch, part)) for part in layout[:2])
        offset = as_torch(layout[2])
        if data.memory not in self._memory:
            made = torch.empty_strided(shape, stride, dtype=data.dtype, device=META)
            self._memory[data.memory] = made
        first = self._memory[data.memory]
        if next(sizes_in([first, layout]), None) is not None:  # `set_` would compare sizes
            first = first if first.dtype is data.dtype else first.view(data.dtype)
            made = first.as_strided(shape, stride, offset)
        else:
            made = torch.empty(0, dtype=data.dtype, device=META)
            made.set_(first.untyped_storage(), offset, shape, stride)  # type: ignore[call-overload]
        return made.requires_grad_(data.requires_grad)


_READERS: dict[type, Callable[[_Reader, Any], object]] = {
    NodeRef: _Reader._node,
    tuple: _Reader._tuple,
    list: _Reader._list,
    dict: _Reader._dict,
    slice: _Reader._slice,
    set: _Reader._set,
    frozenset: _Reader._set,
    SizeData: _Reader._size,
    Shared: _Reader._of_shared,
    ObjectData: _Reader._object,
    OperatorData: _Reader._operator,
    FormData: _Reader._form,
    NamedObject: _Reader._named,
    LiveData: _Reader._live,
    TensorData: _Reader._tensor,
    MetaTensor: _Reader._meta,
    GraphData: _Reader.graph,
}
