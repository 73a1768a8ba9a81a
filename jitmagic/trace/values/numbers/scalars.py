"""Models Python numbers that vary: ints and floats that differ from call to call.

Input: an int or float at a source in `Machine.varying`, a number read from a tensor, arithmetic on
them. Output: 0-dim int64 and float64 nodes of the graph. Each has an expression over symbols
(symbols/scalar.py), from which its range is computed. The contract:

  * Results equal Python's. An operation is recorded only if ranges prove that it does not raise,
    that an int fits 64 bits, and that no int is rounded as a float. If they prove too little,
    `Context.require` narrows the symbols under guards. `**` and math functions other than sqrt may
    differ from libm in the last bit.
  * A branch is decided by ranges, else by the hint, with a guard (`Context.decide`).
  * An int computed from arguments and sizes is a size where a call takes one (`as_size`).
  * A use that needs the value itself (`as_constant`, `refuse`: text, keys, ranges) raises
    Specialize. The trace starts again without that symbol and reports where it was needed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NoReturn

import torch
from torch.fx import Node

from ....guards.guard import InRange, TypeIs
from ....guards.source import Drawn, Source, describe
from ....spec import TensorSpec
from ....symbols.context import COMPARISONS, Specialize
from ....symbols.expr import Expr, Integer
from ....symbols.interval import ANY_FLOAT, EXACT, INT64, Interval
from ....symbols.polynomial import normal
from ....symbols.rounding import rounded
from ....symbols.scalar import Number, Symbol, apply, constant, symbols_of
from ....symbols.size import Size, SizeFloat, is_tensor_symbol, size_or_float
from ...result import InputKind, Recipe
from ...wrap import intercepts
from ..base import Args, Builder, Kwargs, Machine, Value
from ..objects.constants import ConstantValue
from .asserted_numbers import float_result, is_nonzero, require_within
from .precomputed_scalars import precompute
from .read_sizes import size_from_data
from .unresolved_comparison import UnresolvedComparison
from .validation import asserted_truth

__all__ = [
    "ScalarValue",
    "SymbolicNumber",
    "extreme",
    "number_node",
    "python_node",
    "scalar_input",
    "scalar_of",
    "unknown_number",
    "varying_number",
]

_DTYPES = {int: torch.int64, float: torch.float64}
_CPU = torch.device("cpu")
_HALF = Interval(-(2**31), 2**31)  # ints whose sums and products fit 64 bits
# Exponents and bases for which torch replaces pow(); its result may differ in the last bit.
_REPLACED = ((2.0, 3.0, 0.5, -0.5, -1.0, -2.0), (2.0,))
_UNLIKE = (type(None), str, bytes, tuple, list, dict, set, frozenset, torch.dtype, torch.device)
_METHODS = {
    "__float__": "float", "__int__": "trunc", "__trunc__": "trunc", "__floor__": "floor",
    "__ceil__": "ceil", "__round__": "round", "__abs__": "abs",
}  # fmt: skip
_NODES: Mapping[str, Callable[..., Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "//": operator.floordiv, "%": operator.mod, "**": operator.pow,
    "<<": operator.lshift, ">>": operator.rshift,
    "&": operator.and_, "|": operator.or_, "^": operator.xor,
    "neg": operator.neg, "invert": operator.invert, "abs": torch.abs,
    "floor": torch.floor, "ceil": torch.ceil, "trunc": torch.trunc, "round": torch.round,
    "sqrt": torch.sqrt, "exp": torch.exp, "log": torch.log, "tanh": torch.tanh,
    "sin": torch.sin, "cos": torch.cos,
}  # fmt: skip
_INTS_ONLY = ("<<", ">>", "&", "|", "^")
_TO_INT = ("floor", "ceil", "trunc", "round")


class SymbolicNumber(Value):
    """A number that differs from call to call; a use that needs a constant raises Specialize."""

    __slots__ = ()
    varies = True

    def is_constant(self, machine: Machine) -> bool:
        """Return True: `as_constant` restarts the trace with a constant (Specialize)."""
        return True

    def as_constant(self, machine: Machine) -> NoReturn:
        self.refuse(machine, "its value")

    def hash_key(self, machine: Machine) -> object:
        self.refuse(machine, "hash()")

    def as_scalar(self, machine: Machine) -> ScalarValue | None:
        """Return the number as a ScalarValue; None if its arithmetic is not an int's or float's."""
        return None

    def as_size(self, machine: Machine) -> Any:
        """Return the number as an int, a Size or a SizeFloat.

        None if it depends on more than sizes and ints among the inputs.
        """
        return None


class ScalarValue(SymbolicNumber):
    """An int or float, as `kind` says; `node` computes it in the graph (None: a constant)."""

    __slots__ = ("expr", "kind", "node")

    def __init__(
        self, kind: type, expr: Expr, node: Node | None, source: Source | None = None
    ) -> None:
        super().__init__(source)
        self.kind, self.expr, self.node = kind, expr, node

    def python_type(self, machine: Machine) -> type:
        return self.kind

    def as_scalar(self, machine: Machine) -> ScalarValue:
        return self

    def as_size(self, machine: Machine) -> Any:
        if machine.symbols.are_sizes(symbols_of(self.expr)):
            return size_or_float(normal(self.expr), machine.symbols)
        return size_from_data(machine, self.expr) if self.kind is int else None

    def as_sourced_int(self, machine: Machine) -> tuple[int, Source] | None:
        symbol: Any = self.expr
        if self.kind is not int or not isinstance(symbol, Symbol):
            return None
        if not isinstance(symbol.origin, Source) or isinstance(symbol.origin, Drawn):
            return None
        return int(machine.symbols.value_of(symbol)), symbol.origin

    def refuse(self, machine: Machine, what: str) -> NoReturn:
        raise Specialize(symbols_of(self.expr), f"{what} of {self.describe()}")

    def truth(self, machine: Machine) -> bool:
        zero = scalar_of(machine, machine.constant(self.kind(0)))
        if zero is None or machine.symbols.has_hints((self.expr,)):
            return machine.symbols.decide("!=", self.expr, Integer(0))
        return _compared(machine, "!=", self, zero).truth(machine)

    # -- operators -------------------------------------------------------------------------------

    def binary(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        operand = scalar_of(machine, other)
        if operand is None:
            if not other.varies and not issubclass(other.python_type(machine), torch.Tensor):
                self.refuse(machine, f"{op} with {other.describe()}")
            return None  # the caller tries the reflected operator of the other operand next
        left, right = (operand, self) if reflected else (self, operand)
        if op in ("/", "//", "%") and not is_nonzero(machine, right.expr, right.node):
            self.refuse(machine, f"{op} by zero")
        if float in (left.kind, right.kind) or op == "/":
            if op in _INTS_ONLY or op not in _NODES:
                self.refuse(machine, op)
            if isinstance(operand.expr, Integer) and not EXACT.has(operand.expr.value):
                self.refuse(machine, f"{op} with an int that float64 cannot hold")
            return _of_floats(machine, op, left.as_float(machine), right.as_float(machine))
        if op == "**":
            return _power(machine, left, right)
        if op not in _NODES:
            self.refuse(machine, op)
        args = [left.argument(machine, full=op in ("//", "%")), right.argument(machine)]
        return _made(machine, op, int, (left, right), args)

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        operand = scalar_of(machine, other)
        if operand is not None:
            return _compared(machine, op, self, operand)
        return None if _is_unlike_numbers(machine, other) else self.refuse(machine, op)

    def unary(self, machine: Machine, op: str) -> Value:
        if op == "+":
            return self
        if op == "~" and self.kind is float:
            self.refuse(machine, "unary ~")
        return self.apply(machine, "neg" if op == "-" else "invert")

    def call_method(self, machine: Machine, name: str, args: Args, kwargs: Kwargs) -> Value:
        """Return the result of a special method that float(), int(), abs() or round() calls."""
        op = _METHODS.get(name)
        if op is None or args or kwargs:
            self.refuse(machine, f".{name}()")
        return self.as_float(machine) if op == "float" else self.apply(machine, op)

    def apply(self, machine: Machine, op: str) -> ScalarValue:
        """Apply an operation of one operand, by its name in OPERATIONS."""
        if op in _TO_INT:
            return self if self.kind is int else self._as_int(machine, op)
        if op not in ("neg", "invert", "abs"):
            value = self.as_float(machine)
            if op != "sqrt" and _is_of_ints(value):
                return _of_sizes(machine, op, (value,))
            return _made(machine, op, float, (value,), [value.argument(machine)])
        return _made(machine, op, self.kind, (self,), [self.argument(machine)])

    def _as_int(self, machine: Machine, op: str) -> ScalarValue:
        """Return the rounded int, narrowed to ints that float64 holds exactly."""
        why = f"{op} of a float"
        known = self.expr
        if machine.symbols.has_hints((known,)):
            machine.symbols.require(apply(op, int, known), EXACT, why)
        else:
            known = require_within(machine, known, self.node, EXACT, why)
        expr = rounded(op, known, machine.symbols.range_of)
        node = python_node(machine, _NODES[op], self.argument(machine))
        return ScalarValue(int, expr, python_node(machine, "to", node, torch.int64))

    def as_float(self, machine: Machine) -> ScalarValue:
        """Return `float(self)`; guards narrow an int to the range where that is exact."""
        if self.kind is float:
            return self
        if isinstance(self.expr, Integer):
            return ScalarValue(float, Number(float(self.expr.value)), None)
        known = require_within(machine, self.expr, self.node, EXACT, "float()")
        node = python_node(machine, "to", self.argument(machine), torch.float64)
        return ScalarValue(float, apply("float", float, known), node)

    # -- in the graph ----------------------------------------------------------------------------

    def range(self, machine: Machine) -> Interval:
        found = machine.symbols.range_of(self.expr)
        assert found is not None
        return found

    def keep_within(self, machine: Machine, limits: Interval, why: str) -> None:
        """Narrow the symbols until the number is inside the limits."""
        self.expr = require_within(machine, self.expr, self.node, limits, why)

    def argument(self, machine: Machine, full: bool = False) -> Any:
        """Return the operand of a node; with `full`, a tensor even for a constant."""
        if self.node is not None:
            return self.node
        assert isinstance(self.expr, Integer | Number)
        if not full:
            return self.expr.value
        return number_node(machine, self.kind, self.expr.value)

    def recipe(self, builder: Builder) -> Recipe:
        if self.node is None:
            assert isinstance(self.expr, Number | Integer)
            return builder.constant(self.expr.value)
        return builder.invoke(torch.Tensor.item, (builder.output(self, self.node),))

    def describe(self) -> str:
        what = "an int" if self.kind is int else "a float"
        return f"{what} that varies" if self.source else f"{what} computed from one that varies"


def number_node(machine: Machine, kind: type, number: Any) -> Any:
    """Record a number or a Size as a 0-dim CPU tensor; the default device does not matter."""
    kwargs = {"dtype": _DTYPES[kind], "device": _CPU}
    made = machine.graph.call(torch.full, [(), number], kwargs, machine.lines())
    made.meta["number"] = isinstance(number, Size)
    made.meta["python"] = True
    return made


def scalar_input(machine: Machine, name: str, source: Source, kind: type) -> Node:
    """Return the node of a number that is an input of the graph."""
    spec = TensorSpec((), (), _DTYPES[kind], _CPU)
    return machine.notes.root.add_input(name, source, spec, InputKind.SCALAR)


def unknown_number(
    machine: Machine, origin: Hashable, source: Drawn, kind: type, limits: Interval | None = None
) -> ScalarValue:
    """Return a number computed before the graph runs: its symbol has limits but no hint."""
    limits = limits or (INT64 if kind is int else ANY_FLOAT)
    symbol = Symbol(f"{source.name}()", kind, limits, origin)
    machine.symbols.add(symbol, None)
    return ScalarValue(kind, symbol, scalar_input(machine, source.name, source, kind), source)


def scalar_of(machine: Machine, value: Value) -> ScalarValue | None:
    """Return an int, float or bool as a scalar, constant or not; None for any other value."""
    if isinstance(value, SymbolicNumber):
        return value.as_scalar(machine)
    if not isinstance(value, ConstantValue) or type(value.value) not in (bool, int, float):
        return None
    number = value.as_constant(machine)
    return ScalarValue(float if type(number) is float else int, constant(number), None)


def extreme(machine: Machine, op: str, best: ScalarValue, item: ScalarValue) -> ScalarValue:
    """Return `item` if `item op best`, else `best`: one step of `min` ("<") or `max` (">")."""
    known = machine.symbols.known(op, item.expr, best.expr)
    if known is None and best.kind is item.kind:
        a, b = best.argument(machine, full=True), item.argument(machine, full=True)
        condition = python_node(machine, operator.lt if op == "<" else operator.gt, b, a)
        node = python_node(machine, torch.where, condition, b, a)
        made = apply("min" if op == "<" else "max", best.kind, best.expr, item.expr)
        return ScalarValue(best.kind, made, node)
    return item if machine.symbols.decide(op, item.expr, best.expr) else best


def _compared(machine: Machine, op: str, left: ScalarValue, right: ScalarValue) -> Value:
    """Return the answer of a comparison, a bool if ranges, hints or an assertion decide it.

    The assertion is possible if the program would only raise for the other answer. Otherwise the
    result is an UnresolvedComparison."""
    symbols, exprs = machine.symbols, (left.expr, right.expr)
    unlike = left.kind is not right.kind
    if unlike or symbols.known(op, *exprs) is not None or symbols.has_hints(exprs):
        return machine.constant(symbols.decide(op, *exprs))

    def record() -> Node:
        a, b = left.argument(machine, full=True), right.argument(machine, full=True)
        return python_node(machine, COMPARISONS[op], a, b)

    answer = asserted_truth(machine, record())
    if answer is None:
        return UnresolvedComparison(op, (left, right), exprs, record)
    return machine.constant(answer)


def _is_unlike_numbers(machine: Machine, other: Value) -> bool:
    """Return whether a comparison of a number with the value is NotImplemented.

    So it is for types that equal no number, and for tensors, whose reflected operator comes next.
    Subclasses of numbers, and classes with an `__eq__`, may equal one.
    """
    kind = other.python_type(machine)
    return kind in _UNLIKE or issubclass(kind, torch.Tensor)


def python_node(machine: Machine, target: Any, *args: Any) -> Node:
    """Record an operation on numbers; the mark makes it compute in Python's precision."""
    node: Node = machine.graph.call(target, list(args), {}, machine.lines())
    node.meta["python"] = True
    return node


