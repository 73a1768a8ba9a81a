"""LoopBuilder holds the program under construction; lowerings add to it through its methods.

In: calls from the lowerings (ops/*) while `lower` walks the graph. Out: a LoopProgram. Invariants:
every nest has axes of its own; dimensions of size 1 get no axis and tensors without elements get no
nest; a view adds no step until `memory` is called for it; every buffer has the strides that eager
would give it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.fx import Node

from ..errors import CompileFailed
from ..graph.nested import map_leaves
from ..lazy_dataclass import dataclass, replace
from ..operators.scalar import ORDERS
from ..spec import TensorSpec, contiguous_strides
from ..symbols.size import Dimension, Size, hint_of, is_same
from ..torch_types import Kwargs, OpOverload
from .expr import Axis, AxisVar, Expr, Integer, ValueIndex, leaves
from .ir import (
    Alias,
    Buffer,
    BufferRef,
    Extern,
    Load,
    LoopProgram,
    Nest,
    NumberRef,
    Reduction,
    Step,
    Store,
    Value,
    unused_name,
)
from .tensor_view import (
    NumberView,
    Point,
    TensorView,
    broadcast_point,
    formal_point,
    full_view,
    strided,
)
from .values import FLOATS, INTEGERS, cast, constant

__all__ = ["LOOP_DTYPES", "Decline", "LoopBuilder", "Out"]

LOOP_DTYPES = FLOATS | INTEGERS | {torch.bool}
_BY_VALUE = frozenset((torch.float32, torch.float64, torch.int32, torch.int64))
ValueAt = Callable[[Point], Value]


class Decline(Exception):
    """Signals from a lowering that the node falls back to ATen, with the reason."""


@dataclass(frozen=True, slots=True)
class Out:
    """Describes the results that the lowering of a node must define: a name, and the spec of each
    result (None: unused).
    """

    name: str
    specs: tuple[TensorSpec | None, ...]

    @property
    def spec(self) -> TensorSpec:
        """Return the first result's spec, which single-result nodes always have."""
        if not self.specs or self.specs[0] is None:
            raise Decline("the result has no spec in the graph")
        return self.specs[0]

    def part(self, number: int) -> Out | None:
        """Return the number-th result as an Out of its own, or None if it is unused."""
        spec = self.specs[number] if number < len(self.specs) else None
        return None if spec is None else Out(f"{self.name}_{number}", (spec,))


def _run_time_indexes(point: Sequence[Expr]) -> set[Expr]:
    return {leaf for part in point for leaf in leaves(part) if isinstance(leaf, ValueIndex)}


