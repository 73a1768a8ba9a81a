"""Renders kernels as scalar loops in any language: the base of renderers without vectors or tiles.

In: the nests of a schedule, the buffers. Out: KernelSource; every kernel has the ABI of the C++
tier, `int (void* const* args)`, and returns 1 when a run-time index was out of range. A renderer
is a `LoopRenderer` with a `LoopText`, whose abstract methods are the syntax of its language:
numba/renderer.py has Python's, demos/extend_device.py has C's. It may refuse an operation or a
dtype by raising CannotRender, or ToolchainError; the graph then runs by the next tier.

What a kernel computes where is decided before (kernel.py, linearize.py, expand.py): every value is
a variable, set in the outermost loop that binds all of its axes. Offsets are in elements, int64.
Sums and products of float32 accumulate in float64, and sums of float64 are compensated, so that
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
from ..loops.expr import Apply, Axis, Expr
from ..loops.ir import Buffer, Cast, Compute, Constant, IndexValue, Load, Nest, Value
from ..symbols.size import Dimension, expr_of
from .attention.kernel import Kernel as Rendered
from .expand import expand
from .kernel import BAD, For, If, Kernel, Let, Set, Statement, Store, Var
from .linearize import linearize
from .loop_form import loop_form
from .loop_structure import structure
from .plan import Config, KernelSource
from .text import OffsetText, argument_names

__all__ = ["LoopRenderer", "LoopText"]

_LONG = torch.int64


class LoopText(OffsetText):
    """Writes one function. A language's subclass has the abstract methods, and `end`, `either`:
    the end of a statement, and the operator `or`.

    The texts that they take are names, literals or expressions; they return expressions, and
    whole lines where that is said.
    """

    end: ClassVar[str] = ""
    either: ClassVar[str] = "or"

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        sizes = {symbol.name for symbol in kernel.sizes}
        arguments = [param.name for param in kernel.params]
        self.names = argument_names(arguments, sizes, self.is_reserved)

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
        """Return the line that declares a variable, which may be assigned later."""

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

    def function(self) -> list[str]:
        """Return the whole function."""
        kernel = self.kernel
        above, head, last = self.signature()
        lines = [
            self.argument(number, self.names[param.name], param.dtype)
            for number, param in enumerate(kernel.params)
        ]
        count = len(kernel.params)
        lines += [self.size(count, n, symbol.name) for n, symbol in enumerate(kernel.sizes)]
        lines.append(self.let(BAD.name, "0", BAD.dtype))
        lines += [*self._block(kernel.body), f"return {BAD.name}{self.end}"]
        return [*above, head, *map(_indented, lines), *filter(None, [last])]

    def _block(self, body: Iterable[Statement]) -> list[str]:
        return [line for statement in body for line in self._statement(statement)]

    def _statement(self, statement: Statement) -> list[str]:
        match statement:
            case For((axis,), body):
                head, last = self.loop(_variable(axis), self._size(axis.extent))
                return [head, *map(_indented, self._block(body)), *filter(None, [last])]
            case If(condition, body):
                return self.when(self.value(condition), self._block(body))
            case Let(Var(name, dtype), value):
                return [self.let(name, self.value(value), dtype)]
            case Set(var, value):
                return [f"{var.name} = {self.value(value)}{self.end}"]
            case Store():
                return [self._store(statement)]
        raise TypeError(f"no text for {statement!r}")

    def _store(self, store: Store) -> str:
        name, index = self.names[store.buffer], self.index(store.offset)
        return self.set_element(name, index, self.value(store.value), store.value.dtype)

    # -- values ------------------------------------------------------------------------------------

    def value(self, node: Value) -> str:
        """Return the expression of a value."""
        match node:
            case Var(name):
                return name
            case Constant(value, dtype):
                return self.literal(value, dtype)
            case Load():
                return self._load(node)
            case Cast(value, dtype):
                return self.cast(self._operand(value), value.dtype, dtype)
            case Compute(op, args, dtype):
                return self.compute(op, [*map(self._operand, args)], dtype, args[-1].dtype)
            case IndexValue(expr, dtype):
                return self.cast(f"({self.index(expr)})", _LONG, dtype)
        raise TypeError(f"no text for {type(node).__name__}")

    def _operand(self, node: Value) -> str:
        text = self.value(node)
        return text if isinstance(node, (Var, Constant)) else f"({text})"

    def _load(self, node: Load) -> str:
        code = self.element(self.names[node.buffer], self.index(node.index[0]), node.dtype)
        if node.mask is None:
            return code
        fill = self.literal(node.fill, node.dtype)
        return self.choose(self.value(node.mask), f"({code})", fill)

    # -- indexes -----------------------------------------------------------------------------------

    def _size(self, extent: Dimension) -> str:
        return self.index(expr_of(extent))

    def divided(self, sign: str, a: Expr, b: int) -> str:
        return (self.divide if sign == "//" else self.modulo)(self.index(a), str(b))

    def sized(self, expr: Apply) -> str:
        return self.arithmetic(expr.op, [*map(self.index, expr.args)])

    def axis_name(self, axis: Axis) -> str:
        return _variable(axis)


class LoopRenderer(ABC):
    """Renders nests as scalar loops on one thread; stateless. `text` has the language's syntax."""

    language: str = ""  # one that is registered has the name of its registration
    text: ClassVar[type[LoopText]]

    def candidates(
        self, nest: Rendered, buffers: Mapping[str, Buffer], target: Target
    ) -> tuple[Config, ...]:
        """Return no candidates: a scalar loop on one thread has no variants."""
        return ()

    @abstractmethod
    def module(self, functions: Sequence[str]) -> str:
        """Return the text of all kernels, given that of each."""

    def render(
        self,
        nests: Sequence[Rendered],
        buffers: Mapping[str, Buffer],
        target: Target,
        configs: Mapping[str, Config] = MappingProxyType({}),
    ) -> KernelSource:
        """Return the text of all kernels, and the argument dtypes of each."""
        symbols, functions = {}, []
        for nest in nests:
            kernel = self.kernel(nest, buffers, target, None)
            functions.append("\n".join(self.text(kernel).function()))
            symbols[kernel.name] = kernel.argument_dtypes
        return KernelSource(self.language, self.module(functions), symbols)

    def kernel(
        self, nest: Rendered, buffers: Mapping[str, Buffer], target: Target, config: Config | None
    ) -> Kernel:
        """Return the kernel of a nest as scalar loops, ready to print."""
        assert isinstance(nest, Nest)  # calls of flex_attention stay calls in this tier
        return expand(linearize(loop_form(structure(nest, buffers), buffers)))


def _indented(line: str) -> str:
    return f"    {line}"


def _variable(axis: Axis) -> str:
    return re.sub(r"\W", "_", axis.name)
