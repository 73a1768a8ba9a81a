"""Implements torch.SymInt over jitmagic's sizes: meta tensors whose dimensions vary between calls.

Input: dimensions (`int | Size`) and the questions of torch's C++ about symbolic numbers. Output:
SymInts that compute as `Size` does, and `Size`s again. A decision of torch (`bool(n == m)`) is
`Context.decide`; a value read as an int is `Size.__index__`, which raises Specialize: no value of
one call enters a graph for all of them.

torch's own ShapeEnv is not used: it needs sympy (0.5 s to import, 100 µs per comparison) and words
guards its own way, and two systems that narrow ranges would have to agree. C++ needs only the
protocol below, whose method names are torch's.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

import torch

from ...symbols.context import COMPARISONS, SWAPPED
from ...symbols.size import Dimension, Size, SizeFloat, expect_true, hint_of, size_oblivious
from ...symbols.symbolic_numbers import Apply
from .sym_layouts import has_strides_along, is_dense, is_dense_along
from .sym_numbers import Answer, ConditionNode, FloatNode, SymbolicNode, refusal

__all__ = [
    "as_dimension",
    "as_dimensions",
    "as_torch",
    "expected_to_hold",
    "has_strides_along",
    "in_layout",
    "is_data_dependent",
    "is_dense_in",
    "known_false",
    "sizes_in",
    "sizes_of",
    "with_hints",
]  # fmt: skip


def as_torch(value: object) -> Any:
    """Return a size as a SymInt; ints and everything else unchanged. A float computed from sizes
    becomes its value in this call: `SizeNodes` admits it only to calls whose shapes do not depend
    on it.
    """
    if isinstance(value, SizeFloat):
        return value.context.value_of(value.expr)
    return torch.SymInt(SizeNode(value)) if isinstance(value, Size) else value


def as_dimension(value: object) -> Any:
    """Return torch's size as an int or a Size; other values unchanged."""
    if type(value) not in _SYMBOLIC:
        return value
    return getattr(value.node, "value", value)  # type: ignore[attr-defined]  # or a nested int


_SYMBOLIC = frozenset((torch.SymInt, torch.SymFloat))


def as_dimensions(values: Iterable[object]) -> tuple[Any, ...]:
    return tuple([one if type(one) is int else as_dimension(one) for one in values])


def sizes_of(value: Any) -> Any:
    """Return nested arguments with Sizes in place of SymInts."""
    if type(value) in (tuple, list):
        return type(value)(map(sizes_of, value))
    return as_dimension(value)


def in_layout(op: str, a: Any, b: object) -> bool:
    """Compare two dimensions where only a layout depends on the answer (see `size_oblivious`)."""
    if type(a) is int and type(b) is int:
        return bool(COMPARISONS[op](a, b))
    return size_oblivious(op, as_dimension(a), as_dimension(b))


def is_data_dependent(size: object) -> bool:
    """Return whether the size is data-dependent."""
    size = as_dimension(size)
    return isinstance(size, Size) and size.context.of_data(size.expr)


def known_false(op: str, a: Any, b: object) -> bool:
    """Return whether `a op b` is known to be false in every call; adds no guard."""
    return _known(op, as_dimension(a), as_dimension(b)) is False


def expected_to_hold(op: str, a: Any, b: object) -> bool:
    """Return `a op b` of dimensions, which eager requires to hold (see `expect_true`)."""
    return expect_true(op, as_dimension(a), as_dimension(b))


def sizes_in(value: object) -> Iterator[Size]:
    """Yield the sizes in a nested structure of tensors, SymInts, tuples, lists, dicts and
    slices.
    """
    value = as_dimension(value)
    if isinstance(value, Size):
        yield value
        return
    if isinstance(value, torch.Tensor):
        value = (*value.shape, *value.stride(), value.storage_offset())
    elif isinstance(value, dict):
        value = value.values()
    elif isinstance(value, slice):
        value = (value.start, value.stop, value.step)
    elif not isinstance(value, (tuple, list)):
        return
    for item in value:
        if type(item) is not int:  # nearly all are ints: saves a recursive generator for each
            yield from sizes_in(item)


def with_hints(value: Any) -> Any:
    """Return the nested arguments with their sizes in this call: ints, tensors of those sizes."""
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
    if isinstance(value, torch.Size):
        return tuple(map(with_hints, value))
    if isinstance(value, slice):
        return slice(*map(with_hints, (value.start, value.stop, value.step)))
    return value


def _comparison(op: str) -> Callable[[SizeNode, SizeNode], ConditionNode]:
    """Return the method of torch's protocol for this comparison."""
    return lambda one, other: Comparison(op, one.value, other.value)


Ask = Callable[[Sequence[int], list[Dimension], list[Dimension]], bool]


