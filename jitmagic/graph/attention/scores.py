"""Reads the steps between the product of query and key and the softmax over it.

In: the argument of a softmax. Out: `Scores`: the operands, and the steps in the program's order. A
step is an addition of a tensor, a product with a factor, or a fill where a mask says so. Steps that
only round or reshape are no steps of the result; each step has the batch dimensions at its place.
Rules are found by the name of the call, and return the part that leads on to the product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch.fx import Node

from ...symbols.size import Dimension
from .products import Operand, score_product
from .reading import Call, NotFusible, Program, all_same, spec_of

__all__ = [
    "Add",
    "Batch",
    "Fill",
    "Scale",
    "Scores",
    "Step",
    "number_in",
    "passes_through",
    "scores_of",
]

Batch = tuple[Dimension, ...]
_MOST_STEPS = 24


class Scale(NamedTuple):
    """scores * factor, or scores / factor."""

    factor: float | Node
    divides: bool
    batch: Batch
    reader: Node


class Add(NamedTuple):
    """scores + sign * term."""

    term: Node
    sign: float
    batch: Batch
    reader: Node


class Fill(NamedTuple):
    """The value in place of scores where the mask is true, or where it is false (`keeps`)."""

    mask: Node
    keeps: bool
    value: float
    batch: Batch
    reader: Node


Step = Scale | Add | Fill


class Scores(NamedTuple):
    """The scores of attention. `nodes`: those that the fused call replaces, the product first."""

    query: Operand
    key: Operand
    batch: Batch  # at the product
    steps: tuple[Step, ...]
    nodes: tuple[Node, ...]


class _Way(NamedTuple):
    """One way from a call towards the product: the node to read next, and the steps after it."""

    node: Node
    steps: tuple[Step, ...] = ()


def scores_of(program: Program, node: Node, reader: Node, left: int = _MOST_STEPS) -> Scores:
    """Return what `reader` reads in a node. Raises NotFusible if it is no product's."""
    call = program.call(node, reader)
    if (operands := score_product(call)) is not None:
        steps = tuple(_of_baddbmm(call)) if call.name == "baddbmm" else ()
        return Scores(*operands, _batch(call.node), steps, (call.node,))
    if (rule := _RULES.get(call.name)) is None or not left:
        raise NotFusible
    why = NotFusible()
    for way in rule(program, call):
        try:
            found = scores_of(program, way.node, call.node, left - 1)
        except NotFusible as error:
            why = error if str(error) else why
            continue
        if way.steps and not _is_whole(way.node, call.node):
            raise NotFusible("the scores are broadcast")
        steps = (*found.steps, *way.steps)
        return found._replace(steps=steps, nodes=(*found.nodes, call.node))
    raise why


def _batch(node: Node) -> Batch:
    return spec_of(node).shape[:-2]


def _is_whole(node: Node, made: Node) -> bool:
    return all_same(spec_of(node).shape, spec_of(made).shape)