def _made(
    machine: Machine, op: str, kind: type, operands: tuple[ScalarValue, ...], args: list[Any]
) -> ScalarValue:
    """Record an operation as one node and return its result."""
    expr = apply(op, kind, *(operand.expr for operand in operands))
    if kind is float:
        made = python_node(machine, _NODES[op], *args)
        return ScalarValue(kind, float_result(machine, op, expr, made), made)
    try:
        machine.symbols.require(expr, INT64, op)
    except Specialize:
        for operand in operands:
            operand.keep_within(machine, _HALF, op)
        expr = apply(op, kind, *(operand.expr for operand in operands))
        machine.symbols.require(expr, INT64, op)
    return ScalarValue(kind, expr, python_node(machine, _NODES[op], *args))


def _is_of_ints(value: ScalarValue) -> bool:
    """Return whether a number is computed from an int, so that it must equal Python's exactly."""
    return any(symbol.kind is int for symbol in symbols_of(value.expr))


def _of_sizes(machine: Machine, op: str, operands: tuple[ScalarValue, ...]) -> ScalarValue:
    """Return a float that Python computes, not the graph.

    From sizes, it is computed once for each tuple of sizes; from int inputs, in each call, since
    these often count calls.
    """
    expr = apply(op, float, *(operand.expr for operand in operands))
    symbols = symbols_of(expr)
    machine.symbols.require(expr, ANY_FLOAT, op)
    if all(map(is_tensor_symbol, symbols)):
        made = SizeFloat(expr, machine.symbols)
        return ScalarValue(float, expr, number_node(machine, float, made))
    source = precompute(machine, op, expr)
    if source is None:
        raise Specialize(symbols, f"{op} with another rounding")
    return ScalarValue(float, expr, scalar_input(machine, op, source, float), source)


