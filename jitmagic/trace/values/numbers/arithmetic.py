"""Computes with Python numbers that vary: the operations of ints, floats and sizes.

Input: Scalars, and the name of an operation (symbols/symbolic_numbers.py). Output: a Scalar. Each
has an expression over symbols, from which its range is computed, and one of three forms:

    constant   an int or float of Python, an operand
    size       a Size: arithmetic of sizes is done on the expressions, without nodes
    node       a 0-dim int64, float64 or bool tensor of the graph

The contract:

  * Results equal Python's. An operation is recorded only if ranges prove that it does not raise,
    that an int fits 64 bits, and that no int is rounded as a float. If they prove too little,
    `Context.require` narrows the symbols under guards. A number without a hint (read from a tensor)
    is asserted instead: if the assertion fails, eager runs the frame from its start. `**` and math
    functions other than sqrt may differ from libm in the last bit.
  * A comparison is decided by ranges, else by the hints, with a guard (`Context.decide`). Without
    hints it is a bool that a node computes, unless the program only raises for one answer.
  * If neither works, Specialize is raised: the trace starts again with a constant in place of the
    symbols and reports where that was needed.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

import torch
from torch.fx import Node

from ....guards.source import Source
from ....spec import TensorSpec
from ....symbols.context import COMPARISONS, Specialize
from ....symbols.expr import Expr, Integer
from ....symbols.interval import ANY_FLOAT, EXACT, INT64, Interval
from ....symbols.polynomial import normal
from ....symbols.rounding import rounded
from ....symbols.size import (
    Dimension,
    Size,
    SizeFloat,
    expr_of,
    is_tensor_symbol,
    size_or_float,
)
from ....symbols.symbolic_numbers import Apply, Number, Symbol, apply, constant, symbols_of
from ....torch_types import AnyFunction
from ...result import InputKind
from ...varying.origins import Count
from ..base import Machine
from .assertions import assert_data, asserted_truth, size_from_data
from .precomputed_scalars import nonzero_by_check, precompute

__all__ = [
    "Scalar",
    "binary",
    "compared",
    "constant_scalar",
    "extreme",
    "is_nonzero",
    "python_node",
    "require_within",
    "scalar_input",
    "size_scalar",
    "truth",
    "unary",
]

_DTYPES = {int: torch.int64, float: torch.float64}
_CPU = torch.device("cpu")
_HALF = Interval(-(2**31), 2**31)  # ints whose sums and products fit 64 bits
# Exponents and bases for which torch replaces pow(); its result may differ in the last bit.
_REPLACED = ((2.0, 3.0, 0.5, -0.5, -1.0, -2.0), (2.0,))
_OF_SIZES: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul,
    "//": operator.floordiv, "%": operator.mod,
}  # fmt: skip
_NODES: Mapping[str, AnyFunction] = {
    **_OF_SIZES, "/": operator.truediv, "**": operator.pow,
    "<<": operator.lshift, ">>": operator.rshift,
    "&": operator.and_, "|": operator.or_, "^": operator.xor,
    "neg": operator.neg, "invert": operator.invert, "abs": torch.abs,
    # torch.round rounds halves to the even number, as Python's round() does.
    "floor": torch.floor, "ceil": torch.ceil, "trunc": torch.trunc, "round": torch.round,
    "sqrt": torch.sqrt, "exp": torch.exp, "log": torch.log, "tanh": torch.tanh,
    "sin": torch.sin, "cos": torch.cos,
}  # fmt: skip
_INTS_ONLY = ("<<", ">>", "&", "|", "^")
_TO_INT = ("floor", "ceil", "trunc", "round")
_OF_ANY_KIND = ("neg", "invert", "abs")


class Scalar:
    """An int, float or bool: its expression over symbols, and its form.

    `source` is set if emitted code can read it. The expression is replaced by one with a narrower
    range when the graph asserts that range.
    """

    __slots__ = ("expr", "form", "kind", "source")

    def __init__(
        self, kind: type, expr: Expr, form: Node | Size | float, source: Source | None = None
    ) -> None:
        self.kind, self.expr, self.form, self.source = kind, expr, form, source

    @property
    def node(self) -> Node | None:
        return self.form if isinstance(self.form, Node) else None

    def argument(self, machine: Machine, full: bool = False) -> Any:
        """Return the operand of a node; with `full`, a tensor even for a constant."""
        if isinstance(self.form, Node):
            return self.form
        return number_node(machine, self.kind, self.form) if full or self.is_size else self.form

    @property
    def is_size(self) -> bool:
        return isinstance(self.form, Size)

    def as_float(self, machine: Machine) -> Scalar:
        """Return `float(self)`; an int is narrowed to the range where that is exact."""
        if self.kind is float:
            return self
        if isinstance(self.expr, Integer):
            return constant_scalar(float(self.expr.value))
        known = require_within(machine, self, EXACT, "float()")
        node = python_node(machine, "to", self.argument(machine), torch.float64)
        return Scalar(float, apply("float", float, known), node)

    def as_size(self, machine: Machine) -> Any:
        """Return the number as an int, a Size or a SizeFloat; None if calls cannot take it so."""
        if isinstance(self.form, Size) or self.kind is bool:
            return self.form if self.is_size else None
        if machine.symbols.are_sizes(symbols_of(self.expr)):
            return size_or_float(normal(self.expr), machine.symbols)
        return size_from_data(machine, self.expr) if self.kind is int else None

    def keep_within(self, machine: Machine, limits: Interval, why: str) -> None:
        """Narrow the symbols until the number is inside the limits."""
        self.expr = require_within(machine, self, limits, why)

    def refuse(self, what: str) -> NoReturn:
        """Make the number a constant: the trace starts again."""
        raise Specialize(symbols_of(self.expr), f"{what} of {self.describe()}")

    def describe(self) -> str:
        if isinstance(self.form, Size):
            return f"a size, {self.form!r}"
        if self.kind is bool:
            is_read = isinstance(self.expr, Symbol)
            return "a bool that varies" if is_read else "a comparison of numbers that vary"
        what = "an int" if self.kind is int else "a float"
        is_given = self.source is not None
        return f"{what} that varies" if is_given else f"{what} computed from one that varies"


def constant_scalar(number: float) -> Scalar:
    """Return a Python number as an operand; a bool is an int."""
    kind = float if type(number) is float else int
    return Scalar(kind, constant(number), kind(number))


def size_scalar(size: Dimension) -> Scalar:
    return Scalar(int, expr_of(size), size)


# -- operations ------------------------------------------------------------------------------------


def binary(machine: Machine, op: str, left: Scalar, right: Scalar) -> Scalar:
    """Return `left op right`, of which one varies."""
    if op in _OF_SIZES and _are_sizes(left, right):
        try:
            return size_scalar(_OF_SIZES[op](left.form, right.form))
        except ZeroDivisionError as error:
            raise machine.error(ZeroDivisionError, *error.args) from None
    owner = left if isinstance(left.form, Node | Size) else right
    if op in ("/", "//", "%") and not is_nonzero(machine, right):
        owner.refuse(f"{op} by zero")
    if float in (left.kind, right.kind) or op == "/":
        if op in _INTS_ONLY or op not in _NODES:
            owner.refuse(op)
        if not all(_is_exact(side.expr) for side in (left, right)):
            owner.refuse(f"{op} with an int that float64 cannot hold")
        return _of_floats(machine, op, left.as_float(machine), right.as_float(machine))
    if op == "**":
        return _power(machine, left, right)
    if op not in _NODES:
        owner.refuse(op)
    args = [left.argument(machine, full=op in ("//", "%")), right.argument(machine)]
    return _made(machine, op, int, (left, right), args)


def _are_sizes(left: Scalar, right: Scalar) -> bool:
    """Return whether one is a size, and the other a size or a constant int."""
    return all(isinstance(side.form, Size | int) for side in (left, right))


def _is_exact(expr: Expr) -> bool:
    return not isinstance(expr, Integer) or EXACT.has(expr.value)


def unary(machine: Machine, op: str, number: Scalar) -> Scalar:
    """Apply an operation of one operand."""
    if op in _TO_INT:
        return number if number.kind is int else _as_int(machine, op, number)
    if isinstance(number.form, Size) and op in ("neg", "abs"):
        return size_scalar(-number.form) if op == "neg" or number.form < 0 else number
    if op in _OF_ANY_KIND:
        return _made(machine, op, number.kind, (number,), [number.argument(machine)])
    value = number.as_float(machine)
    if op != "sqrt" and _is_of_ints(value):
        return _of_sizes(machine, op, (value,))
    return _made(machine, op, float, (value,), [value.argument(machine)])


def _as_int(machine: Machine, op: str, number: Scalar) -> Scalar:
    """Return the rounded int of a float, narrowed to ints that float64 holds exactly."""
    known = require_within(machine, number, EXACT, f"{op} of a float")
    expr = rounded(op, known, machine.symbols.range_of)
    node = python_node(machine, _NODES[op], number.argument(machine))
    return Scalar(int, expr, python_node(machine, "to", node, torch.int64))


def compared(machine: Machine, op: str, left: Scalar, right: Scalar) -> bool | Scalar:
    """Return the answer of a comparison, a bool if ranges, hints or an assertion decide it.

    The assertion is possible if the program would only raise for the other answer. Otherwise only
    the graph knows the answer, as for a SymBool.
    """
    if _are_sizes(left, right):
        return bool(COMPARISONS[op](left.form, right.form))
    symbols = machine.symbols
    if float in (left.kind, right.kind) and not symbols.has_hints((left.expr, right.expr)):
        # loss.item() > 10 broke the graph, and loss.item() > 10.0 did not.
        left, right = (_constant_as_float(side) for side in (left, right))
    unlike, exprs = left.kind is not right.kind, (left.expr, right.expr)
    # Python compares an int with a float exactly, a node would round the int first: 2**53 + 1 ==
    # 2.0**53 is False in Python and True for tensors.
    if unlike or symbols.known(op, *exprs) is not None or symbols.has_hints(exprs):
        return symbols.decide(op, *exprs)
    sides = (side.argument(machine, full=True) for side in (left, right))
    node = python_node(machine, COMPARISONS[op], *sides)
    answer = None if _counts(exprs) else asserted_truth(machine, node)
    return Scalar(bool, Apply(op, exprs), node) if answer is None else answer


def _counts(exprs: Iterable[Expr]) -> bool:
    """Return whether a step count is in the expressions: a branch on it gets a hint and a guard in
    the next attempt. An assertion would need eager to rerun the frame when it fails, which is a
    graph break after RAdam has written its state.
    """
    return any(isinstance(each.origin, Count) for expr in exprs for each in symbols_of(expr))


def _constant_as_float(side: Scalar) -> Scalar:
    is_int = isinstance(side.form, int) and _is_exact(side.expr)
    return constant_scalar(float(side.form)) if is_int else side  # type: ignore[arg-type]


def truth(machine: Machine, number: Scalar) -> bool:
    """Return `bool(number)` where the program branches on it."""
    symbols = machine.symbols
    if isinstance(number.form, Size):
        return bool(number.form)
    if number.kind is not bool:
        if symbols.has_hints((number.expr,)):
            return symbols.decide("!=", number.expr, Integer(0))
        answer = compared(machine, "!=", number, constant_scalar(number.kind(0)))
        return answer if isinstance(answer, bool) else truth(machine, answer)
    test = number.expr
    if isinstance(test, Apply):  # a comparison
        left, right = test.args
        # Ranges come first: an assertion can fail, and each failure reruns the call in eager.
        if symbols.known(test.op, left, right) is not None:
            return symbols.decide(test.op, left, right)
        if _counts(test.args):
            raise Specialize(symbols_of(test), f"comparison {test.op}")
    if (asserted := asserted_truth(machine, number.argument(machine))) is not None:
        return asserted
    if isinstance(test, Apply):
        raise Specialize(symbols_of(test), f"comparison {test.op}")
    number.refuse("a branch")


def extreme(machine: Machine, op: str, best: Scalar, item: Scalar) -> Scalar:
    """Return `item` if `item op best`, else `best`: one step of `min` ("<") or `max` (">")."""
    known = machine.symbols.known(op, item.expr, best.expr)
    if known is None and best.kind is item.kind:
        a, b = best.argument(machine, full=True), item.argument(machine, full=True)
        # Not torch.minimum, which propagates nan: Python's min(1.0, nan) is 1.0.
        condition = python_node(machine, operator.lt if op == "<" else operator.gt, b, a)
        node = python_node(machine, torch.where, condition, b, a)
        made = apply("min" if op == "<" else "max", best.kind, best.expr, item.expr)
        return Scalar(best.kind, made, node)
    return item if machine.symbols.decide(op, item.expr, best.expr) else best


# -- nodes -----------------------------------------------------------------------------------------


def number_node(machine: Machine, kind: type, number: object) -> Any:
    """Record a number or a Size as a 0-dim CPU tensor; the default device does not matter."""
    kwargs = {"dtype": _DTYPES[kind], "device": _CPU}
    made = machine.graph.call(torch.full, [(), number], kwargs, machine.lines())
    made.meta["number"] = isinstance(number, Size)
    made.meta["python"] = True
    return made


def python_node(machine: Machine, target: Any, *args: object) -> Node:
    """Record an operation on numbers; the mark makes it compute in Python's precision."""
    node: Node = machine.graph.call(target, list(args), {}, machine.lines())
    node.meta["python"] = True
    return node


