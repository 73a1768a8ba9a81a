"""Implements torch.SymBool and torch.SymFloat: truth values, and floats computed from sizes.

Input: comparisons of sizes, and SizeFloats. Output: their nodes. Nodes of sizes are in sym_node.py,
which also says why torch's own are not used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...symbols.context import COMPARISONS, Context, Specialize
from ...symbols.expr import Expr
from ...symbols.size import Size, SizeFloat, hint_of, hintless
from ...symbols.symbolic_numbers import OPERATIONS, Apply, constant, symbols_of

__all__ = ["Answer", "ConditionNode", "FloatNode", "SymbolicNode", "refusal"]

# C++ files whose comparisons decide nothing but the layout of a tensor.
_LAYOUTS = ("core/TensorImpl.h", "core/TensorImpl.cpp", "core/SymbolicShapeMeta.cpp")


def refusal(value: object, what: str) -> Specialize:
    return Specialize(symbols_of(value.expr) if isinstance(value, Size) else (), what)


class SymbolicNode:
    """Base of jitmagic's nodes: the part of torch.SymNode's protocol that ints, floats and bools
    share. They have slots as C++ looks up a name on them without Python's cache of attributes.
    """

    __slots__ = ()
    value: Any
    free_symbols: frozenset[object] = frozenset()  # of sympy, for which torch's Python asks

    @property
    def expr(self) -> SymbolicNode:
        return self

    def is_int(self) -> bool:
        return False

    def is_float(self) -> bool:
        return False

    def is_bool(self) -> bool:
        return False

    def is_nested_int(self) -> bool:
        return False

    def nested_int(self) -> None:
        return None

    def singleton_int(self) -> None:
        return None

    def has_hint(self) -> bool:
        return True

    def constant_int(self) -> None:
        return None

    def constant_bool(self) -> None:
        return None

    def clone(self) -> SymbolicNode:
        return self

    def str(self) -> str:
        """Return the value in this call, for torch's warnings and errors, as in eager."""
        return str(hint_of(self.value) if isinstance(self.value, Size) else self.value)

    _graph_repr = __str__ = str

    def wrap_bool(self, value: bool) -> ConditionNode:
        return Answer(value)

    def wrap_float(self, value: float) -> FloatNode:
        return FloatNode(value)


class ConditionNode(SymbolicNode):
    """A comparison that has not been decided yet."""

    __slots__ = ()

    def known(self) -> bool | None:
        """Return the answer if that needs no guard."""
        raise NotImplementedError

    def decide(self) -> bool:
        """Return the answer, and guard it."""
        raise NotImplementedError

    def size_oblivious(self) -> bool:
        """Return the answer where any is correct."""
        return self.decide()

    def check(self) -> bool:
        """Return the answer where eager raises unless it holds."""
        return self.decide()

    def has_hints(self) -> bool:
        """Return whether it has an answer in this call."""
        return True

    @property
    def value(self) -> bool | None:  # type: ignore[override]
        return self.known()

    def is_bool(self) -> bool:
        return True

    def is_symbolic(self) -> bool:
        return self.known() is None

    def is_constant(self) -> bool:
        return self.known() is not None

    def maybe_as_int(self) -> None:
        return None

    def bool_(self) -> bool:
        return self.decide()

    def guard_bool(self, file: str, line: int) -> bool:
        return self.size_oblivious() if file.endswith(_LAYOUTS) else self.decide()

    def expect_true(self, file: str, line: int) -> bool:
        return self.check()

    def guard_size_oblivious(self, file: str, line: int) -> bool:
        return self.size_oblivious()

    def statically_known_true(self, file: str, line: int) -> bool:
        return self.known() is True

    # torch's general case is correct for any value, but eager gives another layout or a view in
    # the special case (reshape, expand): only unbacked numbers take the general one.
    def guard_or_false(self, file: str, line: int) -> bool:
        return self.decide() if self.has_hints() else self.known() is True

    def guard_or_true(self, file: str, line: int) -> bool:
        return self.decide() if self.has_hints() else self.known() is not False

    # -- the ShapeEnv protocol that torch's Python (`guard_or_false` ...) uses --------------------

    @property
    def shape_env(self) -> ConditionNode:
        return self

    def _maybe_evaluate_static(self, expr: ConditionNode) -> bool | None:
        return expr.known()

    def evaluate_sym_node(
        self, node: ConditionNode, size_oblivious: bool = False, fallback_value: bool | None = None
    ) -> bool:
        """Decide the condition; if it is data-dependent, return the caller's fallback."""
        try:
            return node.decide()
        except Specialize as special:
            if fallback_value is None or not all(map(hintless, special.symbols)):
                raise
            return fallback_value

    def sym_not(self) -> ConditionNode:
        return _Not(self)

    def sym_and(self, other: ConditionNode) -> ConditionNode:
        return _Both(self, other)

    def sym_or(self, other: ConditionNode) -> ConditionNode:
        return _Not(_Both(_Not(self), _Not(other)))

    and_, or_ = sym_and, sym_or

    def eq(self, other: ConditionNode) -> ConditionNode:
        return Answer(self.decide() == other.decide())


