"""Defines the semantics of a LoopProgram: a slow reference interpreter on torch ops.

In: a program and its input tensors. Out: the output tensors; input buffers are written as the
program says. Every axis of a nest gets a dimension of one broadcast grid; a value is a tensor over
that grid with size 1 along axes that it does not depend on; a reduction folds its dimensions back
to size 1. It runs unfused and fused programs alike. With precision="float64" all floating-point
buffers and arithmetic are float64, to measure rounding. `sizes` has the values of the symbols of a
dynamic program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch

from ..operators.scalar import ORDERS, SCALARS
from ..symbols.size import value_of
from .expr import Add, Apply, Axis, AxisVar, Expr, FloorDiv, Integer, Mod, Mul, Symbol, ValueIndex
from .ir import (
    Alias,
    Buffer,
    BufferRef,
    Cast,
    Compute,
    Constant,
    Extern,
    IndexValue,
    Load,
    LoopProgram,
    Nest,
    NumberRef,
    Pick,
    Reduction,
    Scan,
    Store,
    Value,
    binders,
    run_time_values,
    walk,
)
from .sizes import with_sizes

__all__ = ["run"]

Tensor = torch.Tensor


def run(
    program: LoopProgram,
    inputs: Sequence[Tensor],
    precision: str = "eager",
    sizes: Mapping[Symbol, int] = MappingProxyType({}),
) -> list[Tensor | None]:
    """Execute the program and return its outputs. precision is "eager" or "float64"."""
    known: dict[Expr, int] = {symbol: value for symbol, value in sizes.items()}
    memory = _Memory(
        with_sizes(program, known) if sizes else program, precision == "float64", known
    )
    memory.bind(inputs)
    for step in program.steps:
        match step:
            case Nest():
                _run_nest(step, memory)
            case Alias(name, base, offset):
                memory.alias(name, base, offset)
            case Extern():
                _run_extern(step, memory)
    return [None if name is None else memory.read(name) for name in program.outputs]


class _Memory:
    """Holds the buffers as tensors."""

    def __init__(self, program: LoopProgram, wide: bool, sizes: dict[Expr, int]) -> None:
        self.program = program
        self.sizes = sizes
        self.wide = wide
        self.tensors: dict[str, Tensor] = {}

    def dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype used in place of `dtype`."""
        return torch.float64 if self.wide and dtype.is_floating_point else dtype

    def bind(self, inputs: Sequence[Tensor]) -> None:
        tensors = dict(zip(self.program.inputs, inputs, strict=True)) | dict(self.program.constants)
        for name, tensor in tensors.items():
            data = tensor.detach()
            if self.wide and data.is_floating_point():
                buffer = self.program.buffers[name]
                data = torch.empty_strided(
                    buffer.shape, buffer.stride, dtype=torch.float64, device=data.device
                ).copy_(data)
            self.tensors[name] = data

    def read(self, name: str) -> Tensor:
        """Return the tensor of a buffer, allocated on first use."""
        if name not in self.tensors:
            buffer = self.program.buffers[name]
            self.tensors[name] = torch.empty_strided(
                buffer.shape,
                buffer.stride,
                dtype=self.dtype(buffer.dtype),
                device=buffer.device,
            )
        return self.tensors[name]

    def put(self, name: str, tensor: Tensor) -> None:
        """Store an ATen result as the buffer's tensor; its shape, strides and dtype must match."""
        buffer: Buffer = self.program.buffers[name]
        strides = zip(buffer.shape, buffer.stride, tensor.stride(), strict=True)
        if (
            tuple(tensor.shape) != buffer.shape
            or tensor.dtype != self.dtype(buffer.dtype)
            or any(size > 1 and want != have for size, want, have in strides if tensor.numel())
        ):
            actual = f"{tensor.dtype}{list(tensor.shape)} with strides {tensor.stride()}"
            raise ValueError(f"{name}: {actual} where {buffer} was promised")
        self.tensors[name] = tensor

    def alias(self, name: str, base: str, offset: int) -> None:
        buffer, owner = self.program.buffers[name], self.read(base)
        start = owner.storage_offset() + offset
        self.tensors[name] = owner.as_strided(buffer.shape, buffer.stride, start)


def _run_extern(step: Extern, memory: _Memory) -> None:
    args, kwargs = step.mapped(lambda item: _resolve(item, memory))
    returned = step.op(*args, **kwargs)
    flat = list(returned) if isinstance(returned, (tuple, list)) else [returned]
    for name, tensor in zip(step.results, flat, strict=False):
        if name is not None:
            memory.put(name, tensor)


