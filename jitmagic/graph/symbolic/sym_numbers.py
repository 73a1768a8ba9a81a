"""Implements torch.SymBool and torch.SymFloat: truth values, and floats computed from sizes.

Input: comparisons of sizes, and SizeFloats. Output: their nodes. Nodes of sizes are in sym_node.py,
which also says why torch's own are not used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...symbols.context import COMPARISONS, Specialize
from ...symbols.expr import Expr
from ...symbols.scalar import OPERATIONS, Apply, constant, symbols_of
from ...symbols.size import Size, SizeFloat, hint_of, hintless

__all__ = ["ConditionNode", "FloatNode", "SymbolicNode", "refusal"]

# C++ files whose comparisons decide nothing but the layout of a tensor.
_LAYOUTS = ("core/TensorImpl.h", "core/TensorImpl.cpp", "core/SymbolicShapeMeta.cpp")


def refusal(value: object, what: str) -> Specialize:
    return Specialize(symbols_of(value.expr) if isinstance(value, Size) else (), what)


class SymbolicNode:
    """Base of jitmagic's nodes: the part of torch.SymNode's protocol that ints, floats and bools
    share.
    """

    value: Any

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
        return ConditionNode(lambda: value, lambda: value)

    def wrap_float(self, value: float) -> FloatNode:
        return FloatNode(value)


class ConditionNode(SymbolicNode):
    """A comparison that has not been decided yet.

    `decide` decides and guards it; `known` returns the answer only if that needs no guard, else
    None. `usual` decides if any answer is correct, `check` if eager raises unless it holds.
    `has_hints`: whether it has an answer in this call.
    """

    def __init__(
        self,
        known: Callable[[], bool | None],
        decide: Callable[[], bool],
        usual: Callable[[], bool] | None = None,
        check: Callable[[], bool] | None = None,
        has_hints: Callable[[], bool] = lambda: True,
    ) -> None:
        self.known, self.decide, self.has_hints = known, decide, has_hints
        self.usual, self.check = usual or decide, check or decide

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
        return self.usual() if file.endswith(_LAYOUTS) else self.decide()

    def expect_true(self, file: str, line: int) -> bool:
        return self.check()

    def guard_size_oblivious(self, file: str, line: int) -> bool:
        return self.usual()

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

    @property
    def expr(self) -> ConditionNode:
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
        def known() -> bool | None:
            return None if (answer := self.known()) is None else not answer

        return ConditionNode(
            known,
            lambda: not self.decide(),
            lambda: not self.usual(),
            has_hints=self.has_hints,
        )

    def sym_and(self, other: ConditionNode) -> ConditionNode:
        def known() -> bool | None:
            answers = self.known(), other.known()
            return False if False in answers else None if None in answers else True

        return ConditionNode(
            known,
            lambda: self.decide() and other.decide(),
            lambda: self.usual() and other.usual(),
            lambda: self.check() and other.check(),
            lambda: self.has_hints() and other.has_hints(),
        )

    def sym_or(self, other: ConditionNode) -> ConditionNode:
        return self.sym_not().sym_and(other.sym_not()).sym_not()

    and_, or_ = sym_and, sym_or

    def eq(self, other: ConditionNode) -> ConditionNode:
        answer = self.decide() == other.decide()
        return ConditionNode(lambda: answer, lambda: answer)


class FloatNode(SymbolicNode):
    """A float: `value` is one, or a SizeFloat. Autograd's formulas divide by products of sizes; a
    value that C++ reads is refused.
    """

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

    def add(self, other: FloatNode) -> FloatNode:
        return self._apply("+", other)

    def sub(self, other: FloatNode) -> FloatNode:
        return self._apply("-", other)

    def mul(self, other: FloatNode) -> FloatNode:
        return self._apply("*", other)

    def truediv(self, other: FloatNode) -> FloatNode:
        return self._apply("/", other)

    float_truediv = truediv

    def neg(self) -> FloatNode:
        return self._apply("neg")

    def sqrt(self) -> FloatNode:
        return self._apply("sqrt")

    def pow(self, other: FloatNode) -> FloatNode:
        return self.sqrt() if other.value == 0.5 else self._apply("**", other)

    float_pow = pow

    def _compared(self, op: str, other: FloatNode) -> ConditionNode:
        a, b = map(_float_expr, (self.value, other.value))
        context = next((n.value.context for n in (self, other) if isinstance(n.value, Size)), None)
        if context is None:
            answer = bool(COMPARISONS[op](self.value, other.value))
            return ConditionNode(lambda: answer, lambda: answer)
        return ConditionNode(lambda: context.known(op, a, b), lambda: context.decide(op, a, b))

    def eq(self, other: FloatNode) -> ConditionNode:
        return self._compared("==", other)

    def ne(self, other: FloatNode) -> ConditionNode:
        return self._compared("!=", other)

    def lt(self, other: FloatNode) -> ConditionNode:
        return self._compared("<", other)

    def le(self, other: FloatNode) -> ConditionNode:
        return self._compared("<=", other)

    def gt(self, other: FloatNode) -> ConditionNode:
        return self._compared(">", other)

    def ge(self, other: FloatNode) -> ConditionNode:
        return self._compared(">=", other)


def _float_expr(value: float | Size) -> Expr:
    return value.expr if isinstance(value, Size) else constant(float(value))
