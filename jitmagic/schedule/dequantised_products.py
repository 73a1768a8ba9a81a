"""Computes a product with a quantised weight in one kernel, which dequantises what it multiplies.

In: a program in which nests dequantise a weight, `int8 * scale`, and an ATen call multiplies it.
Out: the same program with the product as a nest

    c[m, n] = sum{k} a[m, k] * dequantised(q[n, k], scale[n])  (+ bias),

so that no dequantised weight is in memory. The weight may be computed by any pointwise nests that
read fewer bytes than they write: scales per row, group or tensor, zero points, bits of 8-bit
numbers. It is rounded where eager rounds it, except that sums are rounded once. Nests of several
readers are inlined into each product; drop_dead_stores removes those that are no longer read.

Measured (4096 x 4096 int8, two threads with AVX-512, over eager): 5 to 9 times as fast from 1 to 8
rows, 1.4 times at 512 in float32; the library's product of a weight that was dequantised before
takes as long at 512 rows and twice as long at 8.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from math import prod

import torch

from ..devices import Target
from ..lazy_dataclass import dataclass, field, replace
from ..loops.expr import (
    Add,
    Axis,
    AxisVar,
    Expr,
    FloorDiv,
    Integer,
    Mod,
    Mul,
    add,
    coefficients,
    dimension,
    floordiv,
    mod,
    mul,
    plus,
    position,
)
from ..loops.free_axes import value_axes
from ..loops.ir import (
    Alias,
    Buffer,
    BufferRef,
    Cast,
    Extern,
    Load,
    LoopProgram,
    Nest,
    Reduction,
    Step,
    Store,
    Value,
    walk,
)
from ..loops.values import cast, compute
from ..symbols.size import Dimension, Size, hint_of
from .dependencies import Graph, analyse, reads_of
from .legality import inline_load, solve
from .products import broadcast, is_narrow, reads_narrow
from .result import Decision
from .score import buffer_bytes
from .substitution import Rebuilder

__all__ = ["has_dequantised_products", "with_dequantised_products"]

# On a GPU each tile of rows reads the weight again. H200, 11008 x 4096: 64 rows take 33 us, more
# need a second tile; a kernel that converts the weight and the library's product took 66 us.
MOST_ROWS_ON_GPU = 64
LEAST = 16  # columns and terms of a sum: smaller weights are not worth a kernel of their own
aten = torch.ops.aten
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_REASON = "the quantised weight is dequantised where it is multiplied, never in memory"


def has_dequantised_products(target: Target) -> bool:
    """Return whether the target's renderer writes such products as one kernel."""
    return target.tier == "triton" or (target.tier == "cpp" and target.isa != "scalar")


def with_dequantised_products(
    program: LoopProgram, target: Target
) -> tuple[LoopProgram, list[Decision]]:
    """Replace the products of dequantised weights by nests."""
    if not any(is_narrow(buffer.dtype) for buffer in program.buffers.values()):
        return program, []
    found, steps, decisions = _Products(program, target), list(program.steps), []
    for number, step in enumerate(steps):
        nest = found.nest(step) if isinstance(step, Extern) else None
        if nest is not None:
            steps[number] = nest
            decisions.append(Decision(nest.name, str(getattr(step, "op", "")), True, _REASON))
    if not decisions:
        return program, []
    return replace(program, steps=found.without_unread(steps)), decisions


@dataclass(frozen=True, slots=True)
class _Operands:
    """Names the buffers of `(a @ b) * scale + bias`; with a scale, `b` is transposed."""

    a: str
    b: str
    bias: str | None = None
    scale: str | None = None


def operands_of(step: Extern) -> _Operands | None:
    """Return the operands of a matrix product, or None for other calls."""
    match (step.op, *step.args):
        case aten.mm.default, BufferRef(name=a), BufferRef(name=b):
            return None if step.kwargs else _Operands(a, b)
        case aten.addmm.default, BufferRef(name=bias), BufferRef(name=a), BufferRef(name=b):
            return None if step.kwargs else _Operands(a, b, bias)
        case aten._weight_int8pack_mm.default, BufferRef(name=a), BufferRef(name=b), BufferRef(
            name=scale
        ):
            return _Operands(a, b, scale=scale)
    return None


