"""torch.SymInt over our own sizes: meta tensors whose dimensions differ from call to call.

Comes in: dimensions (`int | Size`) and what torch's C++ asks of a symbolic number. Goes out:
SymInts that compute as `Size` does, and `Size`s again. What torch decides on (`bool(n == m)`) is
`Context.decide`; a value it reads as an int is `Size.__index__`, which raises Specialize: no value
of one call gets into a graph for all of them.

torch's own ShapeEnv is not used: it needs sympy (0.5 s to import, 100 µs per comparison), asks its
own guards in its own words, and two systems that narrow ranges would have to agree. The protocol
below is all that C++ needs of it; the methods have the names that torch calls.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

import torch

from ..symbols.context import COMPARISONS, SWAPPED, Specialize
from ..symbols.scalar import symbols_of
from ..symbols.size import Dimension, Size, SizeFloat, expected, hint_of, hintless, is_same, usually

__all__ = [
    "as_dimension", "as_dimensions", "as_torch", "has_strides_along", "in_layout", "is_dense_in",
    "may_be", "never", "of_data", "sizes_in", "sizes_of", "with_hints",
]  # fmt: skip

Comparison = Callable[[Any, Any], Any]
_NAMES: dict[Comparison, str] = {
    operator.eq: "==", operator.ne: "!=", operator.lt: "<",
    operator.le: "<=", operator.gt: ">", operator.ge: ">=",
}  # fmt: skip
# Where C++ asks for nothing but the layout of a tensor.
_LAYOUTS = ("core/TensorImpl.h", "core/TensorImpl.cpp", "core/SymbolicShapeMeta.cpp")


def as_torch(value: Any) -> Any:
    """A size as a SymInt; ints and everything else as they are. A float computed of sizes is what
    it is in this call: `SizeNodes` lets it into calls alone whose shapes do not depend on it.
    """
    if isinstance(value, SizeFloat):
        return value.context.value_of(value.expr)
    return torch.SymInt(SizeNode(value)) if isinstance(value, Size) else value


def as_dimension(value: Any) -> Any:
    """What torch gives as a size, as an int or our Size; what is none as it is."""
    return value.node.value if isinstance(value, torch.SymInt) else value


def as_dimensions(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(map(as_dimension, values))


def sizes_of(value: Any) -> Any:
    """Nested arguments with Sizes in place of SymInts."""
    if type(value) in (tuple, list):
        return type(value)(map(sizes_of, value))
    return as_dimension(value) if isinstance(value, torch.SymInt) else value


def in_layout(op: str, a: Any, b: Any) -> bool:
    """`a op b` of dimensions, for what only a layout depends on (see `usually`)."""
    if type(a) is int and type(b) is int:
        return bool(COMPARISONS[op](a, b))
    return usually(op, as_dimension(a), as_dimension(b))


def of_data(size: Any) -> bool:
    """Whether data decide it."""
    size = as_dimension(size)
    return isinstance(size, Size) and size.context.of_data(size.expr)


def never(op: str, a: Any, b: Any) -> bool:
    """Whether `a op b` is known to hold in no call; guards nothing."""
    return _known(op, as_dimension(a), as_dimension(b)) is False


def may_be(op: str, a: Any, b: Any) -> bool:
    """`a op b` of dimensions, where eager raises unless it holds (see `expected`)."""
    return expected(op, as_dimension(a), as_dimension(b))


def sizes_in(value: Any) -> Iterator[Size]:
    """The sizes in a nested structure of tensors, SymInts, tuples, lists, dicts and slices."""
    if isinstance(value, torch.SymInt):
        value = value.node.value
    if isinstance(value, Size):
        yield value
    elif isinstance(value, torch.Tensor):
        yield from sizes_in((*value.shape, *value.stride(), value.storage_offset()))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from sizes_in(item)
    elif isinstance(value, dict):
        yield from sizes_in(tuple(value.values()))
    elif isinstance(value, slice):
        yield from sizes_in((value.start, value.stop, value.step))


def with_hints(value: Any) -> Any:
    """The nested arguments as they are in this call: of ints, tensors of those sizes."""
    if isinstance(value, SizeFloat):
        return value.context.value_of(value.expr)
    if isinstance(value, torch.SymInt | Size):
        return hint_of(as_dimension(value))
    if isinstance(value, torch.Tensor):
        if next(sizes_in(value), None) is None:
            return value
        shape = tuple(map(hint_of, as_dimensions(value.shape)))
        stride = tuple(map(hint_of, as_dimensions(value.stride())))
        return torch.empty_strided(shape, stride, dtype=value.dtype, device=value.device)
    if isinstance(value, dict):
        return {key: with_hints(item) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(map(with_hints, value))
    if isinstance(value, slice):
        return slice(*map(with_hints, (value.start, value.stop, value.step)))
    return value


class _Node:
    """What torch asks of both kinds."""

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

    def clone(self) -> _Node:
        return self

    def str(self) -> str:
        """In what torch warns of and raises: the size of this call, as in eager."""
        return str(hint_of(self.value) if isinstance(self.value, Size) else self.value)

    _graph_repr = __str__ = str

    def wrap_int(self, value: int) -> SizeNode:
        return SizeNode(value)

    def wrap_bool(self, value: bool) -> ConditionNode:
        return ConditionNode(lambda: value, lambda: value)

    def wrap_float(self, value: float) -> NoReturn:
        raise _refusal(self.value, "arithmetic with floats")


class SizeNode(_Node):
    """An integer: `value` is an int or a Size."""

    def __init__(self, value: Dimension) -> None:
        self.value = value

    def is_int(self) -> bool:
        return True

    def is_symbolic(self) -> bool:
        return isinstance(self.value, Size)

    def has_hint(self) -> bool:
        return not isinstance(self.value, Size) or not self.value.context.of_data(self.value.expr)

    def is_constant(self) -> bool:
        return not isinstance(self.value, Size)

    def maybe_as_int(self) -> int | None:
        return None if isinstance(self.value, Size) else self.value

    def guard_int(self, file: str, line: int) -> int:
        return operator.index(self.value)

    def int_(self) -> int:
        return operator.index(self.value)

    def expect_size(self, file: str, line: int) -> bool:
        return bool(self.value >= 0)

    def neg(self) -> SizeNode:
        return SizeNode(-self.value)

    def pos(self) -> SizeNode:
        return self

    floor = ceil = trunc = sym_int = pos

    def add(self, other: SizeNode) -> SizeNode:
        return SizeNode(self.value + other.value)

    def sub(self, other: SizeNode) -> SizeNode:
        return SizeNode(self.value - other.value)

    def mul(self, other: SizeNode) -> SizeNode:
        return SizeNode(self.value * other.value)

    def int_floordiv(self, other: SizeNode) -> SizeNode:
        return SizeNode(self.value // other.value)

    floordiv = int_floordiv

    def mod(self, other: SizeNode) -> SizeNode:
        return SizeNode(self.value % other.value)

    def pow_by_natural(self, other: SizeNode) -> SizeNode:
        made: Dimension = 1
        for _ in range(operator.index(other.value)):
            made = self.value * made
        return SizeNode(made)

    pow = pow_by_natural

    def sym_min(self, other: SizeNode) -> SizeNode:
        return self if self.value <= other.value else other

    def sym_max(self, other: SizeNode) -> SizeNode:
        """Only strides are asked for it here, `max(size, 1)`: an empty tensor may have any."""
        return self if usually(">=", self.value, other.value) else other

    def sym_sum(self, args: Sequence[SizeNode]) -> SizeNode:
        return SizeNode(sum((arg.value for arg in args), 0))

    def _refused(self, *args: Any) -> NoReturn:
        raise _refusal(self.value, "its value as a float")

    sym_float = int_truediv = truediv = float_truediv = float_pow = _refused
    guard_float = _refused

    def eq(self, other: SizeNode) -> ConditionNode:
        return _compared(operator.eq, self.value, other.value)

    def ne(self, other: SizeNode) -> ConditionNode:
        return _compared(operator.ne, self.value, other.value)

    def lt(self, other: SizeNode) -> ConditionNode:
        return _compared(operator.lt, self.value, other.value)

    def le(self, other: SizeNode) -> ConditionNode:
        return _compared(operator.le, self.value, other.value)

    def gt(self, other: SizeNode) -> ConditionNode:
        return _compared(operator.gt, self.value, other.value)

    def ge(self, other: SizeNode) -> ConditionNode:
        return _compared(operator.ge, self.value, other.value)

    # -- layouts, which torch asks with all sizes and strides -----------------------------------

    def is_contiguous(self, sizes: list[SizeNode], strides: list[SizeNode]) -> ConditionNode:
        return _layout(_is_dense_along, range(len(sizes) - 1, -1, -1), sizes, strides)

    def is_channels_last_contiguous_2d(self, sizes: Any, strides: Any) -> ConditionNode:
        return _layout(_is_dense_along, (1, 3, 2, 0), sizes, strides)

    def is_channels_last_contiguous_3d(self, sizes: Any, strides: Any) -> ConditionNode:
        return _layout(_is_dense_along, (1, 4, 3, 2, 0), sizes, strides)

    def is_channels_last_strides_2d(self, sizes: Any, strides: Any) -> ConditionNode:
        return _layout(has_strides_along, (1, 3, 2, 0), sizes, strides)

    def is_channels_last_strides_3d(self, sizes: Any, strides: Any) -> ConditionNode:
        return _layout(has_strides_along, (1, 4, 3, 2, 0), sizes, strides)

    def is_non_overlapping_and_dense(self, sizes: Any, strides: Any) -> ConditionNode:
        return _layout(_is_dense, (), sizes, strides)

    def is_non_overlapping_and_dense_indicator(self, sizes: Any, strides: Any) -> SizeNode:
        return SizeNode(int(self.is_non_overlapping_and_dense(sizes, strides).bool_()))


class ConditionNode(_Node):
    """A question that has not been asked: `decide` answers and guards it, `known` only answers
    (None: that takes a guard), `usual` answers for what any answer leaves right, `check` where
    eager raises unless it holds. `has_hints`: whether it has an answer in this call.
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

    # The general case is right for any value, but eager gives another layout or a view where it
    # takes the special one (reshape, expand): it is left to numbers that are not known yet.
    def guard_or_false(self, file: str, line: int) -> bool:
        return self.decide() if self.has_hints() else self.known() is True

    def guard_or_true(self, file: str, line: int) -> bool:
        return self.decide() if self.has_hints() else self.known() is not False

    # -- what `guard_or_false` and its like, written in Python, ask an environment of shapes ------

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
        """What data decide is as the caller says for what it cannot know."""
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