class LoopBuilder:
    """Constructs a LoopProgram step by step."""

    def __init__(
        self,
        name: str,
        kernel_device: torch.device,
        sizes: Callable[[], Iterable[Dimension]] = tuple,
        moved: Callable[[Any], Any] | None = None,
    ) -> None:
        """Start an empty program. `sizes`: the sizes in the graph, some of which may be
        symbolic. `moved` replaces the symbols in a size or a spec of the graph.
        """
        self.moved = moved
        self.name = name
        self.sizes = sizes
        self.kernel_device = (
            kernel_device  # nests run here; work on another device falls back to ATen
        )
        self.buffers: dict[str, Buffer] = {}
        self.steps: list[Step] = []
        self.inputs: list[str] = []
        self.outputs: list[str | None] = []
        self.constants: dict[str, torch.Tensor] = {}
        self.bases: dict[str, str] = {}  # alias buffer -> the buffer whose memory it views
        self.offsets: dict[str, int] = {}  # start of a buffer in its storage, if not 0
        self._axes = 0
        self.node = ""  # the graph node being lowered: the origin of its steps
        self.device: torch.device | None = None  # of that node's results
        self.functions: tuple[LoopProgram | None, ...] = ()  # those that its operator takes
        self._names: set[str] = set()
        self._memory: dict[tuple[TensorView, tuple[int, ...] | None], str] = {}

    # -- axes, buffers ---------------------------------------------------------------------------

    def axis(self, extent: int) -> Axis:
        """Return a new axis."""
        self._axes += 1
        return Axis(f"i{self._axes - 1}", extent)

    def grid(self, shape: Iterable[int]) -> tuple[tuple[Axis, ...], Point]:
        """Return new axes over a shape (none for sizes of 1) and the point that they form."""
        axes: list[Axis] = []
        point: list[Expr] = []
        for size in shape:
            if size == 1:
                point.append(Integer(0))
            else:
                axes.append(self.axis(size))
                point.append(AxisVar(axes[-1]))
        return tuple(axes), tuple(point)

    def define(self, name: str, spec: TensorSpec, role: str = "temp") -> TensorView:
        """Define a new buffer with this spec, and return the view of all of it."""
        name = self._unique(name)
        self.buffers[name] = Buffer(name, spec.shape, spec.stride, spec.dtype, spec.device, role)
        return full_view(name, spec.shape, spec.dtype, spec.device)

    def is_cpu_scalar(self, view: TensorView) -> bool:
        """Return whether the view is a 0-dim CPU tensor that GPU kernels take by value."""
        crosses = self.kernel_device.type != "cpu" and view.device.type == "cpu"
        return crosses and not self.buffers[view.buffer].shape and view.dtype in _BY_VALUE

    def _unique(self, name: str) -> str:
        return unused_name(name, self.buffers, "_v")

    def _step(self, name: str) -> str:
        """Return a name that no other step has."""
        self._names.add(made := unused_name(name, self._names, "_s"))
        return made

    def root(self, buffer: str) -> str:
        """Return the buffer that owns the memory."""
        while buffer in self.bases:
            buffer = self.bases[buffer]
        return buffer

    def offset(self, buffer: str) -> int:
        """Return the start of the buffer in its storage, in elements."""
        return self.offsets.get(buffer, 0)

    def layout_of(self, view: TensorView) -> tuple[int, tuple[int, ...]] | None:
        """Return (offset, strides) of the view in its buffer's memory; None if it is not
        strided.
        """
        return strided(view, self.buffers[view.buffer].stride, self.sizes)

    def stride(self, view: TensorView) -> tuple[int, ...]:
        """Return the strides that empty_like gives this view in eager: its own if it is dense."""
        placed = self.layout_of(view)
        if placed is None:
            return contiguous_strides(view.shape)
        if any(isinstance(size, Size) for size in (*view.shape, *placed[1])):
            return _dense_stride(view.shape, placed[1])
        like = torch.empty_strided(view.shape, placed[1], device="meta")
        return tuple(torch.empty_like(like).stride())

    # -- values ----------------------------------------------------------------------------------

    def load(self, view: TensorView, point: Sequence[Expr]) -> Value:
        """Return the element of `view` that broadcasts to `point`."""
        if view.dtype not in LOOP_DTYPES:
            raise Decline(f"{view.dtype} has no loops")
        if self.device not in (None, view.device) and not self.is_cpu_scalar(view):
            raise Decline(f"operands on {view.device} and {self.device}")
        index = view.at(broadcast_point(view.shape, point))
        if _run_time_indexes(point) - _run_time_indexes(index):
            raise Decline("the load does not use its run-time index, which would stay unchecked")
        return Load(view.buffer, index, view.dtype)

    def reduce(
        self, op: str, sizes: Sequence[int], value: ValueAt, identity: Value | None = None
    ) -> Value:
        """Combine value(point) over new axes of the given sizes."""
        if 0 in sizes:
            if identity is None:
                raise Decline("a reduction over no elements")
            return identity
        axes, point = self.grid(sizes)
        position = op.startswith("arg") or op in ORDERS
        if not axes:
            return constant(0, torch.int64) if position else value(point)
        body = value(point)
        return Reduction(op, axes, body, torch.int64 if position else body.dtype)

    # -- steps -----------------------------------------------------------------------------------

    def pointwise(self, out: Out, value: ValueAt, inner: Sequence[int] = ()) -> TensorView:
        """Add one nest that stores value(point) for every point of the result."""
        return self.nest(out.name, [(out, value, inner)])[0]

    def used(
        self, out: Out, values: Sequence[ValueAt], inner: Sequence[int] = ()
    ) -> list[TensorView | None]:
        """Add one nest that stores the results of an operator that are used; None: the others."""
        parts = [(out.part(n), value) for n, value in enumerate(values)]
        views = iter(self.nest(out.name, [(p, v, inner) for p, v in parts if p is not None]))
        return [None if part is None else next(views) for part, _ in parts]

    def nest(
        self, name: str, parts: Sequence[tuple[Out, ValueAt, Sequence[int]]]
    ) -> list[TensorView]:
        """Add one nest with a store per part (out, value, the dimensions that become inner loops).

        The other dimensions become the nest's outer axes, which all parts share: without those of
        size 1, they must have the same sizes in the same order.
        """
        stores = []
        outer: tuple[Axis, ...] | None = None
        for out, value, inner in parts:
            spec = out.spec
            if spec.dtype not in LOOP_DTYPES:
                raise Decline(f"{spec.dtype} has no loops")
            axes, inside, point = self._split_grid(spec.shape, inner, outer)
            outer = axes
            if 0 not in spec.shape:
                stores.append((out, inside, point, cast(value(point), spec.dtype)))
        views = [self.define(out.name, out.spec) for out, _, _ in parts]
        names = {out.name: view.buffer for (out, _, _), view in zip(parts, views, strict=True)}
        if stores:
            stores_of = tuple(Store(names[o.name], i, p, v) for o, i, p, v in stores)
            self.steps.append(Nest(self._step(name), outer or (), stores_of, (self.node,)))
        return views

    def _split_grid(
        self, shape: Sequence[int], inner: Sequence[int], outer: tuple[Axis, ...] | None
    ) -> tuple[tuple[Axis, ...], tuple[Axis, ...], Point]:
        outer_axes = None if outer is None else iter(outer)
        outside: list[Axis] = []
        inside: list[Axis] = []
        point: list[Expr] = []
        for d, size in enumerate(shape):
            if size == 1:
                point.append(Integer(0))
                continue
            shared = outer_axes is not None and d not in inner
            axis = next(outer_axes) if shared and outer_axes is not None else self.axis(size)
            (inside if d in inner else outside).append(axis)
            point.append(AxisVar(axis))
        return tuple(outside), tuple(inside), tuple(point)

    def write(self, name: str, target: TensorView, value: ValueAt) -> None:
        """Add a nest that overwrites existing memory (a mutated input)."""
        if target.numel:
            axes, point = self.grid(target.shape)
            store = Store(target.buffer, (), target.at(point), cast(value(point), target.dtype))
            self.steps.append(Nest(self._step(name), axes, (store,), (self.node,)))
        self._forget_copies(target)

    def accumulate(
        self,
        out: Out,
        start: ValueAt,
        sizes: Sequence[int],
        index_of: Callable[[Point], Sequence[Expr]],
        value: ValueAt,
    ) -> TensorView:
        """Fill with start(point), then add value(point) for each point of `sizes` to the element at
        index_of(point), in no particular order.
        """
        if 0 in sizes or 0 in out.spec.shape:
            return self.pointwise(out, start)
        axes, point = self.grid(sizes)
        index, added = tuple(index_of(point)), cast(value(point), out.spec.dtype)
        result = self.pointwise(out, start)  # only after everything that may decline
        store = Store(result.buffer, (), result.at(index), added, "add")
        self.steps.append(Nest(self._step(f"{out.name}_sums"), axes, (store,), (self.node,)))
        return result

    def write_by_aten(self, name: str, target: TensorView, value: TensorView, reason: str) -> None:
        """Overwrite existing memory by ATen's copy_."""
        self.call_in_place(name, torch.ops.aten.copy_.default, (target, value), (target,), reason)

    def call_in_place(
        self,
        name: str,
        op: OpOverload,
        args: Sequence[Any],
        targets: Sequence[TensorView],
        reason: str,
    ) -> None:
        """Call an operator that writes to these arguments and returns nothing new."""
        made = map_leaves(tuple(args), self._argument)
        writes = tuple(self.memory(view) for view in targets)
        results = (None,) * len(op._schema.returns)
        self.steps.append(Extern(self._step(name), op, made, {}, results, writes, reason))
        for view in targets:
            self._forget_copies(view)

    def _forget_copies(self, target: TensorView) -> None:
        """Drop cached copies of views of this memory: it is overwritten, so they are out of
        date.
        """
        self._memory = {
            key: copy
            for key, copy in self._memory.items()
            if self.root(key[0].buffer) != self.root(target.buffer)
        }

    def extern(
        self,
        out: Out,
        op: OpOverload,
        args: Sequence[Any],
        kwargs: Kwargs,
        reason: str,
    ) -> list[TensorView | None]:
        """Add one ATen call; its results are new buffers with eager's strides."""
        made_args = map_leaves(tuple(args), self._argument)
        made_kwargs = map_leaves(dict(kwargs), self._argument)
        single = len(out.specs) == 1
        results: list[TensorView | None] = [
            None if spec is None else self.define(out.name if single else f"{out.name}_{n}", spec)
            for n, spec in enumerate(out.specs)
        ]
        names = tuple(None if view is None else view.buffer for view in results)
        name = self._step(out.name)
        step = Extern(name, op, made_args, made_kwargs, names, (), reason, self.functions)
        self.steps.append(step)
        return results

    def _argument(self, arg: object) -> object:
        if isinstance(arg, TensorView):
            return BufferRef(self.memory(arg))
        if isinstance(arg, NumberView):
            if arg.view.device.type != "cpu":
                raise Decline("ATen takes only CPU scalars as numbers")
            return NumberRef(self.memory(arg.view))
        return arg

    def spec_of(self, node: Node) -> Any:
        """Return the spec of a node's result, a structure of specs, or None."""
        spec = node.meta.get("spec")
        return spec if self.moved is None else map_leaves(spec, self.moved)

    def mark(self) -> tuple[int, int]:
        """Return a mark of the current end of the program, for `undo`."""
        return len(self.steps), len(self.buffers)

    def undo(self, mark: tuple[int, int]) -> None:
        """Remove the steps and buffers since a mark; nothing may read their results."""
        if mark == self.mark():
            return
        del self.steps[mark[0] :]
        while len(self.buffers) > mark[1]:
            name, _ = self.buffers.popitem()
            self.bases.pop(name, None)
            self.offsets.pop(name, None)
        self._memory = {key: copy for key, copy in self._memory.items() if copy in self.buffers}

    # -- memory ----------------------------------------------------------------------------------

    def memory(self, view: TensorView, stride: tuple[int, ...] | None = None) -> str:
        """Return the name of a buffer that holds exactly this view: the view's own buffer if it is
        the whole of it, else a strided alias, else a copy.
        """
        buffer = self.buffers[view.buffer]
        is_full = view.index == formal_point(buffer.shape) and view.shape == buffer.shape
        if is_full and (stride is None or _same_strides(view, stride, buffer.stride)):
            return view.buffer
        if (view, stride) not in self._memory:
            self._memory[view, stride] = self._alias(view, stride) or self._copy(view, stride)
        return self._memory[view, stride]

    def _alias(self, view: TensorView, stride: tuple[int, ...] | None) -> str | None:
        placed = self.layout_of(view)
        if placed is None:
            return None
        offset, strides = placed
        if stride is not None and not _same_strides(view, stride, strides):
            return None
        if stride is None:
            stride = _with_contiguous_ones(view.shape, strides)
        return self.alias(view.buffer, view.shape, stride, offset)

    def alias(
        self,
        base: str,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        offset: int,
    ) -> str:
        """Add a strided view of a buffer's memory, as a buffer."""
        owner = self.buffers[base]
        name = self._unique(f"{base}_view")
        self.buffers[name] = Buffer(name, shape, stride, owner.dtype, owner.device)
        self.bases[name] = base
        self.offsets[name] = self.offset(base) + offset
        self.steps.append(Alias(name, base, offset))
        return name

    def _copy(self, view: TensorView, stride: tuple[int, ...] | None) -> str:
        self.device = view.device
        steps = contiguous_strides(view.shape) if stride is None else stride
        spec = TensorSpec(view.shape, steps, view.dtype, view.device)
        out = Out(f"{view.buffer}_copy", (spec,))
        if view.device != self.kernel_device:
            return self._copied_by_aten(view, out)
        return self.pointwise(out, lambda point: self.load(view, point)).buffer

    def _copied_by_aten(self, view: TensorView, out: Out) -> str:
        (spec,) = out.specs
        assert spec is not None
        if self._alias(view, None) is None or spec.stride != contiguous_strides(spec.shape):
            raise CompileFailed(f"{view.buffer} on {view.device} is needed in another layout")
        kwargs = {"memory_format": torch.contiguous_format}
        reason = f"it is on {view.device}, the kernels run on {self.kernel_device}"
        (copied,) = self.extern(out, torch.ops.aten.clone.default, (view,), kwargs, reason)
        assert copied is not None
        return copied.buffer

    def copied(self, view: TensorView) -> TensorView:
        """Return a copy of the view in memory of its own."""
        return full_view(self._copy(view, None), view.shape, view.dtype, view.device)

    # -- the program -----------------------------------------------------------------------------

    def output(self, view: TensorView | None, spec: TensorSpec | None) -> None:
        """Append an output; its memory leaves the call."""
        if view is None:
            self.outputs.append(None)
            return
        name: str | None = self.memory(view, None if spec is None else spec.stride)
        self.outputs.append(name)
        while name is not None:
            if self.buffers[name].role == "temp":
                self.buffers[name] = replace(self.buffers[name], role="output")
            name = self.bases.get(name)

    def finish(self) -> LoopProgram:
        """Return the program as a frozen value."""
        return LoopProgram(
            self.name,
            self.buffers,
            tuple(self.inputs),
            tuple(self.outputs),
            tuple(self.steps),
            self.constants,
        )


def _dense_stride(shape: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """Return the strides that empty_like gives symbolic strides: the same order of dimensions,
    dense.
    """
    order = sorted(range(len(shape)), key=lambda d: -hint_of(stride[d]))
    dense: list[int] = [1] * len(shape)
    following: int = 1
    for d in reversed(order):
        dense[d] = following
        following = following * shape[d]
    if all(map(is_same, dense, stride)):
        return tuple(dense)
    raise Decline("an operand with gaps and dynamic sizes")


def _same_strides(view: TensorView, wanted: Sequence[int], have: Sequence[int]) -> bool:
    """Return whether both strides address the same elements; those of size-1 dimensions do not
    count.
    """
    rows = zip(view.shape, wanted, have, strict=True)
    return not view.numel or all(is_same(a, b) or n == 1 or a == b for n, a, b in rows)


def _with_contiguous_ones(shape: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """Replace the strides of size-1 dimensions by those of a contiguous tensor."""
    # These strides address nothing, but ATen picks faster kernels for layouts that look contiguous.
    normalized: list[int] = []
    following: int = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        normalized.append(following if size == 1 else step)
        following = normalized[-1] * max(size, 1)
    return tuple(reversed(normalized))