@dataclass(slots=True)
class _Products:
    program: LoopProgram
    target: Target
    graph: Graph = field(init=False)
    base: dict[str, tuple[str, Dimension]] = field(init=False)  # of aliases, and where they start
    writers: dict[str, Nest] = field(init=False)  # nests with a single store, by its buffer
    converted: dict[str, str] = field(init=False)  # conversion by ATen -> 8-bit floats

    def __post_init__(self) -> None:
        self.graph = analyse(self.program)
        self.base, self.writers, self.converted = {}, {}, {}
        for step in self.program.steps:
            if isinstance(step, Alias):
                name, start = self.base.get(step.base, (step.base, 0))
                self.base[step.name] = name, start + step.offset
            elif isinstance(step, Nest) and len(step.stores) == 1:
                self.writers[step.stores[0].buffer] = step
            elif (source := self.converted_source(step)) is not None:
                self.converted[str(step.results[0])] = source  # type: ignore[attr-defined]

    def without_unread(self, steps: Sequence[Step]) -> tuple[Step, ...]:
        """Remove what dequantised the weights and has no readers left: views keep memory alive, and
        no later step removes ATen calls.
        """
        read, kept = set(self.program.outputs), list[Step]()
        for step in reversed(steps):  # users come last
            if not self.is_removable(step, read):
                kept.append(step)
                read.update(reads_of(step))
        return tuple(reversed(kept))

    def is_removable(self, step: Step, read: Container[str | None]) -> bool:
        """Return whether only the readers of its result need a step, and there are none."""
        match step:
            case Alias(name=name):
                return name not in read
            case Extern(results=(str(name),)):
                return name in self.converted and name not in read
            case Nest(stores=(Store(buffer=name),)):
                return name not in read and self.may_move(step)
        return False

    def converted_source(self, step: Step) -> str | None:
        """Return the 8-bit floats that a call converts; only products read them in kernels."""
        match step:
            case Extern(op=aten._to_copy.default, args=(BufferRef(name=name),)):
                source = self.program.buffers[name]
                fits = source.dtype == torch.float8_e4m3fn and source.device == self.program.device
                return (
                    name if fits and self.graph.storage[name] not in self.graph.changing else None
                )
        return None

    def nest(self, step: Extern) -> Nest | None:
        """Return the product as a nest, or None if its right operand is no dequantised weight."""
        operands, buffers = operands_of(step), self.program.buffers
        if operands is None or step.results[0] is None:
            return None
        out, rows = buffers[step.results[0]], buffers[operands.a]
        if any(buffers[name].device != self.program.device for name in step.references):
            return None
        if out.dtype not in _FLOATS or rows.dtype not in _FLOATS or out.shape[0] == 0:
            return None
        m, n = Axis(f"{step.name}.m", out.shape[0]), Axis(f"{step.name}.n", out.shape[1])
        k = Axis(f"{step.name}.k", rows.shape[1])
        if any(isinstance(x.extent, Size) or x.extent < LEAST for x in (n, k)):
            return None
        if self.target.tier == "triton" and not out.shape[0] <= MOST_ROWS_ON_GPU:
            return None
        point = AxisVar(k), AxisVar(n)
        weight = self.weight(operands.b, point[::-1] if operands.scale else point)
        if weight is None:
            return None
        axes, position_in_group = in_groups(weight, k)
        split = Rebuilder(position_in_group)
        weight = split.value(weight)
        if not self.can_read(weight, axes[-1]):
            return None
        here = AxisVar(m), AxisVar(n)
        left = self.without_conversion(rows.name, Load(rows.name, (here[0], point[0]), rows.dtype))
        term = compute("mul", cast(split.value(left), torch.float32), widened(weight))
        value: Value = Reduction("sum", axes, term, torch.float32)
        if operands.scale is not None:
            value = compute("mul", value, self.broadcast(operands.scale, here))
        if operands.bias is not None:
            value = compute("add", value, self.broadcast(operands.bias, here))
        store = Store(out.name, (), here, cast(value, out.dtype))
        return Nest(step.name, (m, n), (store,), (step.name,))

    def broadcast(self, name: str, point: tuple[AxisVar, AxisVar]) -> Value:
        """Return an operand at a point of the result, in float32."""
        buffer = self.program.buffers[name]
        return cast(Load(name, broadcast(buffer.shape, point), buffer.dtype), torch.float32)

    def weight(self, name: str, point: tuple[AxisVar, AxisVar]) -> Value | None:
        """Return the dequantised weight at a point, or None."""
        buffer = self.program.buffers[name]
        load = self.load_of_base(name, point)
        if load is None:
            return None
        value = self.inlined(load, prod(buffer.shape))
        if is_narrow(value.dtype):
            value = cast(value, torch.float32)
        if not reads_narrow(value):
            return None
        loads = [node for node in walk((value,)) if isinstance(node, Load)]
        sources = {self.program.buffers[node.buffer] for node in loads}
        wide = prod(buffer.shape) * value.dtype.itemsize
        if sum(map(buffer_bytes, sources)) >= wide:
            return None
        axes = value_axes(walk((value,)))[value]
        return value if axes == {part.axis for part in point} else None

    def load_of_base(self, name: str, point: tuple[Expr, ...]) -> Load | None:
        """Return the load of a point from the buffer of which `name` may be a view."""
        buffer = self.program.buffers[name]
        base, start = self.base.get(name, (name, 0))
        if base == name:
            return Load(name, point, buffer.dtype)
        index = point_at(plus(position(point, buffer.stride), start), self.program.buffers[base])
        return None if index is None else Load(base, index, buffer.dtype)

    def can_read(self, weight: Value, k: Axis) -> bool:
        """Return whether the target's kernels read such a weight in whole vectors."""
        loads = [node for node in walk((weight,)) if isinstance(node, Load)]
        # C++ lanes run along k.
        return self.target.tier != "cpp" or all(
            self.step_of(load, k) == 1 for load in loads if is_narrow(load.dtype)
        )

    def step_of(self, load: Load, axis: Axis) -> Dimension | None:
        buffer = self.program.buffers[load.buffer]
        found = coefficients(position(load.index, buffer.stride))
        return None if found is None else dimension(found[1].get(axis, Integer(0)), ())

    def inlined(self, load: Load, size: int) -> Value:
        """Return the value of a load, with pointwise nests over at least `size` points inlined."""

        def on_load(load: Load) -> Value:
            if load.mask is not None or prod(map(hint_of, self.shape(load))) < size:
                return load
            if load.buffer in self.converted:
                source = self.load_of_base(self.converted[load.buffer], load.index)
                return load if source is None else cast(source, load.dtype)
            nest = self.writers.get(load.buffer)
            if nest is None or not self.may_move(nest):
                return load
            bindings = solve(nest.stores[0], load, nest.outer)
            if bindings is None:
                return load
            return rebuild.value(inline_load(load, nest.stores[0], bindings))

        rebuild = Rebuilder(on_load=on_load)
        return rebuild.value(load)

    def shape(self, load: Load) -> tuple[int, ...]:
        return self.program.buffers[load.buffer].shape

    def without_conversion(self, name: str, load: Load) -> Value:
        """Return a load of the activations, or the conversion of another load that they are."""
        nest = self.writers.get(name)
        if nest is None or not self.may_move(nest):
            return load
        value = self.inlined(load, 1)
        return value if isinstance(value, Cast) and isinstance(value.value, Load) else load

    def may_move(self, nest: Nest) -> bool:
        """Return whether the nest is pointwise, and may run where its result is read."""
        (store,) = nest.stores
        memory, graph = self.graph.storage[store.buffer], self.graph
        if store.inner or store.mode != "set" or memory in graph.escaping | graph.mutated:
            return False
        nodes = walk((store.value,))
        loads = (node for node in nodes if isinstance(node, Load))
        return not any(isinstance(node, Reduction) for node in nodes) and not any(
            graph.storage[load.buffer] in graph.changing for load in loads
        )


