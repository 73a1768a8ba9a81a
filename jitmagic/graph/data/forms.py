"""Defines the data of graphs: frozen, without live objects, equal if the graphs are equal.

    GraphData = the nodes of a graph in order, and the constants that it reads
    Stored    = any frozen structure whose graphs and sizes are data (a Partition, say)

Plain values stay as they are: numbers, texts, tuples, lists, dicts, slices, torch's dtypes and
devices. So do operators, named functions and classes (names.py), and frozen dataclasses. Each form
below stands for a value that is no data itself.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...lazy_dataclass import dataclass
from ...symbols.context_facts import ContextFacts
from ...symbols.expr import Expr
from ...torch_types import OpOverload

__all__ = [
    "ContextFacts",
    "FormData",
    "GraphData",
    "LiveData",
    "MetaTensor",
    "NamedObject",
    "NodeData",
    "NodeRef",
    "ObjectData",
    "OperatorData",
    "Shared",
    "SizeData",
    "Stored",
    "TensorData",
]


@dataclass(frozen=True, slots=True)
class NodeRef:
    """Stands for the node at `index` of its graph."""

    index: int


@dataclass(frozen=True, slots=True)
class Shared:
    """Stands for an object that is known by its identity: the one at `index` of `shared`."""

    index: int


@dataclass(frozen=True, slots=True)
class SizeData:
    """Stands for a Size, or a SizeFloat, of a shared Context."""

    expr: Expr
    context: Shared
    is_float: bool = False


@dataclass(frozen=True, slots=True)
class MetaTensor:
    """Stands for a meta tensor. Those with the same `memory` share their storage."""

    shape: tuple[object, ...]
    stride: tuple[object, ...]
    dtype: torch.dtype
    offset: object
    requires_grad: bool
    memory: int


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.view(-1).view(torch.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class TensorData:
    """Holds a tensor that is a constant of the graph. Equal ones have the same bytes."""

    tensor: torch.Tensor

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorData):
            return NotImplemented
        one, two = self.tensor, other.tensor
        alike = (one.dtype, one.device, one.shape) == (two.dtype, two.device, two.shape)
        return one is two or (alike and torch.equal(_bytes_of(one), _bytes_of(two)))

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class ObjectData:
    """Stands for an object of a class of objects.py, which makes it of the parts."""

    cls: type
    parts: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class NamedObject:
    """Stands for an object of the program that a module has under a name."""

    module: str
    name: str


@dataclass(frozen=True, slots=True)
class OperatorData:
    """Stands for an operator of jitmagic that is defined on demand: `make(*args)` returns it."""

    make: Callable[..., OpOverload]
    args: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class FormData:
    """Stands for the number, in this process, of a form of flex_attention."""

    form: object


@dataclass(frozen=True, slots=True)
class LiveData:
    """Stands for a live object that the caller of `graph_data` has turned into data: the guards of
    a function that runs again if one fails, its code, an object of the program.
    """

    data: object


@dataclass(frozen=True, slots=True)
class NodeData:
    """One node; nodes among its arguments and metas are NodeRefs."""

    op: str
    name: str
    target: object
    args: tuple[object, ...]
    kwargs: dict[str, object]
    meta: dict[str, object]


@dataclass(frozen=True, slots=True)
class GraphData:
    """A graph. `constants`: what its `get_attr` nodes read, and graphs that it calls, by name.
    `shared` holds the shared objects of this graph and of those inside it.
    """

    name: str  # of the module's class
    nodes: tuple[NodeData, ...]
    constants: tuple[tuple[str, object], ...] = ()
    shared: tuple[ObjectData, ...] = ()


@dataclass(frozen=True, slots=True)
class Stored:
    """A structure, in which graphs that share Contexts and other objects are GraphData."""

    value: object
    shared: tuple[ObjectData, ...] = ()