def _layout_question(
    ask: Ask, order: Sequence[int]
) -> Callable[[SizeNode, list[SizeNode], list[SizeNode]], ConditionNode]:
    """Return the method for a question that torch asks with all sizes and strides."""
    return lambda _, sizes, strides: _layout(ask, order, sizes, strides)


class SizeNode(SymbolicNode):
    """An integer: `value` is an int or a Size."""

    __slots__ = ("value",)

    def __init__(self, value: Dimension) -> None:
        self.value = value

    def is_int(self) -> bool:
        return True

    def wrap_int(self, value: int) -> SizeNode:
        return SizeNode(value)

    def is_symbolic(self) -> bool:
        return isinstance(self.value, Size)

    def has_hint(self) -> bool:
        return not isinstance(self.value, Size) or not self.value.context.of_data(self.value.expr)

    def is_constant(self) -> bool:
        return not isinstance(self.value, Size)

    def maybe_as_int(self) -> int | None:
        value = self.value
        return value if type(value) is int else None

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
        """Return the larger. C++ only asks it for strides, `max(size, 1)`: an empty tensor's may be
        any.
        """
        return self if size_oblivious(">=", self.value, other.value) else other

    def sym_sum(self, args: Sequence[SizeNode]) -> SizeNode:
        return SizeNode(sum((arg.value for arg in args), 0))

    def sym_float(self) -> FloatNode:
        if not isinstance(self.value, Size):
            return FloatNode(float(self.value))
        return FloatNode(SizeFloat(Apply("float", (self.value.expr,)), self.value.context))

    def int_truediv(self, other: SizeNode) -> FloatNode:
        return self.sym_float().truediv(other.sym_float())

    truediv = int_truediv

    def _refused(self, *args: object) -> NoReturn:
        raise refusal(self.value, "its value as a float")

    float_truediv = float_pow = guard_float = _refused

    eq, ne = _comparison("=="), _comparison("!=")
    lt, le, gt, ge = map(_comparison, ("<", "<=", ">", ">="))

    # -- layouts, which torch asks with all sizes and strides -----------------------------------

    def is_contiguous(self, sizes: list[SizeNode], strides: list[SizeNode]) -> ConditionNode:
        return _layout(is_dense_along, range(len(sizes) - 1, -1, -1), sizes, strides)

    is_channels_last_contiguous_2d = _layout_question(is_dense_along, (1, 3, 2, 0))
    is_channels_last_contiguous_3d = _layout_question(is_dense_along, (1, 4, 3, 2, 0))
    is_channels_last_strides_2d = _layout_question(has_strides_along, (1, 3, 2, 0))
    is_channels_last_strides_3d = _layout_question(has_strides_along, (1, 4, 3, 2, 0))
    is_non_overlapping_and_dense = _layout_question(is_dense, ())

    def is_non_overlapping_and_dense_indicator(
        self, sizes: list[SizeNode], strides: list[SizeNode]
    ) -> SizeNode:
        return SizeNode(int(self.is_non_overlapping_and_dense(sizes, strides).bool_()))


class Comparison(ConditionNode):
    """A comparison of two integers."""

    __slots__ = ("a", "b", "op")

    def __init__(self, op: str, a: Dimension, b: Dimension) -> None:
        self.op, self.a, self.b = op, a, b

    def known(self) -> bool | None:
        return _known(self.op, self.a, self.b)

    def decide(self) -> bool:
        return bool(COMPARISONS[self.op](self.a, self.b))

    def size_oblivious(self) -> bool:
        return size_oblivious(self.op, self.a, self.b)

    def check(self) -> bool:
        return expect_true(self.op, self.a, self.b)

    def has_hints(self) -> bool:
        return _has_hint(self.a) and _has_hint(self.b)


def _has_hint(size: Dimension) -> bool:
    return not isinstance(size, Size) or size.context.has_hints((size.expr,))


def _known(op: str, a: Dimension, b: Dimension) -> bool | None:
    if isinstance(a, Size):
        return a.known(op, b)
    if isinstance(b, Size):
        return b.known(SWAPPED[op], a)
    return bool(COMPARISONS[op](a, b))


def _layout(
    ask: Ask, order: Sequence[int], sizes: list[SizeNode], strides: list[SizeNode]
) -> ConditionNode:
    return Answer(ask(order, [n.value for n in sizes], [n.value for n in strides]))


def is_dense_in(tensor: torch.Tensor, order: Sequence[int]) -> bool:
    """Return whether the elements are contiguous, the last dimension of `order` moving fastest.

    torch refuses a view of a tensor with symbolic sizes unless a dispatch mode is on.
    """
    shape, stride = as_dimensions(tensor.shape), as_dimensions(tensor.stride())
    return is_dense_along(order[::-1], list(shape), list(stride))