def in_groups(weight: Value, k: Axis) -> tuple[tuple[Axis, ...], dict[Axis, Expr]]:
    """Return k as a group and a position inside it, if an index of the weight divides it by the
    size of its groups, and the expression of k in these axes.
    """
    sizes = {
        size
        for node in walk((weight,))
        if isinstance(node, Load)
        for part in node.index
        for size in divisors(part, k)
    }
    if len(sizes) != 1 or k.extent % (size := sizes.pop()):
        return (k,), {}
    group, inside = Axis(f"{k.name}_group", k.extent // size), Axis(f"{k.name}_inside", size)
    return (group, inside), {k: add(mul(AxisVar(group), size), AxisVar(inside))}


def divisors(expr: Expr, axis: Axis) -> Iterator[int]:
    """Yield the numbers by which an index expression divides the axis."""
    match expr:
        case FloorDiv(AxisVar(along), divisor) | Mod(AxisVar(along), divisor) if along == axis:
            yield divisor
        case FloorDiv(a) | Mod(a) | Mul(a):
            yield from divisors(a, axis)
        case Add(a, b):
            yield from divisors(a, axis)
            yield from divisors(b, axis)


def widened(weight: Value) -> Value:
    """Return a weight in float32, without casts that round nothing."""

    def exact(cast: Cast) -> Value:
        match cast.value:
            # 16-bit floats hold all 8-bit numbers; a conversion to bfloat16 takes seven
            # instructions.
            case Cast(value=value, dtype=between) if between in _FLOATS and is_narrow(value.dtype):
                return Cast(value, cast.dtype)
        return cast

    return Rebuilder(on_cast=exact).value(cast(weight, torch.float32))


def point_at(offset: Expr, buffer: Buffer) -> tuple[Expr, ...] | None:
    """Return the point of a dense buffer at a memory offset, or None if there are gaps."""
    order = sorted(range(len(buffer.shape)), key=lambda d: -hint_of(buffer.stride[d]))
    point: list[Expr] = [Integer(0)] * len(buffer.shape)
    inside = 1
    for d in reversed(order):
        size, step = buffer.shape[d], buffer.stride[d]
        if isinstance(size, Size) or isinstance(step, Size):
            return None
        if size == 1:
            continue
        if step != inside:
            return None
        digit = floordiv(offset, step)
        inside *= size
        point[d] = digit if inside == prod(buffer.shape) else mod(digit, size)
    return tuple(point)
