"""Defines the loop-level IR, which the lowering writes and every later stage reads.

    LoopProgram = buffers, inputs, outputs, steps.
    Step   = Nest(name, outer, stores)          generated loops
           | Extern(name, op, args, kwargs, results)   one call of ATen
           | Alias(name, base)                  a strided view of another buffer's memory.
    Store  = Store(buffer, inner, index, value, mode).
    Value  = Load(buffer, index, dtype, mask, fill)
           | Constant(value, dtype) | IndexValue(expr, dtype)
           | Compute(op, args, dtype) | Cast(value, dtype)
           | Reduction(op, axes, value, dtype) | Scan(op, axis, value, dtype)
           | Pick(row, rank, part, dtype);
             the names of operations are those of operators/scalar.py.
    Expr   = Integer(value) | AxisVar(axis) | Add(a, b) | Mul(a, b) | FloorDiv(a, b) | Mod(a, b)
           | ValueIndex(value, extent)     an index computed at run time (gather)
           | Symbol(name, ..) | Apply(op, args)   dynamic sizes and their arithmetic.

A nest runs its stores for every point of `outer` (in parallel) and, inside, of the store's own
`inner` axes. A Reduction binds its axes like a lambda binds its parameter: `value` is evaluated for
every point of `axes` and combined with `op`; so softmax over rows is one nest with outer (i), one
store with inner (j):

    y[i, j] = exp(x[i, j] - max{j} x[i, j]) / sum{j} exp(x[i, j] - max{j} x[i, j])

A Scan combines `value` over the points of its axis up to the current one: it depends on the axis,
which a store's inner loop or a reduction around it binds, and which has no other loop beside it:

    y[i, j] = Scan(sum, j, x[i, j])     is x[i, 0] + .. + x[i, j]

The result of a Reduction "ascending" or "descending" is a row in order, equal values in the order
of their positions and NaN as the greatest; a Pick is an element of it, or its position:

    y[i, k] = Pick(Reduction(descending, {j}, x[i, j]), k, value)     is topk, k < 8, or sort

Within a nest all loads of a buffer see its contents before the nest, except that a store may be
followed by later stores whose values were rewritten to use the stored value itself (never the
memory). Values are frozen and interned: equal values are the same object. `index` has one Expr per
dimension of the buffer; the Buffer has the strides. Expressions and their arithmetic are
symbols/expr.py's; two kinds of leaves are defined here. The unfused program (one nest per ATen op)
and the fused one use the same vocabulary: the reference interpreter (interp.py) runs both, so a
wrong answer can be bisected to lowering, schedule or codegen.

Lazy branches: `Compute("where", (c, a, b))` evaluates both sides. A Load that may be out of range
carries `mask` (a bool Value): where it is false nothing is read and the value is `fill`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import torch

from ..devices import is_compiled
from ..graph.nested import map_leaves
from ..lazy_dataclass import dataclass, field
from ..symbols.expr import Add, Expr, FloorDiv, Integer, Leaf, Mod, Mul, leaves
from ..symbols.interned import Interned
from ..symbols.size import upper_bound
from ..torch_types import OpOverload

__all__ = [
    "Add",
    "Alias",
    "Axis",
    "AxisVar",
    "Buffer",
    "BufferRef",
    "Cast",
    "Compute",
    "Constant",
    "Expr",
    "Extern",
    "FloorDiv",
    "IndexValue",
    "Integer",
    "Load",
    "LoopProgram",
    "Mod",
    "Mul",
    "Nest",
    "NumberRef",
    "Pick",
    "Reduction",
    "Scan",
    "Step",
    "Store",
    "Value",
    "ValueIndex",
    "binders",
    "kernel_device",
    "landmarks",
    "run_time_operands",
    "run_time_values",
    "store_values",
    "unused_name",
    "walk",
]


@dataclass(frozen=True, slots=True)
class Buffer:
    """Describes a memory buffer. Strides are in elements; role is input, output, temp, constant, or
    shape: never written, because its readers use its shape alone.
    """

    name: str
    shape: tuple[int, ...]  # here and below: a dynamic size is a Size, which acts as an int
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    role: str = "temp"

    @classmethod
    def over(
        cls, name: str, axes: Sequence[Axis], dtype: torch.dtype, device: torch.device
    ) -> Buffer:
        """Return a row-major temporary with an element for each point of the axes."""
        shape = tuple(axis.extent for axis in axes)
        return cls(
            name, shape, tuple(prod(shape[d + 1 :]) for d in range(len(shape))), dtype, device
        )


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Axis(metaclass=Interned):
    """Represents a loop axis: 0 <= name < extent. Names are unique within a program; equal axes may
    be bound again.
    """

    name: str
    extent: int


@dataclass(frozen=True, slots=True, eq=False)
class AxisVar(Leaf):
    axis: Axis

    @property
    def limits(self) -> tuple[int, int]:
        return 0, max(upper_bound(self.axis.extent) - 1, 0)

    @property
    def rank(self) -> tuple[int, str, int]:
        return 0, self.axis.name, 0

    @property
    def label(self) -> str:
        return self.axis.name


@dataclass(frozen=True, slots=True, eq=False)
class ValueIndex(Leaf):
    """Represents a run-time index; negative ones count from the end, out-of-range ones raise as in
    eager.
    """

    value: Value
    extent: int

    @property
    def limits(self) -> tuple[int, int]:
        return 0, max(upper_bound(self.extent) - 1, 0)

    @property
    def rank(self) -> tuple[int, str, int]:
        return 3, "", upper_bound(self.extent)


class Value(metaclass=Interned):
    """Is the base of the scalar-valued nodes. All have `.dtype`."""

    dtype: torch.dtype

    @cached_property
    def operands(self) -> tuple[Value, ...]:
        """Return the direct operands, including masks and run-time indexes."""
        return _operands(self)

    @cached_property
    def below(self) -> tuple[Value, ...]:
        """Return every distinct transitive operand, operands before users."""
        return _below(self)

    @cached_property
    def landmarks(self) -> tuple[Value, ...]:
        """Return the loads, index values, reductions and scans among `below` and itself, in the
        order of `below`.
        """
        # Most queries need only these, and they are few even in long chains of arithmetic.
        return _landmarks(self)


@dataclass(frozen=True, eq=False)
class Load(Value):
    buffer: str
    index: tuple[Expr, ...]
    dtype: torch.dtype
    mask: Value | None = None  # where it is false, nothing is read and the value is `fill`
    fill: bool | int | float = 0


@dataclass(frozen=True, eq=False)
class Constant(Value):
    value: bool | int | float
    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class IndexValue(Value):
    expr: Expr
    dtype: torch.dtype = torch.int64


@dataclass(frozen=True, eq=False)
class Compute(Value):
    """Applies a scalar operation; arguments already have the dtype it computes in (bool for
    logic).
    """

    op: str
    args: tuple[Value, ...]
    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class Cast(Value):
    value: Value
    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class Reduction(Value):
    """Combines `value` over all points of `axes`; argmax/argmin give the row-major position."""

    op: str
    axes: tuple[Axis, ...]
    value: Value
    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class Scan(Value):
    """Combines `value` over the points of `axis` up to the current one."""

    op: str
    axis: Axis
    value: Value
    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class Pick(Value):
    """Returns the element at the place `rank` of a row in order (part "value"), or the position
    where it was (part "position"). `rank` is the axis of a store's inner loop.
    """

    row: Reduction
    rank: Expr
    part: str
    dtype: torch.dtype


@dataclass(frozen=True)
class Store:
    """Performs buffer[index] = value for every point of the outer axes and of `inner`; mode "add"
    is an atomic +=. In mode "total" an element becomes the sum over the outer axes that are not in
    `index`, the last ones.
    """

    buffer: str
    inner: tuple[Axis, ...]
    index: tuple[Expr, ...]
    value: Value
    mode: str = "set"

    @cached_property
    def roots(self) -> tuple[Value, ...]:
        """Return the stored value and its run-time indexes."""
        return (self.value, *run_time_operands(self.index))

    @cached_property
    def landmarks(self) -> tuple[Value, ...]:
        """Return the loads, index values, reductions and scans below the roots and the roots."""
        return tuple(landmarks(self.roots))


class Step:
    """Is the base of the program's steps."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Nest(Step):
    name: str
    outer: tuple[Axis, ...]
    stores: tuple[Store, ...]
    origins: tuple[str, ...] = ()  # names of the ATen nodes it computes, for reports


