"""Finds out which elements a mask keeps, from the calls that make it.

In: the nodes of masks. Out: a `Triangle` for tril and triu of ones and comparisons of positions, at
all sizes; otherwise the elements themselves if the mask is made of constants. Both prove that no
row is wholly masked. A mask that is an input of the graph proves nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch.fx import Node

from ...symbols.size import Dimension, is_same
from ..symbolic.known import known_tensor
from .reading import Call, NotFusible, Program, spec_of

__all__ = ["Triangle", "filled_value", "kept_elements", "triangle"]


class Triangle(NamedTuple):
    """The elements with column - row <= offset, or those with column - row >= offset."""

    is_lower: bool
    offset: int

    @property
    def complement(self) -> Triangle:
        return Triangle(not self.is_lower, self.offset + 1 if self.is_lower else self.offset - 1)

    @property
    def is_causal(self) -> bool:
        return self == Triangle(True, 0)

    def keeps_a_column(self, rows: Dimension, columns: Dimension) -> bool:
        """Return whether each row has an element in it."""
        if self.is_lower:
            return self.offset >= 0
        return self.offset <= 0 and is_same(rows, columns)


class _Part(NamedTuple):
    """A tensor that has one value in a triangle, and zero (False) elsewhere."""

    triangle: Triangle
    value: float


def triangle(program: Program, mask: Node, reader: Node, keeps: bool) -> Triangle | None:
    """Return the elements at which a bool mask is `keeps`."""
    part = _part(program, mask, reader)
    if part is None:
        return None
    return part.triangle if keeps == bool(part.value) else part.triangle.complement


def filled_value(program: Program, term: Node, reader: Node) -> tuple[Triangle, float] | None:
    """Return the triangle that a term of zeros and one number keeps, and the number elsewhere."""
    part = _part(program, term, reader)
    if part is None or not spec_of(term).dtype.is_floating_point:
        return None
    return part.triangle.complement, part.value


def kept_elements(program: Program, mask: Node, keeps: bool) -> torch.Tensor | None:
    """Return the kept elements of a bool mask that is made of constants."""
    found = known_tensor(program, mask)
    return None if found is None or found.dtype is not torch.bool else found == keeps


# -- rules -----------------------------------------------------------------------------------------


def _part(program: Program, node: object, reader: Node) -> _Part | None:
    if not isinstance(node, Node):
        return None
    try:
        call = program.call(node, reader)
        rule = _RULES.get(call.name)
        return None if rule is None else rule(program, call)
    except NotFusible:
        return None


def _tril(program: Program, call: Call) -> _Part | None:
    matrix, diagonal = call.given("input", "diagonal")
    offset = 0 if diagonal is None else diagonal
    value = _constant(program, matrix, call.node)
    if value is None or type(offset) is not int:
        return None
    return _Part(Triangle(call.name == "tril", offset), value)


def _constant(program: Program, node: object, reader: Node) -> float | None:
    """Return the number that all elements of a tensor are."""
    if not isinstance(node, Node):
        return None
    call = program.call(node, reader)
    if call.name in ("ones", "ones_like", "new_ones"):
        return 1.0
    number = call.kwargs.get("fill_value", call.args[-1] if call.args else None)
    if call.name in ("full", "full_like", "new_full") and isinstance(number, int | float):
        return float(number)
    if call.name in _CASTS:
        value = _constant(program, call.args[0], call.node)
        return value if value in (0.0, 1.0) else None
    return None


def _not(program: Program, call: Call) -> _Part | None:
    part = _part(program, call.args[0], call.node)
    if part is None or spec_of(call.args[0]).dtype is not torch.bool:
        return None
    return _Part(part.triangle.complement, 1.0)


def _compare(program: Program, call: Call) -> _Part | None:
    """Read comparisons with a number, and those of row numbers with column numbers."""
    left, right = call.args
    if isinstance(right, Node):
        return _of_positions(program, call.name, left, right, call.node)
    part, test = _part(program, left, call.node), _COMPARISONS[call.name]
    if part is None or not isinstance(right, int | float):
        return None
    inside, outside = test(part.value, right), test(0.0, right)
    if inside == outside:
        return None
    return _Part(part.triangle if inside else part.triangle.complement, 1.0)


_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
# Of `row <= column` and its like, the triangle; `column <= row` is the opposite comparison.
_OF_POSITIONS = {
    "le": Triangle(False, 0), "lt": Triangle(False, 1), "ge": Triangle(True, 0),
    "gt": Triangle(True, -1),
}  # fmt: skip
_OPPOSITE = {"le": "ge", "lt": "gt", "ge": "le", "gt": "lt"}


def _of_positions(
    program: Program, name: str, left: object, right: Node, reader: Node
) -> _Part | None:
    ends = [_positions(program, side, reader) for side in (left, right)]
    if name not in _OF_POSITIONS or {*ends} != {"row", "column"}:
        return None
    named = name if ends[0] == "row" else _OPPOSITE[name]
    return _Part(_OF_POSITIONS[named], 1.0)


def _positions(program: Program, node: object, reader: Node) -> str | None:
    """Return whether a tensor has the number of its row, or of its column, counted from 0."""
    if not isinstance(node, Node):
        return None
    shape, call = spec_of(node).shape, program.call(node, reader)
    while call.name != "arange":
        source = call.args[0] if call.args else None
        if call.name not in ("unsqueeze", "getitem", "view", "reshape"):
            return None
        if call.name == "getitem" and not _only_adds_dimensions(call.args[1]):
            return None
        if not isinstance(source, Node) or _elements(source) != _elements(call.node):
            return None
        call = program.call(source, call.node)
    if len(call.args) != 1 or call.kwargs.keys() & {"start", "end", "step"} or not shape:
        return None
    is_row = len(shape) >= 2 and type(shape[-1]) is int and shape[-1] == 1
    sizes = [size for size in shape if not (type(size) is int and size == 1)]
    is_there = len(sizes) == 1 and is_same(sizes[0], shape[-2 if is_row else -1])
    return ("row" if is_row else "column") if is_there else None


def _only_adds_dimensions(index: object) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return all(part is None or part == slice(None) for part in parts)


def _elements(node: Node) -> list[Dimension]:
    return [size for size in spec_of(node).shape if not (type(size) is int and size == 1)]


def _same(program: Program, call: Call) -> _Part | None:
    """Read calls that keep rows and columns: casts of masks, and views of their front."""
    source = call.args[0]
    part = _part(program, source, call.node)
    if part is None:
        return None
    if call.name in _CASTS:
        return part._replace(value=1.0) if spec_of(call.node).dtype is torch.bool else part
    shapes = spec_of(source).shape, spec_of(call.node).shape
    if call.name == "getitem":
        return part if _is_front(call.args[1], len(shapes[0])) else None
    is_kept = all(is_same(a, b) for a, b in zip(shapes[0][-2:], shapes[1][-2:], strict=True))
    return part if is_kept else None


def _is_front(index: object, rank: int) -> bool:
    """Return whether an index takes rows and columns from the first on."""
    parts = index if isinstance(index, tuple) else (index,)
    taken = sum(part is not None for part in parts)
    ends = [*parts, *[slice(None)] * (rank - taken)][-2:]
    return ... not in parts and all(
        isinstance(part, slice)
        and part.start in (None, 0)
        and part.step in (None, 1)
        and not (isinstance(part.stop, int) and part.stop < 0)
        for part in ends
    )


def _masked(program: Program, call: Call) -> _Part | None:
    """Read zeros that are filled with a number in a triangle."""
    source, mask, value = call.given("input", "mask", "value")
    part = _part(program, mask, call.node)
    zeros = isinstance(source, Node) and program.call(source, call.node).name
    if part is None or zeros not in ("zeros", "zeros_like") or not isinstance(value, int | float):
        return None
    return _Part(part.triangle, float(value))


def _chosen(program: Program, call: Call) -> _Part | None:
    """Read a choice between zero and another number."""
    mask, inside, outside = call.given("condition", "input", "other")
    part = _part(program, mask, call.node)
    if part is None or not all(isinstance(one, int | float) for one in (inside, outside)):
        return None
    if outside == 0 and inside != 0:
        return _Part(part.triangle, float(inside))
    return _Part(part.triangle.complement, float(outside)) if inside == 0 != outside else None


_CASTS = frozenset({"to", "bool", "float", "half", "bfloat16", "int", "long", "type"})
_Rule = Callable[[Program, Call], _Part | None]
_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(("tril", "triu"), _tril),
    **dict.fromkeys(("invert", "logical_not", "bitwise_not"), _not),
    **dict.fromkeys(_COMPARISONS, _compare),
    **dict.fromkeys(("view", "reshape", "unsqueeze", "expand", "getitem", "contiguous"), _same),
    **dict.fromkeys(_CASTS, _same),
    "masked_fill": _masked,
    "where": _chosen,
}
