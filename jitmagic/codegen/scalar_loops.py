"""Renders nests as scalar loops in any language: the base of renderers without vectors or tiles.

In: the nests of a schedule, the buffers. Out: KernelSource; every kernel has the ABI of the C++
tier, `int (void* const* args)`, and returns 1 when a run-time index was out of range. A renderer
is a `LoopRenderer` with a `LoopText`, whose abstract methods are the syntax of its language:
numba.py has Python's, demos/extend_device.py has C's. It may refuse an operation or a dtype by
raising CannotRender, or ToolchainError; the graph then runs by the next tier.

Every value is a variable, which is set in the outermost loop that binds all of its axes, so that
loop-invariant values are computed before the inner loop. Offsets are in elements, int64. Sums and
products of float32 accumulate in float64, and sums of float64 are compensated (TwoSum), so that
long sums are as exact as short ones. Dynamic sizes are one more argument, an array of int64.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar

import torch

from ..devices import Target
from ..lazy_dataclass import dataclass, field
from ..loops.expr import (
    Add,
    Apply,
    Axis,
    AxisVar,
    Expr,
    FloorDiv,
    Integer,
    Mod,
    Symbol,
    ValueIndex,
    add,
)
from ..loops.ir import (
    Buffer,
    Cast,
    Compute,
    Constant,
    IndexValue,
    Load,
    Nest,
    Reduction,
    Store,
    Value,
)
from ..loops.values import identity
from ..operators.scalar import REDUCTIONS
from ..symbols.polynomial import product
from ..symbols.size import Size, expr_of
from .attention.kernel import Kernel
from .loop_structure import Pass, Structure, passes_in, structure
from .plan import Config, KernelSource
from .scoped_text import Scope, ScopedText, Text, argument_names, sum_text

__all__ = ["LoopRenderer", "LoopText"]

_LONG = torch.int64


@dataclass(slots=True)
class _Scope(Scope):
    """Represents one open block, with the run-time indexes that are checked in it."""

    checked: dict[tuple[ValueIndex, str], str] = field(default_factory=dict)


class LoopText(ScopedText[_Scope], ABC):
    """Writes one function. A language's subclass has the abstract methods, and `end`, `both` and
    `either`: the end of a statement, and the operators of logic.

    The texts that they take are names, literals or expressions; they return expressions, and
    whole lines where that is said.
    """

    scope_type = _Scope
    first_depth = 1
    end: ClassVar[str] = ""
    both: ClassVar[str] = "and"
    either: ClassVar[str] = "or"

    def __init__(self, kernel: Structure, buffers: Mapping[str, Buffer]) -> None:
        sizes = {symbol.name for symbol in kernel.symbols}
        names = argument_names(kernel.arguments, sizes, self.is_reserved)
        super().__init__(kernel, names, buffers)

    # -- the syntax of a language ------------------------------------------------------------------

    @abstractmethod
    def is_reserved(self, name: str) -> bool:
        """Return whether a name has a meaning in kernels, and cannot be an argument's."""

    @abstractmethod
    def signature(self) -> tuple[list[str], str, str]:
        """Return lines above the function, its head, and its last line ("" if it has none)."""

    @abstractmethod
    def argument(self, number: int, name: str, dtype: torch.dtype) -> str:
        """Return the line that names an argument: a pointer to elements."""

    @abstractmethod
    def size(self, number: int, place: int, name: str) -> str:
        """Return the line that reads a size: element `place` of the array in an argument."""

    @abstractmethod
    def loop(self, variable: str, extent: str) -> tuple[str, str]:
        """Return the head and the last line of a loop from 0."""

    @abstractmethod
    def let(self, name: str, code: str, dtype: torch.dtype) -> str:
        """Return the line that declares a variable."""

    @abstractmethod
    def when(self, condition: str, lines: Sequence[str]) -> list[str]:
        """Return the lines of a conditional block."""

    @abstractmethod
    def choose(self, condition: str, chosen: str, otherwise: str) -> str:
        """Return the expression that evaluates one of two."""

    @abstractmethod
    def literal(self, value: bool | int | float, dtype: torch.dtype) -> str:
        """Return a constant of exactly that dtype."""

    @abstractmethod
    def cast(self, code: str, source: torch.dtype, dtype: torch.dtype) -> str:
        """Return a value converted as Tensor.to converts it."""

    @abstractmethod
    def compute(
        self, op: str, args: Sequence[str], dtype: torch.dtype, operand: torch.dtype
    ) -> str:
        """Return a scalar operation (operators/scalar.py) on operands of one dtype."""

    @abstractmethod
    def narrow(self, code: str, source: torch.dtype, dtype: torch.dtype) -> str:
        """Return the value of an accumulator in the dtype of its result."""

    @abstractmethod
    def finite(self, code: str) -> str:
        """Return whether a float64 is neither infinite nor NaN."""

    @abstractmethod
    def element(self, name: str, index: str, dtype: torch.dtype) -> str:
        """Return the value of an element in memory."""

    @abstractmethod
    def set_element(self, name: str, index: str, value: str, dtype: torch.dtype) -> str:
        """Return the line that sets an element in memory."""

    def divide(self, a: str, b: str) -> str:
        """Return the quotient of integers, rounded down; `b` is positive."""
        return f"(({a}) // {b})"

    def modulo(self, a: str, b: str) -> str:
        """Return the remainder of integers, which is not negative; `b` is positive."""
        return f"(({a}) % {b})"

    def arithmetic(self, op: str, texts: Sequence[str]) -> str:
        """Return arithmetic of sizes: "+", "*", "//", "%", "min" or "max"."""
        if op in ("min", "max"):
            return f"{op}({', '.join(texts)})"
        return "(" + f" {op} ".join(f"({text})" for text in texts) + ")"

    # -- statements --------------------------------------------------------------------------------

    def lines(self, texts: Iterable[str]) -> None:
        self.scopes[-1].lines.extend(texts)

    def assign(self, name: str, code: str) -> str:
        """Return the line that changes a variable."""
        return f"{name} = {code}{self.end}"

    def loops(self, axes: tuple[Axis, ...]) -> None:
        """Open one loop per axis."""
        for axis in axes:
            extent = self._index(expr_of(axis.extent), 0)
            head, last = self.loop(_variable(axis), extent)
            self.open(head, (axis,), last)

    def close_all(self, axes: tuple[Axis, ...]) -> None:
        """Close the loops of these axes."""
        for _ in axes:
            self.close()

    def function(self) -> list[str]:
        """Return the whole function."""
        above, head, last = self.signature()
        self.open(head, footer=last)
        for number, name in enumerate(self.kernel.arguments):
            self.line(self.argument(number, self.names[name], self.buffers[name].dtype))
        for place, symbol in enumerate(self.kernel.symbols):
            self.line(self.size(len(self.kernel.arguments), place, symbol.name))
        self.line(self.let("bad", "0", torch.int32))
        self.loops(self.kernel.outer)
        for pass_ in self.kernel.passes:
            self._pass(pass_)
        self.close_all(self.kernel.outer)
        self.line(f"return bad{self.end}")
        self.close()
        return [*above, *self.scopes[0].lines]

    def _pass(self, pass_: Pass) -> None:
        totals = [_Accumulator(self, node) for node in pass_.reductions]
        for total in totals:
            self.lines(total.declare())
        self.loops(pass_.axes)
        for nested in passes_in(self.bound, (), pass_.roots, self.kernel.free, ready=self.ready()):
            self._pass(nested)
        for total in totals:
            self.lines(total.update())
        self.lines([self._store(store) for store in pass_.stores])
        self.close_all(pass_.axes)
        for total in totals:
            name = self.name()
            self.line(self.let(name, total.result(), total.node.dtype))
            self.define(total.node, name)

    # -- values ------------------------------------------------------------------------------------

    def name_of(self, value: Value) -> str:
        """Return the variable of the value; its statements are added where they are missing."""
        return self.reach(value, self.depth).code

    def constant(self, node: Constant) -> str:
        return self.literal(node.value, node.dtype)

    def enter(self, node: Value) -> None:
        if isinstance(node, Constant):
            super().enter(node)
            return
        depth = self.home(self.free[node], node.operands)
        code, name = self.code_of(node, depth), self.name()
        self.scopes[depth].lines.append(self.let(name, code, node.dtype))
        self.scopes[depth].texts[node] = Text(name, depth, named=True)

    def code_of(self, node: Value, depth: int) -> str:
        match node:
            case Load():
                return self._load(node, depth)
            case Cast(value=value, dtype=dtype):
                return self.cast(self.name_of(value), value.dtype, dtype)
            case Compute(op=op, args=args, dtype=dtype):
                return self.compute(op, [*map(self.name_of, args)], dtype, args[-1].dtype)
            case IndexValue(expr=expr, dtype=dtype):
                return self.cast(f"({self._index(expr, depth)})", _LONG, dtype)
        raise TypeError(f"no text for {type(node).__name__} here")

    # -- memory ------------------------------------------------------------------------------------

    def _load(self, node: Load, depth: int) -> str:
        fill = self.literal(node.fill, node.dtype)
        if 0 in self.buffers[node.buffer].shape:
            return fill
        mask = "" if node.mask is None else self.name_of(node.mask)
        index = self._index(node.index[0], depth, mask)
        code = self.element(self.names[node.buffer], index, node.dtype)
        return self.choose(mask, f"({code})", fill) if mask else code

    def _store(self, store: Store) -> str:
        """Return the statement that writes one point of a store."""
        value, dtype = self.name_of(store.value), store.value.dtype
        for part in IndexValue(store.index[0]).operands:
            self.name_of(part)
        name, index = self.names[store.buffer], self.index(store.index[0])
        if store.mode == "add":
            old = self.element(name, index, dtype)
            is_bool = dtype == torch.bool
            value = (
                f"{old} {self.either} {value}"
                if is_bool
                else self.compute("add", [old, value], dtype, dtype)
            )
        return self.set_element(name, index, value, dtype)

    # -- indexes -----------------------------------------------------------------------------------

    def index(self, expr: Expr) -> str:
        """Return an offset for use in the innermost block."""
        return self._index(expr, self.depth)

    def _index(self, expr: Expr, depth: int, mask: str = "") -> str:
        return sum_text(expr, lambda atom: self._atom(atom, depth, mask))

    def _atom(self, expr: Expr, depth: int, mask: str) -> str:
        match expr:
            case AxisVar(axis):
                return _variable(axis)
            case ValueIndex():
                return self._checked(expr, depth, mask)
            case FloorDiv(a, b):
                return self.divide(self._index(a, depth, mask), str(b))
            case Mod(a, b):
                return self.modulo(self._index(a, depth, mask), str(b))
            case Integer() | Add():
                return f"({self._index(expr, depth, mask)})"
            case Symbol(name):
                return name
            case Apply(op, args):
                return self.arithmetic(op, [self._index(part, depth, mask) for part in args])
        raise TypeError(f"not an index expression: {expr!r}")

    def _checked(self, index: ValueIndex, depth: int, mask: str) -> str:
        """Check a run-time index: a negative one counts from the end, one out of range sets
        `bad`.
        """
        for scope in self.scopes[: depth + 1]:
            if (index, mask) in scope.checked:
                return scope.checked[index, mask]
        value, at = self.name_of(index.value), self.name("at")
        extent = self._index(expr_of(index.extent), 0)
        extent = f"({extent})" if isinstance(index.extent, Size) else extent
        signed = self.choose(f"{value} < 0", f"{value} + {extent}", value)
        bad = self.choose(mask, "1", "bad") if mask else "1"
        self.scopes[depth].lines += [
            self.let(at, self.narrow(signed, index.value.dtype, _LONG), _LONG),
            *self.when(
                f"{at} < 0 {self.either} {at} >= {extent}",
                [self.assign(at, "0"), self.assign("bad", bad)],
            ),
        ]
        self.scopes[depth].checked[index, mask] = at
        return at