def _refusal(value: Any, what: str) -> Specialize:
    return Specialize(symbols_of(value.expr) if isinstance(value, Size) else (), what)


def _compared(op: Comparison, a: Dimension, b: Dimension) -> ConditionNode:
    name = _NAMES[op]
    sizes = [size for size in (a, b) if isinstance(size, Size)]
    return ConditionNode(
        lambda: _known(name, a, b),
        lambda: bool(op(a, b)),
        lambda: usually(name, a, b),
        lambda: expected(name, a, b),
        lambda: all(size.context.has_hints([size.expr]) for size in sizes),
    )


def _known(op: str, a: Dimension, b: Dimension) -> bool | None:
    if isinstance(a, Size):
        return a.known(op, b)
    if isinstance(b, Size):
        return b.known(SWAPPED[op], a)
    return bool(COMPARISONS[op](a, b))


# -- layouts (c10/core/Contiguity.h, c10/core/MemoryFormat.h) -------------------------------------


def _layout(
    ask: Callable[..., bool], order: Iterable[int], sizes: list[SizeNode], strides: list[SizeNode]
) -> ConditionNode:
    answer = ask(order, [n.value for n in sizes], [n.value for n in strides])
    return ConditionNode(lambda: answer, lambda: answer)


def _is_dense_along(order: Sequence[int], sizes: list[Dimension], strides: list[Dimension]) -> bool:
    """Whether the elements lie one after the other, the first of `order` moving fastest."""
    if len(order) != len(sizes):
        return False
    if any(usually("==", size, 0) for size in sizes):
        return True
    expected: Dimension = 1
    for place in order:
        if usually("==", sizes[place], 1):
            continue
        if not is_same(strides[place], expected) and usually("!=", strides[place], expected):
            return False
        expected = expected * sizes[place]
    return True


