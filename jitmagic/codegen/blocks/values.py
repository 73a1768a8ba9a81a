"""Computes scalars, blocks of them, and the integers of offsets and sizes.

In: registers and index expressions. Out: instructions in an Assembly, each in the outermost scope
that has its operands, and the registers that they define; an expression is computed once per scope.
Along the axis of blocks an offset that grows evenly is its value at the first lane, and a step; any
other one is a block of integers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ...errors import CannotRender
from ...loops.expr import (
    Apply,
    Axis,
    AxisVar,
    Expr,
    FloorDiv,
    Integer,
    Mod,
    Symbol,
    axes_of,
    coefficient,
    linear,
)
from ...loops.ir import Value
from ...symbols.expr import integer
from ..kernel import VarIndex
from ..kernel_values import variables_in
from .assembly import Assembly, Register
from .ops import OF_SIZES

__all__ = ["ONE", "TYPES", "Values", "bits_of", "type_of"]

TYPES: Mapping[torch.dtype, str] = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "f8",
    torch.bool: "b8",
    **{getattr(torch, f"int{bits}"): f"i{bits}" for bits in (8, 16, 32, 64)},
    **{getattr(torch, f"uint{bits}"): f"u{bits}" for bits in (8, 16, 32, 64)},
}
NONE, ONE = integer(0), integer(1)  # expressions are interned


def type_of(dtype: torch.dtype) -> str:
    """Return the name of an element type. Raises CannotRender."""
    if dtype not in TYPES:
        raise CannotRender("blocks", f"{dtype} tensors")
    return TYPES[dtype]


def bits_of(value: bool | int | float, kind: str) -> str:
    """Return the bits of a constant in hexadecimal."""
    if kind in ("f32", "f64", "f16", "bf16"):
        dtype = next(dtype for dtype, name in TYPES.items() if name == kind)
        exact = torch.tensor(float(value), dtype=dtype)
        size = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
        return f"{int(exact.view(size).item()) % 2 ** (8 * dtype.itemsize):x}"
    return f"{int(value) % 2**64:x}"


class Values:
    """Writes values into `code`; `lane` is the axis of blocks whose loop is open."""

    def __init__(self) -> None:
        self.code = Assembly()
        self.known: list[dict[object, Register]] = [{}]  # of each open scope
        self.values: dict[Value, Register] = {}
        self.axes: dict[Axis, Register] = {}
        self.lane: Axis | None = None

    def define(
        self, op: str, kind: str, is_block: bool, *operands: Register | int | str, depth: int = -1
    ) -> Register:
        """Write an instruction into the scope at `depth`; return the register that it defines."""
        depth = self.code.depth if depth < 0 else depth
        register = Register(kind, "block" if is_block else "scalar", depth)
        self.code.emit(op, register, *operands, depth=depth)
        return register

    def constant(self, value: bool | int | float, kind: str) -> Register:
        word = bits_of(value, kind)
        known = self.known[0]
        if (kind, word) not in known:
            known[kind, word] = self.define(f"const.{kind}", kind, False, word, depth=0)
        return known[kind, word]

    def number(self, value: int) -> Register:
        """Return a constant int64."""
        return self.constant(value, "i64")

    def as_block(self, register: Register) -> Register:
        """Return the block of which all elements are a scalar."""
        if register.is_block:
            return register
        known = self.known[register.depth]
        if register not in known:
            op, depth = f"fill.{register.type}", register.depth
            known[register] = self.define(op, register.type, True, register, depth=depth)
        return known[register]

    def converted(self, register: Register, kind: str) -> Register:
        if register.type == kind:
            return register
        return self.define(f"to_{kind}.{register.type}", kind, register.is_block, register)

    def apply(self, op: str, kind: str, *operands: Register) -> Register:
        """Apply a pointwise operation; the last operand has the type by which it is found."""
        is_block = any(each.is_block for each in operands)
        given = [self.as_block(each) if is_block else each for each in operands]
        return self.define(f"{op}.{operands[-1].type}", kind, is_block, *given)

    # -- indexes -----------------------------------------------------------------------------------

    def varies(self, expr: Expr) -> bool:
        """Return whether an expression depends on the axis of blocks."""
        if self.lane is None:
            return False
        blocks = (self.values[var].is_block for var in variables_in(expr))
        return self.lane in axes_of(expr) or any(blocks)

    def step(self, expr: Expr) -> Expr | None:
        """Return how far an offset moves from lane to lane; None if that is not a constant."""
        if self.lane is None:
            return NONE
        if any(self.values[var].is_block for var in variables_in(expr)):
            return None
        made = coefficient(expr, self.lane)
        return integer(made) if isinstance(made, int) else made

    def address(self, offset: Expr) -> tuple[Register, Register]:
        """Return the offset of the first lane, and the step between lanes; or an offset and a block
        of offsets to add to it.
        """
        step = self.step(offset)
        if step is not None:
            return self.integer(offset), self.integer(step)
        return self.number(0), self.indexes(offset)

    def integer(self, expr: Expr) -> Register:
        """Return an integer: at the first lane of a block, if it varies."""
        constant, terms = linear(expr)
        if not terms:
            return self.number(constant)
        factors = [(self.atom(atom), self.number(n)) for atom, n in terms.items()]
        if not constant and [*terms.values()] == [1]:
            return factors[0][0]
        depth = max(atom.depth for atom, _ in factors)
        if expr not in self.known[depth]:
            operands = [part for pair in factors for part in pair]
            made = self.define("sum", "i64", False, constant, *operands, depth=depth)
            self.known[depth][expr] = made
        return self.known[depth][expr]

    def atom(self, expr: Expr) -> Register:
        match expr:
            case AxisVar(axis):
                return self.axes[axis]
            case VarIndex(var):
                return self.values[var]
            case Symbol():
                return self.known[0][expr]
            case FloorDiv(a, b):
                return self.combined(expr, OF_SIZES["//"], (self.integer(a), self.number(b)))
            case Mod(a, b):
                return self.combined(expr, OF_SIZES["%"], (self.integer(a), self.number(b)))
            case Apply(op, args) if op in OF_SIZES:
                return self.combined(expr, OF_SIZES[op], [*map(self.integer, args)])
        raise TypeError(f"not an index expression: {expr!r}")

    def combined(self, expr: Expr, op: str, parts: Sequence[Register]) -> Register:
        """Return scalars combined, in the outermost scope that has all of them."""
        depth = max(part.depth for part in parts)
        if expr not in self.known[depth]:
            made = parts[0]
            for part in parts[1:]:
                made = self.define(f"{op}.i64", "i64", False, made, part, depth=depth)
            self.known[depth][expr] = made
        return self.known[depth][expr]

    def indexes(self, expr: Expr) -> Register:
        """Return the block of an expression's values."""
        known = self.known[-1]
        if ("block", expr) not in known:
            known["block", expr] = self.new_indexes(expr)
        return known["block", expr]

    def new_indexes(self, expr: Expr) -> Register:
        step = self.step(expr)
        if step is NONE:
            return self.as_block(self.integer(expr))
        if step is not None:
            operands = self.integer(expr), self.integer(step)
            return self.define("iota", "i64", True, *operands)
        constant, terms = linear(expr)
        made: Register | None = None
        for atom, n in terms.items():
            part = self.varying_atom(atom) if self.varies(atom) else self.integer(atom)
            if n != 1:
                part = self.apply("mul", "i64", part, self.number(n))
            made = part if made is None else self.apply("add", "i64", made, part)
        assert made is not None
        return self.apply("add", "i64", made, self.number(constant)) if constant else made

    def varying_atom(self, expr: Expr) -> Register:
        match expr:
            case AxisVar():
                return self.indexes(expr)
            case VarIndex(var):
                return self.values[var]
            case FloorDiv(a, b):
                return self.divided("quotients", a, Integer(b))
            case Mod(a, b):
                return self.divided("remainders", a, Integer(b))
            case Apply("//" | "%" as op, (a, b)) if not self.varies(b):
                return self.divided("quotients" if op == "//" else "remainders", a, b)
            case Apply(op, args) if op in OF_SIZES:
                made = self.indexes(args[0])
                for part in args[1:]:
                    made = self.apply(OF_SIZES[op], "i64", made, self.indexes(part))
                return made
        raise TypeError(f"not an index expression: {expr!r}")

    def divided(self, op: str, a: Expr, b: Expr) -> Register:
        """Return quotients or remainders, without divisions of what grows evenly with the lanes."""
        step, divisor = self.step(a), self.integer(b)
        if step is None:
            name = OF_SIZES["//" if op == "quotients" else "%"]
            return self.apply(name, "i64", self.indexes(a), divisor)
        steps = self.integer(step)
        return self.define(op, "i64", True, self.integer(a), steps, divisor)