class _Accumulator:
    """Writes one reduction's accumulator."""

    def __init__(self, body: LoopText, node: Reduction) -> None:
        self.body, self.node, self.name = body, node, body.name("acc")
        self.dtype = node.value.dtype
        self.positional = node.op in ("argmax", "argmin")
        # Eager sums floats in cascade; a single float32 accumulator would err by the length of the
        # sum.
        wide = node.op in ("sum", "prod") and self.dtype.is_floating_point
        self.accumulated_as = torch.float64 if wide else self.dtype
        self.compensated = node.op == "sum" and self.dtype == torch.float64
        self.boolean = self.dtype == torch.bool or node.op in ("any", "all")

    def declare(self) -> list[str]:
        """Return the initialisation of the accumulator."""
        let, dtype = self.body.let, self.accumulated_as
        start = self.body.literal(identity(self.node.op, self.dtype), dtype)
        lines = [let(self.name, start, dtype)]
        if self.compensated:
            lines.append(let(f"{self.name}_lost", start, dtype))
        if self.positional:
            lines.append(let(f"{self.name}_at", self.body.literal(-1, _LONG), _LONG))
        return lines

    def update(self) -> list[str]:
        """Accumulate one value; NaN wins in max and min, the first of equals in argmax and
        argmin.
        """
        body, acc, op = self.body, self.name, self.node.op
        value = body.name_of(self.node.value)
        if self.positional:
            return self._position(value)
        if self.boolean:
            word = body.both if identity(op, torch.bool) else body.either
            return [body.assign(acc, f"{acc} {word} {value}")]
        if self.compensated:
            return self._compensate(value)
        if op in ("sum", "prod"):
            total = f"{acc} {'+' if op == 'sum' else '*'} {value}"
            return [body.assign(acc, body.narrow(total, torch.bool, self.accumulated_as))]
        return [
            body.assign(acc, body.compute(REDUCTIONS[op], [value, acc], torch.bool, self.dtype))
        ]

    def _position(self, value: str) -> list[str]:
        """Keep the row-major position of the best value among the reduction's axes."""
        body, acc = self.body, self.name
        position: Expr = Integer(0)
        for axis in self.node.axes:
            position = add(product(position, expr_of(axis.extent)), AxisVar(axis))
        sign = ">" if self.node.op == "argmax" else "<"
        better = f"{acc}_at < 0 {body.either} {value} {sign} {acc}"
        if self.dtype.is_floating_point:
            better += f" {body.either} ({value} != {value} {body.both} {acc} == {acc})"
        found = body.assign(f"{acc}_at", body.index(position))
        return body.when(better, [body.assign(acc, value), found])

    def _compensate(self, value: str) -> list[str]:
        body, acc, double = self.body, self.name, torch.float64
        lost = f"({acc} - ({acc}_new - {acc}_taken)) + ({value} - {acc}_taken)"
        return [
            body.let(f"{acc}_new", f"{acc} + {value}", double),
            body.let(f"{acc}_taken", f"{acc}_new - {acc}", double),
            f"{acc}_lost += {lost}{body.end}",
            body.assign(acc, f"{acc}_new"),
        ]

    def result(self) -> str:
        """Return the reduction's value."""
        if self.positional:
            return f"{self.name}_at"
        if self.compensated:  # the error term is NaN if the sum is infinite
            whole = f"({self.name} + {self.name}_lost)"
            return f"({self.body.choose(self.body.finite(self.name), whole, self.name)})"
        if self.accumulated_as == self.dtype:
            return self.name
        return self.body.narrow(self.name, self.accumulated_as, self.dtype)