def is_dense_in(tensor: torch.Tensor, order: Sequence[int]) -> bool:
    """Whether the elements lie one after the other, the last dimension of `order` moving fastest.
    torch refuses a view of a tensor with symbolic sizes where no dispatch mode is on.
    """
    shape, stride = as_dimensions(tensor.shape), as_dimensions(tensor.stride())
    return _is_dense_along(order[::-1], list(shape), list(stride))


def has_strides_along(order: Sequence[int], sizes: Sequence[Any], strides: Sequence[Any]) -> bool:
    """TensorImpl::is_strides_like_channels_last, for an order of the dimensions from the innermost
    on; ambiguous layouts are row-major.
    """
    if len(order) != len(sizes) or usually("==", strides[1], 0):
        return False
    least: Dimension = 0
    for place in order:
        if usually("==", sizes[place], 0) or usually("<", strides[place], least):
            return False
        if place == 0 and usually("==", least, strides[1]):
            return False
        is_many = usually(">", sizes[place], 1)
        least = strides[place] * sizes[place] if is_many else strides[place]
    return True


def _is_dense(order: Any, sizes: list[Dimension], strides: list[Dimension]) -> bool:
    """Whether some order of the dimensions is dense."""
    moving = [place for place, size in enumerate(sizes) if usually("!=", size, 1)]
    if any(usually("==", sizes[place], 0) for place in moving):
        return True
    expected: Dimension = 1
    while moving:
        place = next((p for p in moving if usually("==", strides[p], expected)), None)
        if place is None:
            return False
        expected = expected * sizes[place]
        moving.remove(place)
    return True