@dataclass(frozen=True, slots=True)
class BufferRef:
    """Refers to a buffer inside Extern arguments."""

    name: str


@dataclass(frozen=True, slots=True)
class NumberRef(BufferRef):
    """Refers to the number that a 0-dim float64 buffer holds when the step runs."""


@dataclass(frozen=True, slots=True)
class Extern(Step):
    """Calls results = op(*args, **kwargs), an ATen overload; results name buffers (None: unused).

    `writes`: input buffers that the op mutates in place. Args hold constants, BufferRef, lists of
    them, and NumberRef. `functions`: those that the op takes, as programs.
    """

    name: str
    op: OpOverload
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[str | None, ...]
    writes: tuple[str, ...] = ()
    reason: str = ""  # the reason of the fallback to ATen, for explain
    functions: tuple[LoopProgram | None, ...] = ()

    def mapped(self, change: Callable[[object], object]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with `change(item)` in place of each constant and reference."""
        return map_leaves(self.args, change), map_leaves(dict(self.kwargs), change)

    @property
    def references(self) -> tuple[str, ...]:
        """The names of the buffers among the arguments, in order."""
        found: list[str] = []

        def note(item: object) -> None:
            if isinstance(item, BufferRef):
                found.append(item.name)

        self.mapped(note)
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Alias(Step):
    """Defines a view: `name` (its Buffer has shape and stride) starts `offset` elements into
    `base`'s memory.
    """

    name: str
    base: str
    offset: int


def kernel_device(devices: Iterable[torch.device]) -> torch.device:
    """Return the device on which nests over tensors of these devices run: not the CPU if there is
    another.
    """
    others = {device for device in devices if device.type != "cpu" and is_compiled(device)}
    return min(others, key=str, default=torch.device("cpu"))


@dataclass(frozen=True, slots=True)
class LoopProgram:
    """Represents a whole graph as loops; inputs/outputs name buffers in call order, outputs may
    repeat.
    """

    name: str
    buffers: Mapping[str, Buffer]
    inputs: tuple[str, ...]
    outputs: tuple[str | None, ...]
    steps: tuple[Step, ...]
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """Return the device of the nests; work on other devices is left to ATen."""
        return kernel_device(buffer.device for buffer in self.buffers.values())


def _operands(value: Value) -> tuple[Value, ...]:
    match value:
        case Load(index=index, mask=mask):
            inside = run_time_operands(index)
            return inside if mask is None else (*inside, mask)
        case Compute(args=args):
            return args
        case Pick(row=row):
            return (row,)
        case IndexValue(expr=expr):
            return run_time_values(expr)
    inner = getattr(value, "value", None)  # of a Cast, a reduction, most of kernel_values.py
    return (inner,) if isinstance(inner, Value) else ()


def run_time_operands(index: Iterable[Expr]) -> tuple[Value, ...]:
    """Return the values of the run-time indexes directly inside an index, in order."""
    return tuple([value for part in index for value in run_time_values(part)])


@lru_cache(maxsize=16384)
def run_time_values(expr: Expr) -> tuple[Value, ...]:
    """Return the values of the run-time indexes directly inside an index expression."""
    return tuple([leaf.value for leaf in leaves(expr) if isinstance(leaf, ValueIndex)])


def _below(root: Value) -> tuple[Value, ...]:
    """Return the transitive operands, operands first."""
    # A node whose own result is cached contributes it in one step: otherwise a chain that grows
    # node by node would be walked again for each of them.
    order: dict[Value, None] = {}
    stack = [*reversed(root.operands)]
    while stack:
        node = stack[-1]
        if node not in order:
            if (known := node.__dict__.get("below")) is not None:
                order |= dict.fromkeys(known)
            elif parts := [p for p in node.operands if p not in order]:
                stack.extend(reversed(parts))
                continue
        order[node] = None
        stack.pop()
    return tuple(order)


_LANDMARKS = (Load, IndexValue, Reduction, Scan, Pick)


def _landmarks(root: Value) -> tuple[Value, ...]:
    """Return the landmarks from the operands' cached ones."""
    # One more node in a chain then costs one more lookup.
    stack = [root]
    while True:
        node = stack[-1]
        if unknown := [p for p in node.operands if "landmarks" not in p.__dict__]:
            stack.extend(unknown)
            continue
        stack.pop()
        some = [part.landmarks for part in node.operands if part.landmarks]
        marks = (
            some[0] if len(some) == 1 else tuple(dict.fromkeys(m for each in some for m in each))
        )
        if isinstance(node, _LANDMARKS):
            marks = (*marks, node)
        if not stack:
            return marks
        node.__dict__["landmarks"] = marks  # as cached_property does


def store_values(stores: Sequence[Store]) -> tuple[Value, ...]:
    """Return the roots of a nest's values: the stored values and their run-time indexes."""
    return tuple([root for store in stores for root in store.roots])


def binders(nest: Nest) -> list[tuple[Axis, ...]]:
    """Return the axes that loop together: the outer ones, and those of each store and reduction."""
    nodes = walk(store_values(nest.stores))
    reduced = [node.axes for node in nodes if isinstance(node, Reduction)]
    return [nest.outer, *(store.inner for store in nest.stores), *reduced]


def unused_name(wanted: str, taken: Container[str], mark: str = "_") -> str:
    """Return the name, with a number behind `mark` if it is taken."""
    name, number = wanted, 0
    while name in taken:
        number += 1
        name = f"{wanted}{mark}{number}"
    return name


def landmarks(roots: Iterable[Value | Store]) -> list[Value]:
    """Return the loads, index values, reductions and scans of `walk`, in its order."""
    return list(dict.fromkeys([mark for root in roots for mark in root.landmarks]))


def walk(roots: Iterable[Value]) -> list[Value]:
    """Return every distinct node below the roots and the roots, operands before users."""
    order: dict[Value, None] = {}
    for root in roots:
        order |= dict.fromkeys(root.below)
        order[root] = None
    return list(order)