def number_in(value: object) -> float | None:
    """Return a Python number among the arguments of a call."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _of_baddbmm(call: Call) -> Iterator[Step]:
    term, _, _, beta, alpha = call.given("input", "batch1", "batch2", "beta", "alpha")
    numbers = [1.0 if value is None else number_in(value) for value in (beta, alpha)]
    if numbers[0] is None or numbers[1] is None:
        raise NotFusible
    yield Scale(numbers[1], False, _batch(call.node), call.node)
    if numbers[0]:
        yield Add(term, numbers[0], _batch(call.node), call.node)


# -- rules -----------------------------------------------------------------------------------------


def _mul(program: Program, call: Call) -> Iterator[_Way]:
    left, right = call.given("input", "other")
    for scores, factor in ((left, right), (right, left)):
        if isinstance(scores, Node) and (known := _factor(factor)) is not None:
            yield _Way(scores, (Scale(known, False, _batch(call.node), call.node),))


def _div(program: Program, call: Call) -> Iterator[_Way]:
    scores, divisor = call.given("input", "other")
    if isinstance(scores, Node) and (known := _factor(divisor)) is not None:
        yield _Way(scores, (Scale(known, True, _batch(call.node), call.node),))


def _factor(value: object) -> float | Node | None:
    """Return a factor that is the same for a whole row of scores."""
    if not isinstance(value, Node):
        return number_in(value)
    spec = value.meta.get("spec")
    if spec is None or not spec.dtype.is_floating_point:
        return None
    return (
        value if not spec.shape or (type(spec.shape[-1]) is int and spec.shape[-1] == 1) else None
    )


def _add(program: Program, call: Call) -> Iterator[_Way]:
    left, right, alpha = call.given("input", "other", "alpha")
    weight = 1.0 if alpha is None else number_in(alpha)
    if weight is None:
        return
    negative = call.name == "sub"
    if isinstance(left, Node) and isinstance(right, Node):
        sign = -weight if negative else weight
        yield _Way(left, (Add(right, sign, _batch(call.node), call.node),))
        if weight == 1 and not negative:
            yield _Way(right, (Add(left, 1.0, _batch(call.node), call.node),))


def _masked_fill(program: Program, call: Call) -> Iterator[_Way]:
    scores, mask, value = call.given("input", "mask", "value")
    if isinstance(scores, Node) and (number := _value(program, value)) is not None:
        yield _Way(scores, (Fill(mask, False, number, _batch(call.node), call.node),))


def _where(program: Program, call: Call) -> Iterator[_Way]:
    mask, yes, no = call.given("condition", "input", "other")
    for scores, value, keeps in ((yes, no, True), (no, yes, False)):
        number = _value(program, value)
        if isinstance(scores, Node) and number is not None and not _is_scalar(scores):
            yield _Way(scores, (Fill(mask, keeps, number, _batch(call.node), call.node),))


def _is_scalar(node: Node) -> bool:
    return not spec_of(node).shape


def _value(program: Program, value: object) -> float | None:
    """Return the number that a mask puts in place of scores, also as a 0-dim tensor."""
    if not isinstance(value, Node):
        return number_in(value)
    if not _is_scalar(value) or program.to(value):
        return None
    if value.op == "call_function" and value.target in (torch.full, torch.tensor):
        number = number_in(value.args[-1])
        dtype = spec_of(value).dtype
        if number is None or not dtype.is_floating_point:
            return None
        return float(torch.tensor(number, dtype=dtype))
    return _value(program, value.args[0]) if value.target == "to" else None


def _round(program: Program, call: Call) -> Iterator[_Way]:
    if isinstance(source := call.args[0], Node):
        if spec_of(source).device != spec_of(call.node).device:
            raise NotFusible
        yield _Way(source)


def _reshape(program: Program, call: Call) -> Iterator[_Way]:
    """Read calls that only divide or join batch dimensions."""
    if isinstance(source := call.args[0], Node):
        shapes = spec_of(source).shape, spec_of(call.node).shape
        if min(map(len, shapes)) < 2 or not all_same(shapes[0][-2:], shapes[1][-2:]):
            raise NotFusible
        yield _Way(source)


def passes_through(call: Call) -> Callable[[Program, Call], Iterator[_Way]] | None:
    """Return the rule of a call that leaves elements as they are, rounding apart."""
    return _PLAIN.get(call.name)


_Rule = Callable[[Program, Call], Iterator[_Way]]
_PLAIN: Mapping[str, _Rule] = {
    **dict.fromkeys(("to", "float", "half", "bfloat16", "double", "type", "type_as"), _round),
    **dict.fromkeys(("contiguous", "clone"), _round),
    **dict.fromkeys(("view", "reshape", "unsqueeze", "squeeze", "flatten"), _reshape),
}
_RULES: Mapping[str, _Rule] = {
    **_PLAIN,
    **dict.fromkeys(("mul", "multiply"), _mul),
    **dict.fromkeys(("div", "divide", "truediv", "true_divide"), _div),
    **dict.fromkeys(("add", "sub"), _add),
    "masked_fill": _masked_fill,
    "where": _where,
}
