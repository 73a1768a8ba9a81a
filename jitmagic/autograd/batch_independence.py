"""Proves that each row of a batch is computed from that row alone, so that rows may be added.

In: an ATen forward graph whose batch size is a symbol. Out: None, or the sentence that says which
operation may mix rows or reads the batch size. A tensor carries the batch if one of its dimensions
is the symbol, or the symbol times a number: rows of the batch, each a block of that many. Every
operation on such tensors needs a row in the table below; what is not listed is refused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ..graph.symbolic.sym_node import sizes_in
from ..lazy_dataclass import dataclass
from ..operators.operation import is_elementwise
from ..spec import TensorSpec
from ..symbols.expr import Expr, linear
from ..symbols.size import Dimension, Size
from ..symbols.symbolic_numbers import Symbol, symbols_of
from ..torch_types import OpOverload
from .nodes import alias_root, flat_outputs

__all__ = ["batch_dims", "mixed_rows"]


@dataclass(frozen=True, slots=True)
class _Batch:
    """Names the dimension of a tensor that has the batch, and how many of its elements are one
    row.
    """

    dim: int
    inner: int


class _Mixed(Exception):
    """Raised for a shape in which the batch is no dimension of its own."""


def mixed_rows(gm: GraphModule, symbol: Symbol) -> str | None:
    """Return why rows may depend on each other or on their number, or None if they do not."""
    for node in gm.graph.find_nodes(op="placeholder"):
        if _has(node.meta["spec"], symbol) and _batch(node.meta["spec"], symbol) != _Batch(0, 1):
            return f"the batch is not the first dimension of {node}"
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target is not operator.getitem:
            try:
                refusal = _refusal(node, symbol)
            except _Mixed:
                refusal = "gives a result in which rows are no dimension of their own"
            if refusal is not None:
                return f"{_name(node)} {refusal}"
    for result in flat_outputs(gm):
        if result is not None and alias_root(result).op == "placeholder":
            return f"the result {result} is a view of an argument"
    return None


def batch_dims(gm: GraphModule, symbol: Symbol) -> tuple[int | None, ...]:
    """Return the dimension of each result that has the batch; None for the others."""
    results = (node for node in flat_outputs(gm) if node is not None)
    found = (_batch(node.meta["spec"], symbol) for node in results)
    return tuple(None if one is None else one.dim for one in found)


def _refusal(node: Node, symbol: Symbol) -> str | None:
    parts = {one: _batch(one.meta["spec"], symbol) for one in node.all_input_nodes
             if isinstance(one.meta.get("spec"), TensorSpec)}  # fmt: skip
    carried = {one: found for one, found in parts.items() if found is not None}
    reads_size = any(symbol in symbols_of(size.expr) for size in _sizes(node))
    results = [_batch(spec, symbol) for spec in _used_results(node)]
    if not carried and not reads_size and not any(results):
        return None
    if not isinstance(node.target, OpOverload) or node.target._schema.is_mutable:
        return "writes to memory, or is no ATen operation"
    if _draws(node, node.target):
        return "draws random numbers, whose order depends on the number of rows"
    name = _name(node)
    if reads_size and name not in _SIZED:
        return "reads the batch size"
    if not all(results):
        return "combines rows"
    rule = _RULES.get(name, _elementwise if is_elementwise(name) else None)
    if rule is None:
        return "is not known to treat rows separately"
    for result in results:
        assert result is not None
        if not rule(node, carried, result):
            return "may combine rows"
    return None


def _draws(node: Node, op: OpOverload) -> bool:
    """Return whether the call draws random numbers; attention does only with dropout."""
    if torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    names = [argument.name for argument in op._schema.arguments]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    return "dropout_p" not in names or bool(given.get("dropout_p", 0.0))


def _name(node: Node) -> str:
    packet = getattr(node.target, "overloadpacket", node.target)
    return str(getattr(packet, "__name__", packet))


def _sizes(node: Node) -> Iterator[Size]:
    return sizes_in((node.args, node.kwargs))


def _used_results(node: Node) -> list[TensorSpec]:
    spec = node.meta.get("spec")
    if isinstance(spec, TensorSpec):
        return [spec]
    read = [user.args[1] for user in node.users if user.target is operator.getitem]
    return [spec[n] for n in read if isinstance(spec[n], TensorSpec)] if spec else []


def _has(spec: TensorSpec, symbol: Symbol) -> bool:
    return any(isinstance(n, Size) and symbol in symbols_of(n.expr) for n in spec.shape)


def _batch(spec: TensorSpec, symbol: Symbol) -> _Batch | None:
    """Return where a tensor has the batch, or None. Raises _Mixed."""
    found: list[_Batch] = []
    for dim, size in enumerate(spec.shape):
        if isinstance(size, Size) and symbol in symbols_of(size.expr):
            found.append(_Batch(dim, _multiple(size.expr, symbol)))
    if len(found) > 1:
        raise _Mixed
    return found[0] if found else None


def _multiple(expr: Expr, symbol: Symbol) -> int:
    constant, terms = linear(expr)
    if constant or set(terms) != {symbol}:
        raise _Mixed
    return terms[symbol]


# -- rules: (call, where its operands have the batch, where the result has it) -> rows stay apart --

Carried = Mapping[Node, _Batch]
Rule = Callable[[Node, Carried, _Batch], bool]


def _rank(node: Node) -> int:
    return len(node.meta["spec"].shape)


def _elementwise(node: Node, carried: Carried, result: _Batch) -> bool:
    """Operands broadcast from the right."""
    spec = node.meta["spec"]
    rank = len((spec if isinstance(spec, TensorSpec) else spec[0]).shape)
    return all(
        found.dim + rank - _rank(one) == result.dim and found.inner == result.inner
        for one, found in carried.items()
    )


def _keeps_blocks(node: Node, carried: Carried, result: _Batch) -> bool:
    """Other dimensions are moved, cut, joined or reduced: rows stay blocks of as many elements."""
    return all(found.inner == result.inner for found in carried.values())


def _reshaped(node: Node, carried: Carried, result: _Batch) -> bool:
    """The product of the dimensions before the batch's stays the same."""
    before: Dimension = prod(node.meta["spec"].shape[: result.dim])
    return all(
        prod(one.meta["spec"].shape[: found.dim]) == before for one, found in carried.items()
    )


