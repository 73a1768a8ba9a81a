"""Turns a graph, or a frozen structure with graphs in it, into data.

Input: a GraphModule of any stage, a Partition, Predicates, and structures of these. Output: data
without a live object, or CannotKeep with the reason. Objects that are shared within one call of
`stored` are shared when the data are read: a Context is one object for all Sizes over it. Numbers
that tell symbols of one process apart are replaced by their order, so equal graphs give equal data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.immutable_collections import immutable_dict, immutable_list

from ...compat.operators import OpOverload, OpOverloadPacket
from ...errors import CannotKeep, UserLine
from ...symbols.context import Context
from ...symbols.expr import Expr
from ...symbols.predicates import is_fresh
from ...symbols.size import Size, SizeFloat
from ...symbols.symbolic_numbers import Symbol
from ..memory import storage_under
from ..node_meta import KEYS
from ..operators.foreign import name_of as name_in_namespace
from ..operators.operator_library import DEFINED, has_number
from ..symbolic.sym_node import as_dimension, as_dimensions
from ..targets.attention_operators import FLEX_OPERATORS, form_of
from ..triton.writes import function_of
from .forms import (
    FormData,
    GraphData,
    LiveData,
    MetaTensor,
    NamedObject,
    NodeData,
    NodeRef,
    ObjectData,
    OperatorData,
    Shared,
    SizeData,
    Stored,
    TensorData,
)
from .names import is_function, name_of, object_at
from .objects import CLASSES, Live, Row, is_made_of_parts

__all__ = ["PLAIN", "graph_data", "stored"]

PLAIN = frozenset({
    type(None), bool, int, float, complex, str, bytes, type(...), torch.dtype, torch.device,
    torch.layout, torch.memory_format, UserLine,
})  # fmt: skip


def graph_data(
    gm: GraphModule,
    *,
    with_values: bool = True,
    live: Callable[[Any], object] | None = None,
) -> GraphData:
    """Return the data of a graph. Raises CannotKeep.

    with_values: keep the meta tensors of a torch-level graph, without which it runs but cannot be
    compiled
    live: returns the data of live objects: guards, code and namespaces that backwards of the
    program rely on, objects of the program. None: a graph that has some is refused
    """
    writer = _Writer(with_values, live)
    data = writer.graph(gm)
    return replace(data, shared=tuple(writer.shared))


def stored(
    value: object,
    *,
    with_values: bool = True,
    live: Callable[[Any], object] | None = None,
) -> Stored:
    """Return the data of a structure: graphs as GraphData in frozen dataclasses, tuples, lists and
    dicts; `graph_data` has the other arguments. Raises CannotKeep.
    """
    writer = _Writer(with_values, live)
    data = writer.value(value)
    return Stored(data, tuple(writer.shared))


class _Writer:
    def __init__(self, with_values: bool, live: Callable[[Any], object] | None) -> None:
        self.shared: list[ObjectData] = []
        self._live_data = live
        self._with_values = with_values
        self._nodes: dict[Node, NodeRef] = {}
        self._places: dict[int, Shared] = {}  # of shared objects, by id
        self._known: dict[int, tuple[object, object]] = {}  # by id; holds the object
        self._exprs: dict[Expr, Expr] = {}
        self._numbers: dict[int, int] = {}  # of fresh symbols
        self._memory: dict[int, int] = {}  # storages

    # -- graphs ----------------------------------------------------------------------------------

    def graph(self, gm: GraphModule) -> GraphData:
        nodes = list(gm.graph.nodes)
        self._nodes.update((node, NodeRef(n)) for n, node in enumerate(nodes))
        read = dict.fromkeys(n.target for n in nodes if n.op in ("get_attr", "call_module"))
        constants = tuple((str(name), self._constant(gm, str(name))) for name in read)
        made = tuple([self._node(node) for node in nodes])
        return GraphData(type(gm).__name__, made, constants)

    def _constant(self, gm: GraphModule, path: str) -> object:
        found: Any = gm
        for name in path.split("."):
            found = getattr(found, name)
        if not isinstance(found, torch.Tensor | GraphModule):
            raise CannotKeep(f"the graph reads {path}, a {type(found).__name__}")
        return self.value(found)

    def _node(self, node: Node) -> NodeData:
        target = node.target if isinstance(node.target, str) else self.value(node.target)
        args: Any = self.value(node.args)
        if node.target in FLEX_OPERATORS:
            args = (*args[:-1], FormData(self.value(form_of(args[-1]))))
        kwargs: Any = self.value(dict(node.kwargs)) if node.kwargs else {}
        meta = {
            name: self.value(value) for name, value in node.meta.items() if self._keeps(name, value)
        }
        return NodeData(node.op, node.name, target, args, kwargs, meta)

    def _keeps(self, name: str, value: object) -> bool:
        """Return whether a graph that is read again needs a meta."""
        if name == "val" and not (self._with_values or isinstance(value, Size | float)):
            return False
        return name in KEYS and KEYS[name].is_kept

    # -- values ----------------------------------------------------------------------------------

    def value(self, value: Any) -> Any:
        """Return the data of a value."""
        kind = type(value)
        if kind in PLAIN:
            return value
        if (write := _WRITERS.get(kind)) is not None:
            return write(self, value)
        if (known := self._known.get(id(value))) is not None:
            return known[1]
        data = self._of_object(value)
        self._known[id(value)] = value, data
        return data

    def _of_object(self, value: Any) -> Any:
        if (row := CLASSES.get(type(value))) is not None:
            return self._of_row(value, type(value), row)
        if isinstance(value, Expr):
            return self._expr(value)
        if isinstance(value, GraphModule):
            return self.graph(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if is_made_of_parts(type(value)):
            return ObjectData(type(value), self._tuple(_parts_of(value)))
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            made = self._tuple(tuple(value))
            return value if made == value else type(value)._make(made)  # type: ignore[attr-defined]
        if is_dataclass(value) and not isinstance(value, type):
            return self._dataclass(value)
        return self._named(value)

    def _of_row(self, value: object, cls: type, row: Row) -> object:
        if row.is_shared:
            return self._share(value, cls, row)
        return ObjectData(cls, tuple([self.value(part) for part in row.parts(value)]))

    def _share(self, value: object, cls: type, row: Row) -> Shared:
        if (known := self._places.get(id(value))) is not None:
            return known
        data = ObjectData(cls, tuple([self.value(part) for part in row.parts(value)]))
        place = self._places[id(value)] = Shared(len(self.shared))
        self._known[id(value)] = value, place
        self.shared.append(data)
        return place

    def _dataclass(self, value: Any) -> Any:
        """Return a frozen dataclass with data in its fields, the same one if nothing changes."""
        if not value.__dataclass_params__.frozen:
            raise CannotKeep(f"a {type(value).__name__} may change")
        if not value.__dataclass_params__.eq:
            raise CannotKeep(f"a {type(value).__name__} is known by its identity")
        changed = {}
        for one in fields(value):
            before = getattr(value, one.name)
            after = self.value(before)
            if after is not before:
                changed[one.name] = after
        return replace(value, **changed) if changed else value

    def _named(self, value: Any) -> Any:
        if isinstance(value, OpOverload | OpOverloadPacket):
            return self._operator(value)
        if isinstance(value, Enum):
            return value
        if is_function(value):
            return self._function(value)
        if function_of(value) is not None:
            return self._kernel(value)
        if self._live_data is None:
            raise CannotKeep(f"a {type(value).__module__}.{type(value).__qualname__} is no data")
        return LiveData(self._live_data(value))

    def _function(self, value: Any) -> Any:
        """Return the function; its name, if that is not the one that it has itself."""
        name = getattr(value, "__qualname__", type(value).__name__)
        if (found := name_of(value)) is None:
            if self._live_data is None:
                raise CannotKeep(f"no module has the function {name}")
            return LiveData(self._live_data(value))
        return NamedObject(*found) if "<locals>" in name else value

    def _operator(self, value: Any) -> Any:
        """Return an operator; of one that is defined on demand, how to define it."""
        if isinstance(value, OpOverloadPacket):
            return NamedObject("torch.ops", ".".join(name_in_namespace(value)))
        if value in DEFINED:
            make, args = DEFINED[value]
            return OperatorData(make, tuple([self.value(arg) for arg in args]))
        if value in FLEX_OPERATORS:  # whose form is data too
            parts = value.namespace, value._opname, value._overloadname
            return NamedObject("torch.ops", ".".join(parts))
        if has_number(value):
            raise CannotKeep(f"{value} is an operator of this process")
        return value

    def _kernel(self, kernel: Any) -> NamedObject:
        function: Any = function_of(kernel)
        module, name = function.__module__, function.__qualname__
        if object_at(module, name) is not kernel:
            raise CannotKeep(f"no module has the Triton kernel {name}")
        return NamedObject(module, name)

    # -- structures ------------------------------------------------------------------------------

    def _tuple(self, value: tuple[object, ...]) -> tuple[object, ...]:
        made = tuple([self.value(item) for item in value])
        same = all([one is other for one, other in zip(made, value, strict=True)])
        return value if same else made

    def _list(self, value: list[object]) -> list[object]:
        return [self.value(item) for item in value]

    def _dict(self, value: dict[object, object]) -> dict[object, object]:
        return {self.value(key): self.value(item) for key, item in value.items()}

    def _slice(self, value: slice) -> slice:
        return slice(*map(self.value, (value.start, value.stop, value.step)))

    def _set(self, value: Any) -> Any:
        return type(value)(map(self.value, value))

    def _shape(self, value: torch.Size) -> object:
        return value if all(type(n) is int for n in value) else self._tuple(as_dimensions(value))

    def _node_ref(self, node: Node) -> NodeRef:
        if node not in self._nodes:
            raise CannotKeep(f"{node} belongs to another graph")
        return self._nodes[node]

    def _live_part(self, part: Live) -> LiveData:
        if self._live_data is None:
            kind = "guards" if isinstance(part.value, tuple) else type(part.value).__name__
            raise CannotKeep(f"a backward of the program needs {kind}, which are no data")
        return LiveData(self._live_data(part.value))

    # -- sizes and tensors -----------------------------------------------------------------------

    def _size(self, size: Size) -> SizeData:
        context = self._share(size.context, Context, CLASSES[Context])
        return SizeData(self._expr(size.expr), context, isinstance(size, SizeFloat))

    def _sym(self, value: object) -> object:
        found = as_dimension(value)
        if found is value:
            raise CannotKeep("a size of a nested tensor is no data")
        return self.value(found)

    def _expr(self, expr: Expr) -> Expr:
        """Return the expression with fresh symbols numbered in the order of their occurrence."""
        if expr not in self._exprs:
            self._exprs[expr] = self._new_expr(expr)
        return self._exprs[expr]

    def _new_expr(self, expr: Any) -> Any:
        parts = [getattr(expr, name) for name in type(expr).__match_args__]
        if isinstance(expr, Symbol) and is_fresh(expr):
            origin: Any = expr.origin
            stands_for, number = origin
            place = self._numbers.setdefault(number, len(self._numbers))
            stored = self._expr(stands_for), -1 - place
            return Symbol(expr.name, expr.kind, expr.range, stored, expr.whole)
        return type(expr)(*map(self.value, parts))

    def _tensor(self, tensor: torch.Tensor) -> MetaTensor | TensorData:
        if not tensor.is_meta:
            return TensorData(tensor)
        if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
            raise CannotKeep(f"the trace has a meta of a {type(tensor).__name__}")
        memory = self._memory.setdefault(storage_under(tensor), len(self._memory))
        shape, stride = self.value(tuple(tensor.shape)), self.value(tuple(tensor.stride()))
        offset = self.value(tensor.storage_offset())
        return MetaTensor(shape, stride, tensor.dtype, offset, tensor.requires_grad, memory)


def _parts_of(value: Any) -> tuple[object, ...]:
    """Return the arguments that make an equal object."""
    if isinstance(value, tuple):  # of torch.return_types
        return (tuple(value),)
    return tuple([getattr(value, one.name) for one in fields(value)])


_WRITERS: dict[type, Callable[[_Writer, Any], object]] = {
    Node: _Writer._node_ref,
    tuple: _Writer._tuple,
    list: _Writer._list,
    immutable_list: _Writer._list,
    dict: _Writer._dict,
    immutable_dict: _Writer._dict,
    slice: _Writer._slice,
    set: _Writer._set,
    frozenset: _Writer._set,
    torch.Size: _Writer._shape,
    Live: _Writer._live_part,
    Size: _Writer._size,
    SizeFloat: _Writer._size,
    torch.SymInt: _Writer._sym,
    torch.SymFloat: _Writer._sym,
}