def scalar_input(machine: Machine, name: str, source: Source, kind: type) -> Node:
    """Return the node of a number that is an input of the graph."""
    spec = TensorSpec((), (), _DTYPES[kind], _CPU)
    return machine.notes.root.add_input(name, source, spec, InputKind.SCALAR)


def _made(
    machine: Machine, op: str, kind: type, operands: tuple[Scalar, ...], args: list[Any]
) -> Scalar:
    """Record an operation as one node and return its result."""
    expr = apply(op, kind, *(operand.expr for operand in operands))
    if kind is float:
        made = python_node(machine, _NODES[op], *args)
        return Scalar(kind, _float_result(machine, op, expr, made), made)
    try:
        machine.symbols.require(expr, INT64, op)
    except Specialize:
        # The operands are narrowed or asserted, not the result: int64 wraps around silently, so an
        # assertion on the result would read a wrong number.
        for operand in operands:
            operand.keep_within(machine, _HALF, op)
        expr = apply(op, kind, *(operand.expr for operand in operands))
        machine.symbols.require(expr, INT64, op)
    return Scalar(kind, expr, python_node(machine, _NODES[op], *args))


def _is_of_ints(value: Scalar) -> bool:
    """Return whether a number is computed from an int, so that it must equal Python's exactly."""
    return any(symbol.kind is int for symbol in symbols_of(value.expr))