class Answer(ConditionNode):
    """A condition whose answer is known."""

    __slots__ = ("answer",)

    def __init__(self, answer: bool) -> None:
        self.answer = answer

    def known(self) -> bool:
        return self.answer

    decide = known


class _Not(ConditionNode):
    __slots__ = ("_one",)

    def __init__(self, one: ConditionNode) -> None:
        self._one = one

    def known(self) -> bool | None:
        return None if (answer := self._one.known()) is None else not answer

    def decide(self) -> bool:
        return not self._one.decide()

    def size_oblivious(self) -> bool:
        return not self._one.size_oblivious()

    def has_hints(self) -> bool:
        return self._one.has_hints()


class _Both(ConditionNode):
    __slots__ = ("_one", "_other")

    def __init__(self, one: ConditionNode, other: ConditionNode) -> None:
        self._one, self._other = one, other

    def known(self) -> bool | None:
        answers = self._one.known(), self._other.known()
        return False if False in answers else None if None in answers else True

    def decide(self) -> bool:
        return self._one.decide() and self._other.decide()

    def size_oblivious(self) -> bool:
        return self._one.size_oblivious() and self._other.size_oblivious()

    def check(self) -> bool:
        return self._one.check() and self._other.check()

    def has_hints(self) -> bool:
        return self._one.has_hints() and self._other.has_hints()


class _FloatComparison(ConditionNode):
    __slots__ = ("_asked", "_context")

    def __init__(self, context: Context, asked: tuple[str, Expr, Expr]) -> None:
        self._context, self._asked = context, asked

    def known(self) -> bool | None:
        return self._context.known(*self._asked)

    def decide(self) -> bool:
        return self._context.decide(*self._asked)


def _applied(op: str) -> Callable[..., FloatNode]:
    """Return the method of torch's protocol for an operation of OPERATIONS."""
    return lambda self, *others: self._apply(op, *others)


def _compared(op: str) -> Callable[[FloatNode, FloatNode], ConditionNode]:
    """Return the method of torch's protocol for this comparison."""

    def compare(one: FloatNode, other: FloatNode) -> ConditionNode:
        a, b = one.value, other.value
        context = next((size.context for size in (a, b) if isinstance(size, Size)), None)
        if context is None:
            return Answer(bool(COMPARISONS[op](a, b)))
        return _FloatComparison(context, (op, _float_expr(a), _float_expr(b)))

    return compare


class FloatNode(SymbolicNode):
    """A float: `value` is one, or a SizeFloat. Autograd's formulas divide by products of sizes; a
    value that C++ reads is refused.
    """

    __slots__ = ("value",)

    def __init__(self, value: float | SizeFloat) -> None:
        self.value = value

    def is_float(self) -> bool:
        return True

    def is_symbolic(self) -> bool:
        return isinstance(self.value, Size)

    def is_constant(self) -> bool:
        return not isinstance(self.value, Size)

    def maybe_as_int(self) -> None:
        return None

    def guard_float(self, file: str, line: int) -> float:
        if isinstance(self.value, Size):
            raise refusal(self.value, "its value as a float")
        return float(self.value)

    def sym_float(self) -> FloatNode:
        return self

    def _apply(self, op: str, *others: FloatNode) -> FloatNode:
        values = [node.value for node in (self, *others)]
        context = next((one.context for one in values if isinstance(one, Size)), None)
        if context is None:
            return FloatNode(OPERATIONS[op].python(*values))
        return FloatNode(SizeFloat(Apply(op, tuple(map(_float_expr, values))), context))

    add, sub, mul, truediv, float_truediv = map(_applied, ("+", "-", "*", "/", "/"))
    neg, sqrt = _applied("neg"), _applied("sqrt")

    def pow(self, other: FloatNode) -> FloatNode:
        return self.sqrt() if other.value == 0.5 else self._apply("**", other)

    float_pow = pow

    eq, ne, lt, le, gt, ge = map(_compared, ("==", "!=", "<", "<=", ">", ">="))


def _float_expr(value: float | Size) -> Expr:
    return value.expr if isinstance(value, Size) else constant(float(value))
