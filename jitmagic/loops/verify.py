"""Verifies the rules of the IR, which every stage that produces LoopPrograms must obey.

In: a LoopProgram, unfused or fused. Raises VerifyError naming the step and the rule. Checked:
names, dtypes of every node, arity of ops and indexes, bounds that are provably wrong, axes bound at
their uses, elements written once, buffers written before they are read, outputs defined.
"""

from __future__ import annotations

from typing import NoReturn

import torch

from ..compat.operators import OpOverload
from ..errors import VerifyError
from ..operators.scalar import ORDERS, REDUCTIONS, SCALARS, SCANS
from ..symbols.size import Size, is_same
from .expr import Axis, AxisVar, Expr, ValueIndex, axes_of, bounds, leaves, linear
from .ir import (
    Alias,
    Buffer,
    Cast,
    Compute,
    Extern,
    IndexValue,
    Load,
    LoopProgram,
    Nest,
    Pick,
    Reduction,
    Scan,
    Step,
    Store,
    Value,
)

__all__ = ["verify"]

_ROLES = frozenset({"input", "output", "temp", "constant", "shape"})


def verify(program: LoopProgram) -> None:
    """Raise VerifyError unless the program obeys every rule of ir.py."""
    _Verifier(program).run()


class _Verifier:
    def __init__(self, program: LoopProgram) -> None:
        self.program = program
        self.defined = {*program.inputs, *program.constants}
        self.where = "the program"
        self.outer: frozenset[Axis] = frozenset()
        self.seen: set[tuple[Value, frozenset[Axis]]] = set()

    def fail(self, rule: str) -> NoReturn:
        raise VerifyError(f"{self.program.name}, {self.where}: {rule}")

    def require(self, holds: bool, rule: str) -> None:
        if not holds:
            self.fail(rule)

    def run(self) -> None:
        self.buffers()
        names: set[str] = set()
        for step in self.program.steps:
            name = step.name  # type: ignore[attr-defined]
            self.where = f"step {name}"
            self.require(name not in names, "two steps have this name")
            names.add(name)
            self.step(step)
        self.where = "the outputs"
        for output in self.program.outputs:
            if output is not None:
                self.reads(output)
                role = self.program.buffers[output].role
                self.require(role != "temp", f"{output} leaves the call but is a temp")

    def buffers(self) -> None:
        for name, buffer in self.program.buffers.items():
            self.where = f"buffer {name}"
            self.require(buffer.name == name, "is listed under another name")
            self.require(len(buffer.shape) == len(buffer.stride), "one stride per dimension")
            self.require(all(size >= 0 for size in buffer.shape), "a negative size")
            self.require(buffer.role in _ROLES, f"no such role: {buffer.role}")
        self.where = "the inputs"
        for name in self.defined:
            self.require(name in self.program.buffers, f"{name} is not a buffer")
        for name in self.program.constants:
            self.require(self.program.buffers[name].role == "constant", f"role of {name}")

    def buffer(self, name: str) -> Buffer:
        if name not in self.program.buffers:
            self.fail(f"there is no buffer {name}")
        return self.program.buffers[name]

    def reads(self, name: str) -> None:
        buffer = self.buffer(name)
        unwritten = buffer.role == "shape" or 0 in buffer.shape
        self.require(name in self.defined or unwritten, f"{name} is read before it is written")

    # -- steps -----------------------------------------------------------------------------------

    def step(self, step: Step) -> None:
        match step:
            case Nest():
                self.nest(step)
            case Extern():
                self.extern(step)
            case Alias(name, base):
                self.reads(base)
                made, owner = self.buffer(name), self.buffer(base)
                self.require(made.dtype is owner.dtype, "an alias has its base's dtype")
                self.require(made.device == owner.device, "an alias has its base's device")
                self.defined.add(name)
            case _:
                self.fail(f"no such step: {type(step).__name__}")

    def extern(self, step: Extern) -> None:
        self.require(isinstance(step.op, OpOverload), f"{step.op!r} is not an ATen overload")
        for name in step.references:
            if name not in step.writes:  # what it writes may be memory of torch.empty
                self.reads(name)
        for result in (*step.results, *step.writes):
            if result is not None:
                self.buffer(result)
                self.defined.add(result)

    def nest(self, nest: Nest) -> None:
        self.require(bool(nest.stores), "a nest without stores")
        self.outer = frozenset(nest.outer)
        self.axes(nest.outer, frozenset())
        written: set[str] = set()
        for store in nest.stores:
            self.axes(store.inner, frozenset(nest.outer))
            self.store(store, frozenset((*nest.outer, *store.inner)))
            written.add(store.buffer)
        self.defined |= written

    def axes(self, axes: tuple[Axis, ...], bound: frozenset[Axis], shadow: bool = False) -> None:
        """Check a binder. `shadow`: a reduction may bind an outer axis again, as a lambda may reuse
        a name.
        """
        self.require(len({axis.name for axis in axes}) == len(axes), "an axis bound twice")
        names = {axis.name for axis in bound}
        for axis in axes:
            self.require(axis.extent > 0, f"axis {axis.name} has extent {axis.extent}")
            free = axis.name not in names or (shadow and axis in bound)
            self.require(free, f"axis {axis.name} is already bound outside")

    def store(self, store: Store, bound: frozenset[Axis]) -> None:
        buffer = self.buffer(store.buffer)
        self.require(store.mode in ("set", "add", "total"), f"no such mode: {store.mode}")
        self.require(buffer.role != "constant", f"{store.buffer} is a constant")
        self.require(
            store.value.dtype is buffer.dtype, f"a {store.value.dtype} stored as {buffer.dtype}"
        )
        self.index(store.index, buffer, bound, masked=False)
        self.once(store, bound)
        self.value(store.value, bound)

    def once(self, store: Store, bound: frozenset[Axis]) -> None:
        """Require that no two points of the loops (two threads) write the same element."""
        parts = [leaf for part in store.index for leaf in leaves(part)]
        if store.mode != "set" or any(isinstance(leaf, ValueIndex) for leaf in parts):
            return  # the user's own indexes: duplicates are the user's choice
        moving = frozenset().union(*map(axes_of, store.index))
        for axis in bound - moving:
            repeated = f"every {axis.name} writes the same of {store.buffer}"
            self.require(is_same(axis.extent, 1), repeated)

    # -- values ----------------------------------------------------------------------------------

    def index(
        self, index: tuple[Expr, ...], buffer: Buffer, bound: frozenset[Axis], masked: bool
    ) -> None:
        self.require(
            len(index) == len(buffer.shape),
            f"{buffer.name} has {len(buffer.shape)} dimensions, its index {len(index)}",
        )
        for part, size in zip(index, buffer.shape, strict=True):
            self.expr(part, bound)
            if isinstance(size, Size):
                continue  # a symbolic size has no constant bounds
            low, high = bounds(part)
            self.require(
                masked or (low < size and high >= 0),
                f"{part} is outside {buffer.name}'s size {size}",
            )
            if not masked and _is_exact(part):
                self.require(low >= 0, f"{part} starts before {buffer.name}")
                self.require(high < size, f"{part} runs past {buffer.name}'s size {size}")

    def expr(self, expr: Expr, bound: frozenset[Axis]) -> None:
        for leaf in leaves(expr):
            if isinstance(leaf, AxisVar):
                self.require(leaf.axis in bound, f"axis {leaf.axis.name} is not bound here")
            elif isinstance(leaf, ValueIndex):
                self.require(leaf.value.dtype is torch.int64, "a run-time index is int64")
                self.value(leaf.value, bound)

    def value(self, root: Value, bound: frozenset[Axis]) -> None:
        stack = [(root, bound)]
        while stack:
            node, scope = stack.pop()
            if (node, scope) in self.seen:
                continue
            self.seen.add((node, scope))
            self.node(node, scope)
            inner = scope | frozenset(node.axes) if isinstance(node, Reduction) else scope
            stack.extend((part, inner) for part in node.operands)

    def node(self, node: Value, bound: frozenset[Axis]) -> None:
        match node:
            case Load(buffer=name, index=index, dtype=dtype, mask=mask):
                buffer = self.buffer(name)
                self.reads(name)
                self.require(dtype is buffer.dtype, f"{name} holds {buffer.dtype}, not {dtype}")
                self.index(index, buffer, bound, mask is not None)
                self.require(mask is None or mask.dtype is torch.bool, "a mask is bool")
            case IndexValue(expr=expr):
                self.expr(expr, bound)
            case Reduction(op=op, axes=axes, value=value, dtype=dtype):
                self.require(op in REDUCTIONS or op in ORDERS, f"no such reduction: {op}")
                self.axes(axes, bound, shadow=True)
                is_place = op.startswith("arg") or op in ORDERS
                want = torch.int64 if is_place else value.dtype
                self.require(dtype is want, f"{op} of {value.dtype} is {dtype}")
            case Scan(op=op, axis=axis, value=value, dtype=dtype):
                self.require(op in SCANS, f"no such scan: {op}")
                self.require(axis in bound, f"axis {axis.name} of a scan is not bound here")
                self.require(axis not in self.outer, f"a scan over the outer axis {axis.name}")
                self.require(dtype is value.dtype, f"{op} of {value.dtype} is {dtype}")
            case Pick(row=row, rank=rank, part=part, dtype=dtype):
                self.require(row.op in ORDERS, f"{row.op} makes no row")
                self.expr(rank, bound)
                want = row.value.dtype if part == "value" else torch.int64
                self.require(dtype is want, f"the {part} is {want}, not {dtype}")
            case Compute():
                self.compute(node)
            case Cast():
                self.require(node.dtype is not node.value.dtype, "a cast to the same dtype")

    def compute(self, node: Compute) -> None:
        row = SCALARS.get(node.op)
        self.require(
            row is not None and row.arity == len(node.args), f"op {node.op} on {len(node.args)}"
        )
        assert row is not None
        operands = node.args
        if row.conditional:
            self.require(operands[0].dtype is torch.bool, "a condition is bool")
            operands = operands[1:]
        dtypes = {arg.dtype for arg in operands}
        self.require(len(dtypes) == 1, f"{node.op} mixes {sorted(map(str, dtypes))}")
        dtype = operands[0].dtype
        self.require(row.takes(dtype), f"{node.op} is for {row.operands}, not {dtype}")
        want = torch.bool if row.boolean else dtype
        self.require(node.dtype is want, f"{node.op} of {want} typed {node.dtype}")


def _is_exact(expr: Expr) -> bool:
    """Return whether the index attains its bounds: every axis moves it independently."""
    atoms = linear(expr)[1]
    fixed = (isinstance(a, AxisVar) and not isinstance(a.axis.extent, Size) for a in atoms)
    return isinstance(expr, AxisVar) or all(fixed)