def _of_sizes(machine: Machine, op: str, operands: tuple[Scalar, ...]) -> Scalar:
    """Return a float that Python computes, not the graph.

    From sizes, it is computed once for each tuple of sizes; from int inputs, in each call, since
    these often count calls.
    """
    expr = apply(op, float, *(operand.expr for operand in operands))
    symbols = symbols_of(expr)
    machine.symbols.require(expr, ANY_FLOAT, op)
    if all(map(is_tensor_symbol, symbols)):
        made = SizeFloat(expr, machine.symbols)
        return Scalar(float, expr, number_node(machine, float, made))
    source = precompute(machine, op, expr)
    if source is None:
        raise Specialize(symbols, f"{op} with another rounding")
    return Scalar(float, expr, scalar_input(machine, op, source, float), source)


def _of_floats(machine: Machine, op: str, left: Scalar, right: Scalar) -> Scalar:
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
        made.form = python_node(
            machine, torch.where, python_node(machine, operator.eq, made.form, 0), zero, made.form
        )
    return made


def _is_replaced(base: Expr, exponent: Expr) -> bool:
    if isinstance(exponent, Number):
        return exponent.value in _REPLACED[0]
    return isinstance(base, Number) and base.value in _REPLACED[1]


def _power(machine: Machine, base: Scalar, exponent: Scalar) -> Scalar:
    """Return a power of an int by repeated products, each of them within 64 bits."""
    if not isinstance(exponent.expr, Integer):
        exponent.refuse("** with an exponent that varies")
    times = exponent.expr.value
    if times < 0:
        return _of_floats(machine, "**", base.as_float(machine), exponent.as_float(machine))
    if not times:
        return constant_scalar(1)
    machine.symbols.require(apply("int **", int, base.expr, exponent.expr), INT64, "**")
    factor = base.argument(machine)
    result = base
    for _ in range(times - 1):
        args = [factor, factor if result is base else result.argument(machine)]
        result = _made(machine, "*", int, (base, result), args)
    return result