class LoopRenderer(ABC):
    """Renders nests as scalar loops on one thread; stateless. `text` has the language's syntax."""

    language: str = ""  # one that is registered has the name of its registration
    text: ClassVar[type[LoopText]]

    def candidates(
        self, nest: Kernel, buffers: Mapping[str, Buffer], target: Target
    ) -> tuple[Config, ...]:
        """Return no candidates: a scalar loop on one thread has no variants."""
        return ()

    @abstractmethod
    def module(self, functions: Sequence[str]) -> str:
        """Return the text of all kernels, given that of each."""

    def render(
        self,
        nests: Sequence[Kernel],
        buffers: Mapping[str, Buffer],
        target: Target,
        configs: Mapping[str, Config] = MappingProxyType({}),
    ) -> KernelSource:
        """Return the text of all kernels, and the argument dtypes of each."""
        symbols, functions = {}, []
        for nest in nests:
            assert isinstance(nest, Nest)  # calls of flex_attention stay calls in this tier
            kernel = structure(nest, buffers)
            functions.append("\n".join(self.text(kernel, buffers).function()))
            dtypes = tuple(buffers[name].dtype for name in kernel.arguments)
            # Dynamic sizes are one more argument: compiling for each size took 0.25 to 1.7 s.
            symbols[kernel.name] = (*dtypes, torch.int64) if kernel.symbols else dtypes
        return KernelSource(self.language, self.module(functions), symbols)


def _variable(axis: Axis) -> str:
    return re.sub(r"\W", "_", axis.name)