def _of_floats(machine: Machine, op: str, left: ScalarValue, right: ScalarValue) -> ScalarValue:
    operands = left, right
    if op == "**" and _is_replaced(left.expr, right.expr) and any(map(_is_of_ints, operands)):
        return _of_sizes(machine, op, operands)
    # A constant dividend becomes a tensor: torch computes number / tensor as reciprocal() * number,
    # which rounds twice.
    full = op in ("/", "//", "%")
    args = [left.argument(machine, full), right.argument(machine, op == "%")]
    made = _made(machine, op, float, operands, args)
    if op == "%":  # Python gives a zero the sign of the divisor, torch that of the dividend
        zero = python_node(
            machine, torch.copysign, python_node(machine, torch.zeros_like, args[1]), args[1]
        )
        made.node = python_node(
            machine, torch.where, python_node(machine, operator.eq, made.node, 0), zero, made.node
        )
    return made


def _is_replaced(base: Expr, exponent: Expr) -> bool:
    if isinstance(exponent, Number):
        return exponent.value in _REPLACED[0]
    return isinstance(base, Number) and base.value in _REPLACED[1]


def _power(machine: Machine, base: ScalarValue, exponent: ScalarValue) -> Value:
    """Return a power of an int by repeated products, each of them within 64 bits."""
    if not isinstance(exponent.expr, Integer):
        exponent.refuse(machine, "** with an exponent that varies")
    times = exponent.expr.value
    if times < 0:
        return _of_floats(machine, "**", base.as_float(machine), exponent.as_float(machine))
    if not times:
        return machine.constant(1)
    machine.symbols.require(apply("int **", int, base.expr, exponent.expr), INT64, "**")
    result = ScalarValue(int, Integer(1), None)
    for _ in range(times):
        args = [base.argument(machine), result.argument(machine)]
        result = base if result.node is None else _made(machine, "*", int, (base, result), args)
    return result


# -- where they come from --------------------------------------------------------------------------


@intercepts(int, float)
def _wrap_varying(machine: Machine, obj: float, source: Source) -> Value | None:
    """Make a number that differs from call to call an input of the graph."""
    symbols = machine.symbols
    if source not in (symbols.varying or ()) or source in symbols.constants:
        return None
    return varying_number(machine, obj, source)


def varying_number(machine: Machine, obj: float, source: Source) -> ScalarValue | None:
    """Return the float or int as an input of the graph; None if an int exceeds 64 bits."""
    symbols, kind = machine.symbols, type(obj)
    limits = INT64 if kind is int else ANY_FLOAT
    if not limits.has(obj):
        return None
    if (known := symbols.values.get(source)) is not None:
        return known  # type: ignore[no-any-return]
    machine.guard(TypeIs(source, kind))
    if kind is int:  # Python's ints are unbounded, the node's are int64
        machine.guard(InRange(source, *limits[:2]))
    node = scalar_input(machine, describe(source), source, kind)
    symbol = Symbol(describe(source), kind, limits, source)
    symbols.add(symbol, obj)
    if kind is int:
        machine.graph.root.sizes.add_number(node, symbol)
    made = symbols.values[source] = ScalarValue(kind, symbol, node, source)
    return made
