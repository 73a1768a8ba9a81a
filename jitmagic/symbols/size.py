"""Defines Size, a dimension, stride or offset that differs from call to call, like a SymInt.

In: integer expressions over symbols, and the Context that answers for them. Out: `Size`, which
computes like an int without being one. Code that reads an int (`range`, an index, C code) calls
`__index__`, which raises Specialize, so no value of one call leaks into code for all calls. A
comparison is `Context.decide`: answered from the ranges, else by the hints and guarded.

Products of sizes are polynomials: `(s0 + 1) * s1` is `s0*s1 + s1`, so equal sizes are one object.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from ..lazy_dataclass import dataclass, field
from .context import COMPARISONS, SWAPPED, Context
from .expr import Expr, Integer, add, floordiv, integer, linear, mod, mul
from .interval import INT64
from .polynomial import divided, factors, product, written
from .symbolic_numbers import Apply, Symbol, evaluate, kind_of, symbols_of

__all__ = [
    "DataSize",
    "Dimension",
    "OffsetOf",
    "Size",
    "SizeFloat",
    "SizeOf",
    "StrideOf",
    "expect_true",
    "expr_of",
    "hint_of",
    "hintless",
    "is_same",
    "is_tensor_symbol",
    "lower_bound",
    "may_assume",
    "min_size",
    "origin_at",
    "size_oblivious",
    "size_of",
    "size_or_float",
    "stride_place",
    "upper_bound",
    "value_of",
]


@dataclass(frozen=True, slots=True)
class SizeOf:
    """The origin of a size's symbol: dimension `dim` of the tensor at `source`.

    `unbacked`: no branch may depend on the value in this call. `growing`: it is unbacked because
    the frame itself makes it grow, not because the user asked for that.
    """

    source: Hashable
    dim: int
    unbacked: bool = field(default=False, compare=False)
    growing: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class DataSize:
    """The origin of a data-dependent size: its number in the trace, and the line of the operation
    that returns it.
    """

    number: int
    where: Hashable


@dataclass(frozen=True, slots=True)
class StrideOf:
    """The origin of a stride's symbol, in elements. Guards have one for any stride, graphs only for
    strides that are not products of sizes.
    """

    source: Hashable
    dim: int


@dataclass(frozen=True, slots=True)
class OffsetOf:
    """The origin of a symbol used in guards alone: a tensor's storage offset, in elements."""

    source: Hashable


def stride_place(dim: int) -> int:
    """Return a stride's index among the numbers of a tensor: sizes at their dimension, the tensor's
    value at -1, strides below. The function is its own inverse.
    """
    return -2 - dim


def origin_at(
    source: Hashable, place: int, unbacked: bool = False, growing: bool = False
) -> SizeOf | StrideOf:
    """Return the origin of the symbol of a size or a stride."""
    if place < 0:
        return StrideOf(source, stride_place(place))
    return SizeOf(source, place, unbacked, growing)


def is_tensor_symbol(symbol: Symbol) -> bool:
    """Return whether it is a size or a stride of an input."""
    return isinstance(symbol.origin, SizeOf | StrideOf)


Combine = Callable[["Size", Expr, Expr], Expr]


def _arithmetic(combine: Combine) -> Callable[[Size, object], Dimension]:
    """Return the method that combines the expressions of a size and a number."""

    def method(self: Size, other: object) -> Any:  # a Dimension, or NotImplemented
        right = _expr(other)
        if right is None:
            return NotImplemented
        return size_of(combine(self, self.expr, right), self.context)

    return method


def _comparison(op: str) -> Callable[[Size, object], bool]:
    return lambda self, other: _decide(op, self, other)


def _decide(op: str, size: Size, other: object) -> Any:
    """Compare a size with a number, by what is known or by a guard; NotImplemented for another
    object.
    """
    right = _expr(other)
    if right is None:
        return NotImplemented
    known = size.context.answers.get((op, size.expr, right))
    if known is None and (known := size._known(op, right)) is None:
        return size.context.decide(op, size.expr, right)
    return known


