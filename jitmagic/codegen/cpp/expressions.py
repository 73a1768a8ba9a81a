"""Prints values and offsets as C++ expressions: scalars, and jm::Vec along the open vector loop.

In: values of the linear form. Out: text. What the text needs (widths of vectors, operations that
were registered at run time, sizes to compute above the loops) is noted while it is printed.
"""

from __future__ import annotations

import math

import torch

from ...loops.expr import (
    Apply,
    Axis,
    AxisVar,
    Expr,
    FloorDiv,
    Integer,
    Mod,
    Symbol,
    add,
    axes_of,
    bounds,
    coefficient,
    leaves,
    linear,
    mul,
)
from ...loops.ir import Cast, Compute, Constant, IndexValue, Load, Value
from ...loops.values import HALVES
from ...operators.scalar import SCALARS
from ...symbols.size import Dimension, expr_of
from ..kernel import (
    NATIVE,
    Atomic,
    Check,
    Kernel,
    LanesBelow,
    Partial,
    Result,
    Scratch,
    Store,
    TileRow,
    Total,
    Var,
    VarIndex,
)
from ..text import OffsetText, argument_names, terms_text
from .blocks import LONG_WIDE_BLOCK, WIDE_BLOCKS
from .ops import INFIX, call_text, is_infix
from .reductions import Accumulator
from .text import CTYPES, element, is_reserved, literal, renamed

__all__ = ["CppExpressions"]

_LONG = torch.int64
_SIZE_CALLS = {"//": "floordiv", "%": "wrapped", "min": "minimum", "max": "maximum"}
_LANE_CALLS = {"//": "floordiv", "%": "remainder"}