def _resolve(arg: object, memory: _Memory) -> object:
    if isinstance(arg, NumberRef):
        return memory.read(arg.name).item()
    if isinstance(arg, BufferRef):
        return memory.read(arg.name)
    return memory.dtype(arg) if isinstance(arg, torch.dtype) else arg


# -- nests ----------------------------------------------------------------------------------------


def _run_nest(nest: Nest, memory: _Memory) -> None:
    """Run a nest."""
    # All values are evaluated before any store: loads see the memory before the nest.
    device = memory.program.buffers[nest.stores[0].buffer].device
    grid = _Grid(_all_axes(nest), device, memory.sizes)
    values = _Evaluation(grid, memory)
    pending = [(store, values.of(store.value), values.point(store)) for store in nest.stores]
    for store, value, point in pending:
        target = memory.read(store.buffer)
        extents = grid.extents((*nest.outer, *store.inner))
        spread = torch.broadcast_to(value.to(target.dtype), extents)
        if store.mode == "total":
            target.zero_()
        indices = tuple(torch.broadcast_to(part, extents) for part in point)
        adds = store.mode != "set"
        target.index_put_(indices, spread, accumulate=adds) if indices else (
            target.add_(spread.sum()) if adds else target.copy_(spread.reshape(()))
        )


def _all_axes(nest: Nest) -> list[Axis]:
    return list(dict.fromkeys(axis for axes in binders(nest) for axis in axes))


class _Grid:
    """Represents a broadcast grid with one dimension per axis."""

    def __init__(self, axes: Sequence[Axis], device: torch.device, sizes: dict[Expr, int]) -> None:
        self.dimension = {axis: d for d, axis in enumerate(axes)}
        self.extent: dict[Axis, int] = {axis: value_of(axis.extent, sizes) for axis in axes}
        self.device = device

    def extents(self, axes: Sequence[Axis]) -> list[int]:
        """Return the grid's shape with size 1 for the axes not named."""
        shape = [1] * len(self.dimension)
        for axis in axes:
            shape[self.dimension[axis]] = self.extent[axis]
        return shape

    def variable(self, axis: Axis) -> Tensor:
        return torch.arange(self.extent[axis], device=self.device).reshape(self.extents((axis,)))

    def scalar(self, value: object, dtype: torch.dtype) -> Tensor:
        return torch.tensor(value, dtype=dtype, device=self.device).reshape(
            [1] * len(self.dimension)
        )