class Size:
    """An integer expression over symbols, in one trace's Context."""

    __slots__ = ("context", "expr")

    def __init__(self, expr: Expr, context: Context) -> None:
        self.expr = expr
        self.context = context

    def __repr__(self) -> str:
        return written(self.expr)

    def __hash__(self) -> int:
        return hash(self.expr)

    # -- arithmetic --------------------------------------------------------------------------------

    __add__ = __radd__ = _arithmetic(lambda self, a, b: add(a, b))
    __sub__ = _arithmetic(lambda self, a, b: add(a, mul(b, -1)))
    __rsub__ = _arithmetic(lambda self, a, b: add(b, mul(a, -1)))
    __mul__ = __rmul__ = _arithmetic(lambda self, a, b: product(a, b))
    __floordiv__ = _arithmetic(lambda self, a, b: self._quotient(a, b))
    __rfloordiv__ = _arithmetic(lambda self, a, b: self._quotient(b, a))
    __mod__ = _arithmetic(lambda self, a, b: self._remainder(a, b))
    __rmod__ = _arithmetic(lambda self, a, b: self._remainder(b, a))

    def __neg__(self) -> Dimension:
        return size_of(mul(self.expr, -1), self.context)

    def _quotient(self, a: Expr, b: Expr) -> Expr:
        if isinstance(b, Integer) and b.value > 0:
            return floordiv(a, b.value)
        if isinstance(b, Integer) and b.value < 0:  # guards divide by positive numbers
            return floordiv(mul(a, -1), -b.value)
        exact = divided(a, self._divisor(b))
        return Apply("//", (a, b)) if exact is None else exact

    def _remainder(self, a: Expr, b: Expr) -> Expr:
        if isinstance(b, Integer) and b.value > 0:
            return mod(a, b.value)
        if isinstance(b, Integer) and b.value < 0:
            return mul(mod(mul(a, -1), -b.value), -1)
        return Apply("%", (a, b)) if divided(a, self._divisor(b)) is None else Integer(0)

    def _divisor(self, expr: Expr) -> Expr:
        if self.context.decide("==", expr, Integer(0)):
            raise ZeroDivisionError("integer division or modulo by zero")
        return expr

    # -- questions ---------------------------------------------------------------------------------

    def __eq__(self, other: object) -> Any:
        if isinstance(other, Size) and other.expr is self.expr:  # keys of dictionaries, mostly
            return True
        return _decide("==", self, other)

    __ne__ = _comparison("!=")
    __lt__, __le__ = _comparison("<"), _comparison("<=")
    __gt__, __ge__ = _comparison(">"), _comparison(">=")

    def known(self, op: str, other: Dimension) -> bool | None:
        """Return `self op other` if it holds or fails in every call, else None."""
        right = _expr(other)
        assert right is not None
        return self._known(op, right)

    def _known(self, op: str, right: Expr) -> bool | None:
        asked = (op, self.expr, right)
        answers = self.context.answers
        if asked not in answers:
            answers[asked] = self._answered(self.context.known, op, right)
        return answers[asked]

    def size_oblivious(self, op: str, other: Dimension) -> bool:
        """Answer as `known`, assuming that sizes without a hint are above 1 and no other number."""
        right = _expr(other)
        assert right is not None
        known = self._answered(self.context.size_oblivious, op, right)
        if known is None and op in ("==", "!="):
            return op == "!="
        return COMPARISONS[op](hint_of(self), hint_of(other)) if known is None else known

    def _answered(
        self, known: Callable[[str, Expr, Expr], bool | None], op: str, right: Expr
    ) -> bool | None:
        """Decide by the difference, which decides more than two ranges: `s0 < s0 + 1`, `s0 !=
        s0*s1`.
        """
        is_expected = self.context.deferred_asserts and self.context.is_asserted(self.expr, right)
        if self.expr is right or is_expected:
            return bool(COMPARISONS[op](0, 0))
        if isinstance(right, Integer) and (right.value or len(linear(self.expr)[1]) == 1):
            return known(op, self.expr, right)  # the difference has the same range
        difference = self._reduced(add(self.expr, mul(right, -1)))
        answer = known(op, difference, Integer(0))
        return known(op, self.expr, right) if answer is None else answer

    def _reduced(self, difference: Expr) -> Expr:
        """Divide by positive factors common to all terms, which keeps the sign."""
        constant, terms = linear(difference)
        if constant or not terms:
            return difference
        first, *rest = [factors(atom) for atom in terms]
        for factor in dict.fromkeys(first):
            positive = self.context.known(">", factor, Integer(0))
            if positive and all(factor in others for others in rest):
                smaller = divided(difference, factor)
                assert smaller is not None
                return self._reduced(smaller)
        return difference

    def __bool__(self) -> bool:
        return bool(_decide("!=", self, 0))

    def __index__(self) -> int:
        """Return the value if guards leave only one, else raise Specialize."""
        known = self.context.range_of(self.expr)
        if known is not None and known.low == known.high:
            return int(known.low)
        return self.context.specialize(symbols_of(self.expr), "its value is used as an int")

    __int__ = __index__


class SizeFloat(Size):
    """A float computed from sizes: a number for calls, not a dimension."""

    __slots__ = ()


Dimension = int | Size