def _along(position: int) -> Rule:
    """Return the rule for operations along one dimension, the argument at `position`."""

    def rule(node: Node, carried: Carried, result: _Batch) -> bool:
        if node.args[0] not in carried or position >= len(node.args):
            return False
        dim: Any = node.args[position]
        dims = dim if isinstance(dim, list | tuple) else [dim]
        return all(
            found == result and all(d % _rank(one) != found.dim for d in dims)
            for one, found in carried.items()
        )

    return rule


def _product(first: int) -> Rule:
    """Return the rule for a product of matrices, whose operands begin at argument `first`."""

    def rule(node: Node, carried: Carried, result: _Batch) -> bool:
        *others, a, b = node.args[: first + 2]
        left, right = carried.get(a), carried.get(b)  # type: ignore[arg-type]
        rank = _rank(node)
        if result.dim == rank - 2:
            fits = left == result and right is None
        elif result.dim == rank - 1:
            fits = right == result and left is None
        else:
            fits = left == right == result
        return fits and _elementwise(node, {o: carried[o] for o in others if o in carried}, result)  # type: ignore[index, misc]

    return rule


def _by_sample(node: Node, carried: Carried, result: _Batch) -> bool:
    """The first operand is a batch of samples in its first dimension, the others are weights."""
    return set(carried) <= {node.args[0]} and _all_first(node, carried, result)


def _all_first(node: Node, carried: Carried, result: _Batch) -> bool:
    return result == _Batch(0, 1) and all(found == result for found in carried.values())


def _normalised(node: Node, carried: Carried, result: _Batch) -> bool:
    """The last dimensions, as many as the argument has, are normalised together."""
    normalised: Any = node.args[1]
    (found,) = carried.values()
    return found.dim < _rank(node.args[0]) - len(normalised)  # type: ignore[arg-type]


def _looked_up(node: Node, carried: Carried, result: _Batch) -> bool:
    return set(carried) == {node.args[1]} and all(found == result for found in carried.values())


def _counted(node: Node, carried: Carried, result: _Batch) -> bool:
    """New tensors of one value, or of the position in the batch."""
    return not carried


def _rows(rule: Rule, names: str) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


_RULES: Mapping[str, Rule] = {
    **_rows(_reshaped, "view _unsafe_view reshape _reshape_alias"),
    **_rows(
        _keeps_blocks,
        "permute transpose t unsqueeze squeeze alias detach clone _to_copy expand slice select cat "
        "stack split split_with_sizes unbind constant_pad_nd sum mean amax amin prod var var_mean "
        "std any all logsumexp argmax argmin max min",
    ),
    **_rows(_along(1), "_softmax _log_softmax softmax log_softmax cumsum cumprod flip gather"),
    **_rows(_product(0), "mm bmm"),
    **_rows(_product(1), "addmm baddbmm"),
    **_rows(
        _by_sample,
        "convolution max_pool2d_with_indices avg_pool2d _adaptive_avg_pool2d pixel_shuffle "
        "upsample_nearest2d upsample_bilinear2d native_group_norm _transformer_encoder_layer_fwd",
    ),
    **_rows(
        _all_first,
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention",
    ),
    **_rows(_normalised, "native_layer_norm"),
    **_rows(_looked_up, "embedding"),
    **_rows(_counted, "full zeros ones"),
}
# Operations that take the batch size as part of a shape.
_SIZED = frozenset(
    "view _unsafe_view reshape _reshape_alias expand full zeros ones native_group_norm".split()
)