# -- ranges ----------------------------------------------------------------------------------------


def require_within(machine: Machine, number: Scalar, wanted: Interval, why: str) -> Expr:
    """Return an expression of the number whose range is within `wanted`. Raises Specialize."""
    try:
        machine.symbols.require(number.expr, wanted, why)
    except Specialize:
        if not _can_assert(machine, number.expr):
            raise
        node = number.argument(machine, full=True)
        assert_data(machine, _is_inside(machine, node, wanted))
        return _known_as(machine, number.expr, wanted, node)
    return number.expr


def is_nonzero(machine: Machine, number: Scalar) -> bool:
    """Return whether a divisor is not zero, by a guard or an assertion. Raises Specialize."""
    try:
        # For a cosine schedule, narrowing the range of the step would give a variant per period;
        # checking the divisor before the graph runs serves all periods.
        return machine.symbols.decide("!=", number.expr, Integer(0), ints_by_steps=False)
    except Specialize:
        if nonzero_by_check(machine, number.expr):
            return True
        if not _can_assert(machine, number.expr):
            raise
    assert_data(machine, python_node(machine, operator.ne, number.argument(machine, full=True), 0))
    return True


def _float_result(machine: Machine, op: str, expr: Expr, made: Node) -> Expr:
    """Return the expression of a float result, asserted to be finite where Python would raise.

    Divisors have been checked by `is_nonzero`. Raises Specialize.
    """
    try:
        machine.symbols.require(expr, ANY_FLOAT, op)
    except Specialize:
        if not _can_assert(machine, expr):
            raise
        # Divisors are known to be nonzero here. Python raises OverflowError for powers and exp().
        if op not in ("/", "//", "%"):
            assert_data(machine, python_node(machine, torch.isfinite, made))
        return _known_as(machine, expr, ANY_FLOAT, made)
    return expr