def hint_of(dimension: Dimension) -> int:
    """Return its value in this call, for choices that are correct at any value. Adds no guard."""
    if isinstance(dimension, Size):
        return int(dimension.context.hint_of(dimension.expr))
    return dimension


def size_of(expr: Expr, context: Context) -> Dimension:
    """Return the expression as a dimension, an int if it is constant."""
    return expr.value if isinstance(expr, Integer) else Size(expr, context)


def size_or_float(expr: Expr, context: Context) -> Any:
    """Return `size_of`, or a SizeFloat for a float expression."""
    return size_of(expr, context) if kind_of(expr) is int else SizeFloat(expr, context)


def hintless(symbol: Symbol) -> bool:
    """Return whether no branch may depend on the symbol: it is data-dependent or unbacked."""
    origin = symbol.origin
    return isinstance(origin, DataSize) or (isinstance(origin, SizeOf) and origin.unbacked)


def is_same(a: Dimension, b: Dimension) -> bool:
    """Return whether two dimensions are equal in every call, without adding a guard."""
    if isinstance(a, Size) and isinstance(b, Size):
        return a.expr is b.expr
    return type(a) is type(b) and a == b


def expr_of(dimension: Dimension) -> Expr:
    """Return the expression of a dimension."""
    return dimension.expr if isinstance(dimension, Size) else integer(int(dimension))


def _without_hint(op: str, a: Dimension, b: Dimension) -> tuple[Size, str, Dimension] | None:
    """Return the comparison with a data-dependent size on the left; None if there is none."""
    if isinstance(a, Size) and a.context.of_data(a.expr):
        return a, op, b
    if isinstance(b, Size) and b.context.of_data(b.expr):
        return b, SWAPPED[op], a
    return None


def size_oblivious(op: str, a: Dimension, b: Dimension) -> bool:
    """Return `a op b` for choices of layout. It is decided and guarded, except for data-dependent
    sizes, where it is the answer for most values.
    """
    if (asked := _without_hint(op, a, b)) is not None:
        size, op, other = asked
        return size.size_oblivious(op, other)
    return bool(COMPARISONS[op](a, b))


def expect_true(op: str, a: Dimension, b: Dimension) -> bool:
    """Return `a op b`, which eager requires to hold. It is decided and guarded, except for
    data-dependent sizes, where it is noted for the owner of the size to check.
    """
    if (asked := _without_hint(op, a, b)) is None:
        return bool(COMPARISONS[op](a, b))
    size, op, other = asked
    known = size.known(op, other)
    if known is None:
        size.context.defer_assert(op, size.expr, expr_of(other))
    return known is not False


def may_assume(op: str, a: Dimension, b: Dimension) -> bool:
    """Return `a op b` for a faster variant, see `Context.may_assume`."""
    if not isinstance(a, Size):
        a, b, op = b, a, SWAPPED[op]
    if not isinstance(a, Size):
        return bool(COMPARISONS[op](a, b))
    known = a.known(op, b)
    return a.context.may_assume(op, a.expr, expr_of(b)) if known is None else known


def min_size(a: Dimension, b: Dimension) -> Dimension:
    """Return the smaller of two; with a data-dependent size that may be a `min` expression."""
    for size, other in ((a, b), (b, a)):
        if isinstance(size, Size) and size.context.of_data(size.expr):
            known = size.known("<=", other)
            if known is None:
                both = tuple(sorted((a, b), key=repr))
                return Size(Apply("min", tuple(map(expr_of, both))), size.context)
            return size if known else other
    return a if a <= b else b


def upper_bound(dimension: Dimension) -> int:
    """Return an upper bound over all calls."""
    if not isinstance(dimension, Size):
        return dimension
    known = dimension.context.range_of(dimension.expr)
    return int(INT64.high) if known is None else int(min(known.high, INT64.high))


def lower_bound(dimension: Dimension) -> int:
    """Return a lower bound over all calls."""
    if not isinstance(dimension, Size):
        return dimension
    known = dimension.context.range_of(dimension.expr)
    return 0 if known is None else int(max(known.low, 0))


def value_of(dimension: Any, known: dict[Expr, Any]) -> Any:
    """Return the dimension at these symbol values; return any other object unchanged."""
    return evaluate(dimension.expr, known) if isinstance(dimension, Size) else dimension


def _expr(value: object) -> Expr | None:
    """Return the expression of a number, or None for other objects. A torch.SymInt holds a Size in
    its node; comparing it as an unknown object would silently return False.
    """
    if type(value) is int:
        return integer(value)
    if isinstance(value, Size):
        return value.expr
    if isinstance(value, int):
        return integer(int(value))
    held = getattr(getattr(value, "node", None), "value", None)
    return expr_of(held) if isinstance(held, int | Size) else None