class CppExpressions(OffsetText):
    """Prints expressions of one kernel. `lane` and `width`: the axis of the open vector loop, and
    the number of its lanes.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        # Lambdas of kernels with dynamic sizes have parameters of these names.
        own = {"count", "some", *(s.name for s in kernel.sizes)} if kernel.sizes else set()
        params = [param.name for param in kernel.params]
        self.names = argument_names(params, own, is_reserved, renamed)
        self.scratch: dict[str, Scratch] = {}
        self.lane: Axis | None = None
        self.width = 1
        self.widths: set[int] = set()
        self.registered: set[str] = set()
        self.hoisted: dict[str, str] = {}  # name -> a call of sizes alone
        self._sizes: dict[Expr, str] = {}

    @property
    def count(self) -> str:
        return "L" if self.width == NATIVE else str(self.width)

    # -- values ------------------------------------------------------------------------------------

    def value(self, node: Value) -> str:
        """Return the expression of a value."""
        match node:
            case Var(name):
                return name
            case Constant(value, dtype):
                return literal(value, dtype)
            case Load():
                return self.load(node)
            case Cast(value, dtype):
                return f"jm::convert<{CTYPES[dtype]}>({self.value(value)})"
            case Compute():
                return self.compute(node)
            case IndexValue(expr, dtype):
                return self.position(expr, dtype)
            case Result(total, _, across):
                return self.accumulator(total).result(across)
            case Partial(total, _, across):
                return self.accumulator(total).partial(across)
            case TileRow(tile, row):
                return f"{tile}[{self.index(row)}]"
            case LanesBelow(bound, first):
                return f"jm::lanes_below<{self.count}>({self.value(bound)}, {self.index(first)})"
        raise TypeError(f"no C++ for {type(node).__name__}")

    def compute(self, node: Compute) -> str:
        """Return a scalar operation; operands of a function are all vectors or all scalars."""
        op, args = node.op, node.args
        if SCALARS[op].texts is not None:
            self.registered.add(op)
        is_vector = self.is_vector(node)
        if is_infix(op, node.dtype):
            texts = [self.closed(arg) for arg in args]
        else:
            texts = [self.operand(op, arg, is_vector) for arg in args]
        return call_text(op, texts, node.dtype, args[-1].dtype)

    def operand(self, op: str, arg: Value, vector: bool) -> str:
        # The infix operators of jm::Vec take a scalar on either side.
        infix = op in INFIX and arg.dtype in (torch.float32, torch.float64)
        return self.as_vector(arg) if vector and not infix else self.value(arg)

    def as_vector(self, value: Value) -> str:
        """Return the value as a vector."""
        text = self.value(value)
        return text if self.is_vector(value) else f"{self.vector_type(value.dtype)}({text})"

    def vector_type(self, dtype: torch.dtype) -> str:
        if self.width != NATIVE:
            self.widths.add(self.width)
        return f"V{self.count}<{CTYPES[dtype]}>"

    def is_vector(self, node: Value) -> bool:
        """Return whether the expression has one element per lane."""
        match node:
            case Var(lanes=lanes):
                return lanes != 1
            case Result(total, _, across):
                return total.var.lanes != 1 and not across
            case TileRow() | LanesBelow():
                return True
            case IndexValue(expr):
                return self.varies(expr)
            case Load(buffer, (offset,), mask=mask):
                wide = buffer in self.scratch and self.scratch[buffer].lanes > 1
                return wide or self.varies(offset) or (mask is not None and self.is_vector(mask))
        return any(map(self.is_vector, node.operands))

    def varies(self, expr: Expr) -> bool:
        """Return whether an offset differs from lane to lane."""
        found = leaves(expr)
        return (self.lane is not None and self.lane in axes_of(expr)) or any(
            isinstance(leaf, VarIndex) and leaf.var.lanes != 1 for leaf in found
        )

    def closed(self, node: Value) -> str:
        """Return the expression, in parentheses if an adjacent operator could bind to a part."""
        text = self.value(node)
        is_negative = isinstance(node, Constant) and (
            math.copysign(1, node.value) < 0 and node.dtype in _SIGNED_LITERALS
        )
        is_open = isinstance(node, Compute) and is_infix(node.op, node.dtype)
        return f"({text})" if is_negative or is_open else text

    def position(self, expr: Expr, dtype: torch.dtype) -> str:
        if not self.varies(expr):
            return f"{CTYPES[dtype]}({self.index(expr)})"
        lanes = self.lane_index(expr)
        return lanes if dtype == _LONG else f"jm::convert<{CTYPES[dtype]}>({lanes})"

    # -- reductions --------------------------------------------------------------------------------

    def accumulator(self, total: Total) -> Accumulator:
        if total.var.lanes > 1:
            self.widths.add(total.var.lanes)
        single = ""
        if total.one_block is not None:
            stop, size = total.one_block
            single = f"{self.index(stop)} <= {self.index(size)}"
        return Accumulator(total, single)

    def accumulate(self, total: Total, value: Value, position: Expr | None) -> str:
        is_vector = total.var.lanes > 1
        text = self.as_vector(value) if is_vector else self.value(value)
        if total.var.dtype != value.dtype:
            text = f"jm::convert<{CTYPES[total.var.dtype]}>({text})"
        at = ""
        if position is not None:
            varies, at = self.varies(position), self.index(position)
            at = self.lane_index(position) if varies else at
            if is_vector and not varies:
                at = f"{self.vector_type(_LONG)}({at})"
        return self.accumulator(total).update(text, at, self.lane in total.axes)

    # -- memory ------------------------------------------------------------------------------------

    def step(self, offset: Expr) -> int | Expr | None:
        """Return the elements between neighbouring lanes; None when that is not a constant."""
        assert self.lane is not None
        if any(isinstance(leaf, VarIndex) and leaf.var.lanes != 1 for leaf in leaves(offset)):
            return None
        return coefficient(offset, self.lane)

    def load(self, node: Load) -> str:
        if node.buffer in self.scratch:
            return self.load_scratch(node)
        pointer, (offset,), mask = self.names[node.buffer], node.index, node.mask
        fill = literal(node.fill, node.dtype)
        if not self.is_vector(node):
            index = self.index(offset)
            if mask is None:
                return element(pointer, index, node.dtype)
            ctype = CTYPES[node.dtype]
            return f"jm::load_if<{ctype}>({self.value(mask)}, {pointer}, {index}, {fill})"
        step = self.step(offset)
        if mask is None:
            return self.load_lanes(pointer, offset, step)
        lanes = self.as_vector(mask)
        if step == 1:
            return f"jm::load_where({self.pointer(pointer, offset)}, {lanes}, {fill}, n)"
        return f"jm::gather_where({pointer}, {self.lane_index(offset)}, {lanes}, {fill}, n)"

    def load_lanes(self, pointer: str, offset: Expr, step: int | Expr | None) -> str:
        if step is None:
            return f"jm::gather({pointer}, {self.lane_index(offset)}, n)"
        at = self.pointer(pointer, offset)
        if step == 1:
            return f"jm::load<{self.count}>({at}, n)"
        return f"jm::load_strided<{self.count}>({at}, {self.size(step)}, n)"

    def load_scratch(self, node: Load) -> str:
        """Return an element of the kernel's own memory, or the vector that an element is."""
        memory, (offset,) = self.scratch[node.buffer], node.index
        if memory.lanes > 1:
            at = self.pointer(memory.name, mul(offset, memory.lanes))
            return f"jm::load<{self.count}>({at}, jm::Full{{}})"
        if self.is_vector(node):
            return f"jm::load<{self.count}>({self.pointer(memory.name, offset)}, n)"
        return f"{memory.name}[{self.index(offset)}]"

    def pointer(self, pointer: str, offset: Expr) -> str:
        return pointer if offset == Integer(0) else f"{pointer} + {self.index(offset)}"

    def store(self, store: Store) -> str:
        """Return the statement that writes one point (or block)."""
        memory, offset, value = self.scratch.get(store.buffer), store.offset, store.value
        pointer = self.names[store.buffer] if memory is None else memory.name
        if memory is not None and memory.lanes > 1:
            at = self.pointer(pointer, mul(offset, memory.lanes))
            return f"jm::store({at}, {self.as_vector(value)}, jm::Full{{}});"
        step = 0 if self.lane is None else self.step(offset)
        is_atomic, dtype = isinstance(store, Atomic), value.dtype
        if step == 0:
            index, text = self.index(offset), self.value(value)
            if is_atomic:
                text = self.sum(element(pointer, index, dtype), text, dtype)
            return f"{pointer}[{index}] = {text};"
        text = self.as_vector(value)
        if step is None:
            return f"jm::scatter({pointer}, {self.lane_index(offset)}, {text}, n);"
        at = self.pointer(pointer, offset)
        if step != 1:
            return f"jm::store_strided({at}, {self.size(step)}, {text}, n);"
        if is_atomic:
            text = self.sum(f"jm::load<{self.count}>({at}, n)", text, dtype)
        return f"jm::store({at}, {text}, n);"

    def sum(self, a: str, b: str, dtype: torch.dtype) -> str:
        if dtype in HALVES:
            total = f"jm::convert<float>({a}) + jm::convert<float>({b})"
            return f"jm::convert<{CTYPES[dtype]}>({total})"
        return f"jm::add({a}, {b})"

    def check(self, check: Check) -> str:
        """Return the statement that checks a run-time index."""
        index, mask = self.value(check.index), check.mask
        is_long, limit = check.index.dtype == _LONG, self.size(check.extent)
        if self.is_vector(check.index):
            index = index if is_long else f"jm::convert<int64_t>({index})"
            used = "" if mask is None else f"{self.as_vector(mask)}, "
            code = f"jm::checked<{self.count}>({index}, {limit}, bad, {used}n)"
        else:
            index, used = index if is_long else f"int64_t({index})", ""
            if mask is not None and self.is_vector(mask):  # it is checked if any lane is on
                used = f", jm::any({self.value(mask)} & jm::valid<{self.count}>(n))"
            elif mask is not None:
                used = f", {self.value(mask)}"
            code = f"jm::checked({index}, {limit}, bad{used})"
        return f"const auto {check.var.name} = {code};"

    # -- offsets -----------------------------------------------------------------------------------

    def size(self, size: Dimension | Expr) -> str:
        """Return an extent or a stride in int64 arithmetic."""
        return self.index(size if isinstance(size, Expr) else expr_of(size))

    def index(self, expr: Expr) -> str:
        """Return a scalar offset in int64 arithmetic; axes are variables of their own name."""
        constant, terms = linear(expr)
        negative = [f"-{self.atom(atom)}" for atom, n in terms.items() if n == -1]
        others = {atom: n for atom, n in terms.items() if n != -1}
        return terms_text(negative, others, constant, self.atom)

    def closed_index(self, expr: Expr) -> str:
        constant, terms = linear(expr)
        is_closed = len(terms) + bool(constant) <= 1 and all(
            n == 1 and not (isinstance(atom, Apply) and atom.op == "*") for atom, n in terms.items()
        )
        return self.index(expr) if is_closed and constant >= 0 else f"({self.index(expr)})"

    def divided(self, sign: str, a: Expr, b: int) -> str:
        # C++ rounds to zero, which is floor division only for non-negative operands.
        if bounds(a)[0] >= 0:
            return f"({self.closed_index(a)} {sign[0]} {b})"
        return f"jm::{_LANE_CALLS[sign]}(int64_t({self.index(a)}), int64_t({b}))"

    def sized(self, expr: Apply) -> str:
        """Return arithmetic over dynamic sizes. A call of sizes alone is computed above the
        loops: a division by a run-time size takes as long as ten elements of a row.
        """
        args = expr.args
        match expr.op:
            case "*":
                return " * ".join(map(self.closed_index, args))
            case "least_of":
                return f"jm::least_of({', '.join(map(self.index, args))})"
            case "opaque":
                return f"jm::opaque({self.index(args[0])})"
            case "wide_block":
                return self.wide_block(*args)
        if expr in self._sizes:
            return self._sizes[expr]
        name = _SIZE_CALLS.get(expr.op, expr.op)
        code = f"jm::{name}({', '.join(f'int64_t({self.index(arg)})' for arg in args)})"
        if not all(isinstance(leaf, Symbol) for leaf in leaves(expr)):
            return code
        name = self._sizes[expr] = f"size{len(self._sizes)}"
        self.hoisted[name] = code
        return name

    def wide_block(self, stop: Expr, width: Expr) -> str:
        """Return the points of a block of a sum whose blocks are added in float64."""
        steps = str(LONG_WIDE_BLOCK)
        for most, fewer in reversed(WIDE_BLOCKS):
            steps = f"{self.index(stop)} <= {most} ? {fewer} : {steps}"
        return f"({self.index(width)} * ({steps}))"

    def lane_index(self, expr: Expr) -> str:
        """Return an offset that differs from lane to lane, as Vec<int64_t>."""
        varying = {a: f for a, f in linear(expr)[1].items() if self.varies(a)}
        parts, rest = [], expr
        for atom, factor in varying.items():
            text = self.lane_atom(atom)
            parts.append(text if factor == 1 else f"{text} * {factor}")
            rest = add(rest, mul(atom, -factor))
        if rest != Integer(0) or not parts:
            parts.append(f"{self.vector_type(_LONG)}({self.index(rest)})")
        return " + ".join(parts)

    def lane_atom(self, expr: Expr) -> str:
        match expr:
            case AxisVar(axis):
                return f"jm::iota<int64_t, {self.count}>({axis.name})"
            case FloorDiv(a, b):
                return f"jm::floordiv({self.lane_index(a)}, {self.vector_type(_LONG)}({b}))"
            case Mod(a, b):
                return f"jm::remainder({self.lane_index(a)}, {self.vector_type(_LONG)}({b}))"
            case VarIndex(var):
                return var.name
            case Apply("*", args):
                return f"({' * '.join(f'({self.lane_index(part)})' for part in args)})"
            case Apply(op, args):
                return f"jm::{_LANE_CALLS[op]}({', '.join(map(self.lane_index, args))})"
        raise TypeError(f"not an atom of an index: {expr!r}")


_SIGNED_LITERALS = (torch.float32, torch.float64, torch.int32)
