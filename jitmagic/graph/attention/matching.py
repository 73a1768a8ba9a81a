"""Finds attention that a program writes out: softmax(query @ key^T ..., -1) @ value.

In: a product of the graph. Out: an `Attention`, or NotFusible with the reason why it stays as it is
written. Nothing else may read scores or probabilities, nothing may write to an operand in between,
and all calls run in the same modes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.fx import Node

from ..memory import memory_of
from ..node_meta import lines_of
from ..operators.target_traits import makes_new
from .products import Operand, Order, ValueProduct, value_product
from .reading import Call, NotFusible, Program, all_same, spec_of
from .scores import Batch, Fill, Scale, Scores, number_in, passes_through, scores_of

__all__ = ["DROPOUT", "Attention", "attention_at"]

DROPOUT = "dropout draws other random numbers in a fused kernel"

_MOST_STEPS = 16
_WIDE = torch.float64
_DROPOUTS = ("dropout", "alpha_dropout", "feature_dropout")
# Of nodes on which more than their value depends.
_HIDDEN = frozenset({"hooked", "freed", "expects", "speculated", "enters", "data_dependent"})


class Attention(NamedTuple):
    """One attention. `nodes`: those to replace, in order; the last one is the product."""

    query: Operand  # (batch ..., row, feature)
    key: Operand  # (batch ..., column, feature)
    value: Operand  # (batch ..., column, feature)
    scores: Scores
    batches: tuple[Batch, Batch]  # at the softmax, and at the product with the value
    order: Order
    dropout: float
    nodes: tuple[Node, ...]

    @property
    def product(self) -> Node:
        return self.nodes[-1]

    @property
    def line(self) -> int:
        lines = lines_of(self.product)
        return lines[0].lineno if lines else 0

    @property
    def dtype(self) -> torch.dtype:
        return spec_of(self.product).dtype


class _Probabilities(NamedTuple):
    softmax: Call
    nodes: tuple[Node, ...]  # from the softmax on
    dropout: float = 0.0


def attention_at(program: Program, node: Node) -> Attention:
    """Return the attention that ends with a product. Raises NotFusible if there is none."""
    for one in value_product(program.call(node, node)):
        probabilities = _probabilities(program, one, node)
        if probabilities is not None:
            return _checked(program, _assembled(program, one, probabilities, node))
    raise NotFusible


# -- probabilities ---------------------------------------------------------------------------------


def _probabilities(program: Program, product: ValueProduct, reader: Node) -> _Probabilities | None:
    """Return the softmax that a product reads, through calls that only round or reshape."""
    node, is_transposed = product.probabilities, product.is_transposed
    after: list[Call] = []
    try:
        while (call := program.call(node, reader)).name != "softmax":
            passed = _passed(program, call)
            if passed is None or len(after) > _MOST_STEPS:
                return None
            after.append(call)
            is_transposed ^= passed.swaps
            node, reader = passed.node, call.node
    except NotFusible:
        return None
    if is_transposed:
        return None
    dropout = sum(map(_dropout, after))
    nodes = (call.node, *(one.node for one in reversed(after)))
    return _Probabilities(call, nodes, dropout)


class _Passed(NamedTuple):
    node: Node
    swaps: bool = False


def _passed(program: Program, call: Call) -> _Passed | None:
    """Return what a call reads, if it leaves probabilities as they are."""
    if call.name in ("transpose", "permute", "swapaxes", "adjoint", *_DROPOUTS):
        source = call.args[0]
        return _Passed(source, call.name not in _DROPOUTS and _swaps_last(call))
    rule = passes_through(call)
    ways = [] if rule is None else [*rule(program, call)]
    return _Passed(ways[0].node) if ways else None


def _dropout(call: Call) -> float:
    """Return the probability that a call drops an element with."""
    if call.name not in _DROPOUTS:
        return 0.0
    _, p, training, _ = call.given("input", "p", "training", "inplace")
    if call.name == "dropout" and (training is False or training == 0):
        return 0.0
    chance = number_in(0.5 if p is None else p)
    if chance is None or call.name != "dropout":
        raise NotFusible(DROPOUT)
    return chance


def _swaps_last(call: Call) -> bool:
    """Return whether a call swaps the last two dimensions, or none; it must do one of both."""
    rank = len(spec_of(call.node).shape)
    order = [*range(rank)]
    if call.name == "permute":
        dims = call.args[1] if isinstance(call.args[1], tuple | list) else call.args[1:]
        order = [dim % rank for dim in dims]
    elif call.name == "adjoint":
        order = [*order[:-2], order[-1], order[-2]]
    else:
        one, other = (dim % rank for dim in call.args[1:3])
        order[one], order[other] = order[other], order[one]
    if order == [*range(rank)]:
        return False
    if order != [*range(rank - 2), rank - 1, rank - 2]:
        raise NotFusible("the probabilities are permuted")
    return True


# -- the whole -------------------------------------------------------------------------------------


def _assembled(
    program: Program, product: ValueProduct, found: _Probabilities, node: Node
) -> Attention:
    softmax = found.softmax
    source, dim = softmax.given("input", "dim", "dtype", "_stacklevel")[:2]
    if dim not in (-1, len(spec_of(source).shape) - 1):
        raise (
            NotFusible if dim is None else NotFusible("its softmax is not over the last dimension")
        )
    scores = scores_of(program, source, softmax.node)
    batches = spec_of(softmax.node).shape[:-2], _batch_of_product(product, node)
    chain = dict.fromkeys((*scores.nodes, *found.nodes))
    nodes = (*chain, *_idle_readers(chain), node)
    return Attention(
        scores.query,
        scores.key,
        product.value,
        scores,
        batches,
        product.order,
        found.dropout,
        nodes,
    )


def _idle_readers(nodes: Collection[Node]) -> Iterator[Node]:
    """Yield dropouts that drop nothing and that nothing reads: the tracer passes them by."""
    for user in dict.fromkeys(user for node in nodes for user in node.users):
        if not user.users and user.target is F.dropout and user not in nodes:
            call = Call("dropout", user, user.args, user.kwargs)
            if not _dropout(call):
                yield user


def _batch_of_product(product: ValueProduct, node: Node) -> Batch:
    shape = spec_of(node).shape
    return tuple(shape[product.order.index(n)] for n in range(len(shape) - 2))


def _checked(program: Program, found: Attention) -> Attention:
    for check in (_check_readers, _check_modes, _check_writes, _check_dtypes, _check_sizes):
        check(program, found)
    return found


def _check_readers(program: Program, found: Attention) -> None:
    own = {*found.nodes}
    for node in found.nodes[:-1]:
        others = [user for user in node.users if user not in own and not _takes_shape(user)]
        if others or program.shown & memory_of(node):
            raise NotFusible("scores or probabilities are used elsewhere")


def _takes_shape(user: Node) -> bool:
    """Return whether a call makes a tensor that has the shape alone of its argument."""
    return user.op in ("call_function", "call_method") and makes_new(user.target)


def _check_modes(program: Program, found: Attention) -> None:
    first = found.product
    for node in found.nodes:
        if program.mode[node] != program.mode[first]:
            raise NotFusible("autocast or the grad mode changes inside")
        if node.meta.get("checkpoint") is not first.meta.get("checkpoint"):
            raise NotFusible("a checkpointed region ends inside")
        if any(key in _HIDDEN and value for key, value in node.meta.items()):
            raise NotFusible("hooks or a backward are part of it")


def _operands(found: Attention) -> Iterator[tuple[Node, Node]]:
    """Yield the nodes that the fused call reads, and what reads them now."""
    first = found.scores.nodes[0]
    yield found.query.node, first
    yield found.key.node, first
    yield found.value.node, found.product
    for step in found.scores.steps:
        node = step.factor if isinstance(step, Scale) else None
        node = step.mask if isinstance(step, Fill) else node or getattr(step, "term", None)
        if isinstance(node, Node):
            yield node, step.reader


def _check_writes(program: Program, found: Attention) -> None:
    for node, reader in _operands(found):
        if program.writes_between(node, reader, found.product):
            raise NotFusible("an operand is written to before the product with the value")


def _check_dtypes(program: Program, found: Attention) -> None:
    dtype = found.dtype
    if not dtype.is_floating_point:
        raise NotFusible("its numbers are complex or integers")
    if spec_of(found.scores.nodes[0]).dtype is not dtype:
        raise NotFusible("its products have different dtypes")
    if dtype is not _WIDE and any(spec_of(node).dtype is _WIDE for node in found.nodes):
        raise NotFusible("its softmax is computed in float64")


def _check_sizes(program: Program, found: Attention) -> None:
    rows, columns = spec_of(found.scores.nodes[0]).shape[-2:]
    same: Iterable[bool] = (
        all_same((rows,), (found.query.shape[-2],)),
        all_same((columns,), (found.key.shape[-2],)),
        all_same((columns,), (found.value.shape[-2],)),
    )
    if not all(same):
        raise NotFusible("its sizes are broadcast")