class _Evaluation:
    """Evaluates values over one grid, each once."""

    def __init__(self, grid: _Grid, memory: _Memory) -> None:
        self.grid, self.memory = grid, memory
        self.known: dict[Value, Tensor] = {}

    def of(self, root: Value) -> Tensor:
        for node in walk((root,)):
            if node not in self.known:
                self.known[node] = self._compute(node)
        return self.known[root]

    def point(self, store: Store) -> list[Tensor]:
        for part in store.index:
            for value in run_time_values(part):
                self.of(value)
        return [self.index(part) for part in store.index]

    def index(self, expr: Expr) -> Tensor:
        match expr:
            case Integer(value):
                return self.grid.scalar(value, torch.int64)
            case AxisVar(axis):
                return self.grid.variable(axis)
            case Add(a, b):
                return self.index(a) + self.index(b)
            case Mul(a, b):
                return self.index(a) * self.index(b)
            case FloorDiv(a, b):
                return torch.div(self.index(a), b, rounding_mode="floor")
            case Mod(a, b):
                return torch.remainder(self.index(a), b)
            case ValueIndex(value, extent):
                size = value_of(extent, self.memory.sizes)
                return self._run_time_index(self.known[value].to(torch.int64), size)
            case Symbol():
                return self.grid.scalar(self.memory.sizes[expr], torch.int64)
            case Apply(op, args):
                return _SIZED[op](*map(self.index, args))
        raise TypeError(f"not an index expression: {expr!r}")

    def _run_time_index(self, index: Tensor, extent: int) -> Tensor:
        bad = (index < -extent) | (index >= extent)
        if bool(bad.any()):
            raise IndexError(f"index out of range for a dimension of size {extent}")
        return torch.where(index < 0, index + extent, index)

    def _compute(self, node: Value) -> Tensor:
        dtype = self.memory.dtype(node.dtype)
        match node:
            case Load():
                return self._load(node)
            case Constant(value=value):
                return self.grid.scalar(value, dtype)
            case IndexValue(expr=expr):
                return self.index(expr).to(dtype)
            case Cast(value=value):
                return self.known[value].to(dtype)
            case Compute(op=op, args=args):
                return SCALARS[op].reference(*[self.known[arg] for arg in args])
            case Reduction():
                return self._reduce(node)
            case Scan():
                return self._scan(node)
            case Pick():
                return self._pick(node)
        raise TypeError(f"not a value: {node!r}")

    def _load(self, node: Load) -> Tensor:
        source = self.memory.read(node.buffer)
        point = [self.index(part) for part in node.index]
        if node.mask is None:
            return source[tuple(point)] if point else self._lift(source)
        mask = self.known[node.mask]
        inside = [torch.where(mask, part, 0) for part in point]
        loaded = source[tuple(inside)] if inside else self._lift(source)
        return torch.where(mask, loaded, self.grid.scalar(node.fill, source.dtype))

    def _lift(self, source: Tensor) -> Tensor:
        return source.to(self.grid.device, copy=True).reshape([1] * len(self.grid.dimension))

    def _reduce(self, node: Reduction) -> Tensor:
        value = self.known[node.value]
        dims = [self.grid.dimension[axis] for axis in node.axes]
        shape = list(value.shape)
        for axis, dim in zip(node.axes, dims, strict=True):
            shape[dim] = self.grid.extent[axis]
        value = value.expand(shape)
        if node.op in ORDERS:  # what is picked from it is computed there
            return torch.zeros([1] * value.dim(), dtype=torch.int64, device=value.device)
        if node.op.startswith("arg"):
            return _position(node.op, value, dims)
        if node.op == "prod":
            for dim in dims:
                value = value.prod(dim, keepdim=True)
            return value.to(self.memory.dtype(node.dtype))
        reduced: Tensor = _REDUCE[node.op](value, dims)
        return reduced.to(self.memory.dtype(node.dtype))

    def _pick(self, node: Pick) -> Tensor:
        assert isinstance(node.rank, AxisVar)
        (axis,), value = node.row.axes, self.known[node.row.value]
        dim, place = self.grid.dimension[axis], self.grid.dimension[node.rank.axis]
        shape = list(value.shape)
        shape[dim] = self.grid.extent[axis]
        is_descending = node.row.op == "descending"
        row = torch.sort(value.expand(shape), stable=True, dim=dim, descending=is_descending)
        part: Tensor = row.values if node.part == "value" else row.indices
        return part.narrow(dim, 0, self.grid.extent[node.rank.axis]).transpose(dim, place)

    def _scan(self, node: Scan) -> Tensor:
        value, dim = self.known[node.value], self.grid.dimension[node.axis]
        shape = list(value.shape)
        shape[dim] = self.grid.extent[node.axis]
        scanned: Tensor = _SCAN[node.op](value.expand(shape), dim)
        return scanned.to(self.memory.dtype(node.dtype))


_SIZED: Mapping[str, Callable[..., Tensor]] = {
    "*": torch.mul,
    "//": torch.floor_divide,
    "%": torch.remainder,
}
_REDUCE: Mapping[str, Callable[[Tensor, list[int]], Tensor]] = {
    "sum": lambda x, dims: x.sum(dims, keepdim=True),
    "max": lambda x, dims: x.amax(dims, keepdim=True),
    "min": lambda x, dims: x.amin(dims, keepdim=True),
    "any": lambda x, dims: torch.any(x, dims, keepdim=True),
    "all": lambda x, dims: torch.all(x, dims, keepdim=True),
}


_SCAN: Mapping[str, Callable[[Tensor, int], Tensor]] = {
    "sum": torch.cumsum,
    "prod": torch.cumprod,
    "max": lambda x, dim: torch.cummax(x, dim).values,
    "min": lambda x, dim: torch.cummin(x, dim).values,
    "logsumexp": torch.logcumsumexp,
}


def _position(op: str, value: Tensor, dims: Sequence[int]) -> Tensor:
    """Return argmax/argmin over several dimensions, in row-major order of the axes."""
    rest = [d for d in range(value.dim()) if d not in dims]
    flat = value.permute(*rest, *dims).reshape([value.shape[d] for d in rest] + [-1])
    if flat.dtype is torch.bool:
        flat = flat.to(torch.uint8)
    best = flat.argmax(-1) if op == "argmax" else flat.argmin(-1)
    shape = [1 if d in dims else value.shape[d] for d in range(value.dim())]
    return best.reshape(shape)