def _can_assert(machine: Machine, expr: Expr) -> bool:
    """Return whether the number has no hint and no `try` of the program can catch its error.

    Also False in a subgraph, and in a graph with dynamic input sizes, which has no assertions.
    """
    graph = machine.graph
    if graph.root is not graph or not graph.sizes.are_data_dependent():
        return False
    return not machine.symbols.has_hints((expr,)) and not machine.catches()


def _is_inside(machine: Machine, node: Node, wanted: Interval) -> Node:
    """Record the test that a number is in an interval; comparisons are false for nan."""
    low, high = wanted.low, wanted.high
    above = None if low == -math.inf else python_node(machine, operator.ge, node, low)
    below = None if high == math.inf else python_node(machine, operator.le, node, high)
    if above is None or below is None:
        inside = above or below or python_node(machine, operator.eq, node, node)
    else:
        inside = python_node(machine, torch.logical_and, above, below)
    if wanted.nan:
        nan = python_node(machine, operator.ne, node, node)
        inside = python_node(machine, torch.logical_or, inside, nan)
    return inside


def _known_as(machine: Machine, expr: Expr, range: Interval, node: Node) -> Symbol:
    """Return a new symbol for the asserted expression.

    Its origin is that of a symbol in the expression, so that a later Specialize excludes that one.
    """
    first = next(s for s in symbols_of(expr) if not machine.symbols.has_hints((s,)))
    kind = float if range is ANY_FLOAT else first.kind
    symbol = Symbol(f"{first.name}, asserted", kind, range, first.origin)
    machine.symbols.add(symbol, None)
    machine.symbols.read_from[symbol] = node
    return symbol
