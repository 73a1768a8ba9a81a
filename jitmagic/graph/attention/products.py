"""Reads matrix products of batches in one form, whichever function computes them.

matmul, bmm and einsum of two operands become operands whose dimensions are in the order (batch ...,
row, column). So the second operand of `q @ k.transpose(-1, -2)` and that of
`einsum("bihd,bjhd->bhij", q, k)` are the same: whether k was transposed needs no rule.
"""

from __future__ import annotations

from typing import NamedTuple

from torch.fx import Node

from ...symbols.size import Dimension
from .reading import Call, NotFusible, spec_of

__all__ = ["Operand", "Order", "ValueProduct", "score_product", "swapped", "value_product"]

_PLAIN = frozenset({"matmul", "bmm", "mm"})
Order = tuple[int, ...]


class Operand(NamedTuple):
    """A tensor and the order in which to take its dimensions; None is a new one of size 1."""

    node: Node
    dims: tuple[int | None, ...]

    @property
    def shape(self) -> tuple[Dimension, ...]:
        given = spec_of(self.node).shape
        return tuple(1 if dim is None else given[dim] for dim in self.dims)

    @property
    def last_stride(self) -> Dimension:
        last = self.dims[-1]
        return 0 if last is None else spec_of(self.node).stride[last]

    @property
    def transposed(self) -> Operand:
        """Swap rows and columns."""
        return Operand(self.node, (*self.dims[:-2], self.dims[-1], self.dims[-2]))


class ValueProduct(NamedTuple):
    """The product of probabilities, whose dimensions are (batch ..., row, column), with a value of
    (batch ..., column, feature). `order`: that of (batch ..., row, feature) in the result.
    """

    probabilities: Node
    is_transposed: bool  # the node has them with rows and columns swapped
    value: Operand
    order: Order


def swapped(rank: int) -> Order:
    """Return the order of dimensions in which the last two are swapped."""
    return (*range(rank - 2), rank - 1, rank - 2)


def score_product(call: Call) -> tuple[Operand, Operand] | None:
    """Return query and key, both as (batch ..., position, feature); None if it is no product."""
    if call.name in _PLAIN:
        left, right = _operands(call)
        return left, right.transposed
    if call.name == "baddbmm":
        left, right = _aligned(*call.given("input", "batch1", "batch2", "beta", "alpha")[1:3])
        return left, right.transposed
    if call.name != "einsum":
        return None
    labels, nodes = _einsum(call)
    *batch, row, column = labels[2]
    first = 0 if row in labels[0] else 1
    query, key = labels[first], labels[1 - first]
    feature = _contracted(labels)
    if row in key or column in query:
        raise NotFusible
    _check_sums(labels, feature)
    return (
        _taken(nodes[first], query, (*batch, row, feature)),
        _taken(nodes[1 - first], key, (*batch, column, feature)),
    )


def value_product(call: Call) -> list[ValueProduct]:
    """Return what the product is if its first, or its second operand holds probabilities."""
    if call.name in _PLAIN:
        left, right = _operands(call)
        rank = len(left.dims)
        found = []
        if None not in left.dims:
            found.append(ValueProduct(left.node, False, right, tuple(range(rank))))
        if None not in right.dims:
            found.append(ValueProduct(right.node, True, left.transposed, swapped(rank)))
        return found
    if call.name != "einsum":
        return []
    labels, nodes = _einsum(call)
    made = [_of_einsum(labels, nodes, place) for place in (0, 1)]
    return [one for one in made if one is not None]


def _operands(call: Call) -> tuple[Operand, Operand]:
    names = ("input", "mat2") if call.name != "matmul" else ("input", "other")
    left, right = call.given(*names)
    return _aligned(left, right)


def _aligned(left: Node, right: Node) -> tuple[Operand, Operand]:
    """Return operands of the same rank."""
    ranks = [len(spec_of(node).shape) for node in (left, right)]
    if min(ranks) < 2:
        raise NotFusible
    made = [
        Operand(node, (*(None,) * (max(ranks) - rank), *range(rank)))
        for node, rank in zip((left, right), ranks, strict=True)
    ]
    return made[0], made[1]


# -- einsum ----------------------------------------------------------------------------------------


def _einsum(call: Call) -> tuple[tuple[list[str], list[str], list[str]], list[Node]]:
    """Return the labels of both operands and of the result, and the operands."""
    equation, *nodes = call.args
    if len(nodes) == 1 and isinstance(nodes[0], tuple | list):
        nodes = [*nodes[0]]
    if not isinstance(equation, str) or len(nodes) != 2 or "->" not in equation or call.kwargs:
        raise NotFusible
    inputs, result = equation.replace(" ", "").split("->")
    parts = inputs.split(",")
    ranks = [len(spec_of(node).shape) for node in nodes]
    first, second = (_labels(part, rank) for part, rank in zip(parts, ranks, strict=True))
    made = _labels(result, len(spec_of(call.node).shape))
    if any(len(some) != len(set(some)) for some in (first, second, made)) or len(made) < 2:
        raise NotFusible
    return (first, second, made), nodes


def _labels(part: str, rank: int) -> list[str]:
    """Return a label for each dimension; those of an ellipsis are counted from its end."""
    before, dots, after = part.partition("...")
    more = rank - len(before) - len(after) if dots else 0
    return [*before, *(f"...{n}" for n in range(more, 0, -1)), *after]


def _contracted(labels: tuple[list[str], list[str], list[str]]) -> str:
    first, second, made = labels
    common = [label for label in first if label in second and label not in made]
    if len(common) != 1:
        raise NotFusible
    return common[0]


def _check_sums(labels: tuple[list[str], list[str], list[str]], feature: str) -> None:
    """Refuse sums over a dimension of one operand."""
    if {*labels[0], *labels[1]} - {*labels[2], feature}:
        raise NotFusible


def _taken(node: Node, labels: list[str], wanted: tuple[str, ...]) -> Operand:
    return Operand(node, tuple(labels.index(w) if w in labels else None for w in wanted))


def _of_einsum(
    labels: tuple[list[str], list[str], list[str]], nodes: list[Node], place: int
) -> ValueProduct | None:
    probabilities, value, made = labels[place], labels[1 - place], labels[2]
    column = _contracted(labels)
    _check_sums(labels, column)
    if len(probabilities) < 2 or column not in probabilities[-2:]:
        return None
    *batch, row, last = probabilities
    is_transposed = last != column
    if is_transposed:
        row = last
    features = [label for label in made if label not in probabilities]
    if row in value or len(features) != 1:
        return None
    order = tuple([*batch, row, *features].index(label) for label in made)
    taken = _taken(nodes[1 - place], value, (*batch, column, *features))
    return ValueProduct(nodes[place], is_transposed, taken, order)
