"""Operators of flex_attention: attention whose scores a function changes and another masks.

A `Form` holds all that is known when a call is traced: the two functions as graphs over five
tensors (score, batch, head, query, key), the scale, and the block structure of the mask. Operators
take the number of a form, so that any number of forms share four overloads:

    flex_attention                    -> output, log of the sum of exponentials (natural, float32)
    flex_attention_query_gradient     -> gradient of the query
    flex_attention_key_gradients      -> gradients of key and value
    flex_attention_bias_gradient      -> gradient of the bias that a function adds (`Form.bias`)

Here they are written as plain torch operations, which make the whole score matrix: that is what
runs where no kernel is generated (codegen/attention.py), and what autograd differentiates. The
functions were traced on tensors with one element, and run on tensors whose axes are batch, head,
query and key.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...compat.modes import above_autograd
from ...lazy_dataclass import dataclass
from ..operators.operator_library import LIBRARY, PURE, is_registered
from .control_flow import Body

__all__ = [
    "BIAS_GRADIENT",
    "FLEX_ATTENTION",
    "FLEX_OPERATORS",
    "KEY_GRADIENTS",
    "QUERY_GRADIENT",
    "Form",
    "attend",
    "form_of",
    "number_of",
    "working_dtype",
]


@dataclass(frozen=True, eq=False)
class Form:
    """Describes a call but for its tensors. `blocks`: the number of block tensors, which are
    (kv_num_blocks, kv_indices, q_num_blocks, q_indices), then the same four of full blocks.
    `bias`: the captured tensor that the score function adds to the score, with the gradient of the
    score; it has all queries and keys, and all or one of the batches and heads. None: no captured
    tensor has a gradient.
    """

    score: Body | None
    mask: Body | None
    scale: float
    blocks: int = 0
    block_size: tuple[int, int] = (0, 0)
    bias: int | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """A key that equal forms share."""
        bodies = tuple(map(_body_key, (self.score, self.mask)))
        return bodies, self.scale, self.blocks, self.block_size, self.bias


def _body_key(body: Body | None) -> object:
    if body is None:
        return None
    if not hasattr(body.graph, "graph"):  # a function of a script
        return id(body)
    nodes = body.graph.graph.nodes
    if any(node.op == "get_attr" for node in nodes):
        return id(body)
    number = {node: n for n, node in enumerate(nodes)}

    def named(value: object) -> object:
        if isinstance(value, torch.fx.Node):
            return "node", number[value]
        if isinstance(value, tuple | list):
            return type(value), tuple(map(named, value))
        if isinstance(value, dict):
            return tuple((key, named(part)) for key, part in value.items())
        return type(value), repr(value)

    calls = tuple((n.op, n.target, named(n.args), named(n.kwargs)) for n in nodes)
    return calls, body.feeds, body.returns


_NUMBERS: dict[tuple[object, ...], int] = {}
_FORMS: list[Form] = []


def number_of(form: Form) -> int:
    """Return the number of a form; equal forms share one."""
    number = _NUMBERS.setdefault(form.key, len(_FORMS))
    if number == len(_FORMS):
        _FORMS.append(form)
    return number


def form_of(number: int) -> Form:
    return _FORMS[number]


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of scores."""
    return torch.float64 if dtype is torch.float64 else torch.float32


# -- plain torch operations ------------------------------------------------------------------------


def attend(
    form: Form, query: Tensor, key: Tensor, value: Tensor, captured: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return output and logsumexp by operations of torch, in the order of its own formula."""
    keys, values = (_spread(query, each) for each in (key, value))
    scores = _masked_scores(form, query, keys, captured)
    lse = scores.logsumexp(-1)
    shares = torch.ops.aten._safe_softmax.default(scores, -1)
    made = torch.matmul(shares.to(query.dtype), values.to(query.dtype))
    return _in_order_of(query, made), lse


def _spread(query: Tensor, each: Tensor) -> Tensor:
    """Return keys or values with one head for each of the queries', and their batch."""
    groups = query.shape[1] // each.shape[1]
    made = each if groups == 1 else each.repeat_interleave(groups, 1)
    return made.expand(query.shape[0], *made.shape[1:])


def _masked_scores(form: Form, query: Tensor, keys: Tensor, captured: Sequence[Tensor]) -> Tensor:
    wide = working_dtype(query.dtype)
    scores = (query.to(wide) @ keys.to(wide).transpose(-2, -1)) * form.scale
    axes = [
        torch.arange(size, device=query.device).view(*(-1 if n == axis else 1 for n in range(4)))
        for axis, size in enumerate(scores.shape)
    ]
    changed = scores if form.score is None else form.score((scores, *axes), captured)[0]
    if form.mask is not None:
        kept = form.mask((scores, *axes), captured)[0]
        nothing = torch.full((), -math.inf, dtype=wide, device=query.device)
        changed = torch.where(kept, changed, nothing)
    return changed.broadcast_to(scores.shape)


def _in_order_of(query: Tensor, made: Tensor) -> Tensor:
    """Give the result the order of axes that the query has in memory, as torch does."""
    order = memory_order(query)
    if order == [0, 1, 2, 3]:
        return made
    back = [order.index(axis) for axis in range(4)]
    return made.permute(order).contiguous().permute(back)


def memory_order(query: Tensor) -> list[int]:
    """Return the axes of the output from the widest stride to the narrowest, the last one last."""
    return [*sorted(range(3), key=query.stride, reverse=True), 3]


def _differentiated(
    form: Form,
    tensors: Sequence[Tensor],
    tangents: tuple[Tensor, Tensor],
    captured: Sequence[Tensor],
) -> Sequence[Tensor]:
    """Return the gradients of query, key, value and the bias, which may be differentiated again."""
    again = torch.is_grad_enabled()
    biases = [] if form.bias is None else [captured[form.bias]]
    with above_autograd(), torch.enable_grad():  # a backward that runs is below autograd
        given = [
            one.view_as(one) if again and one.requires_grad else one.detach().requires_grad_()
            for one in (*tensors, *biases)
        ]
        query, key, value, *biases = given
        taken = [*captured]
        if form.bias is not None:
            (taken[form.bias],) = biases
        results = attend(form, query, key, value, taken)
        return torch.autograd.grad(results, given, tangents, create_graph=again)


# -- operators -------------------------------------------------------------------------------------

_GIVEN = (
    "Tensor query, Tensor key, Tensor value, Tensor[] blocks, Tensor[] captured, "
    "int[] block_size, float scale, int form"
)
_SCHEMAS = {
    "flex_attention": f"({_GIVEN}) -> (Tensor, Tensor)",
    "flex_attention_query_gradient": f"(Tensor grad, Tensor lse, Tensor delta, {_GIVEN}) -> Tensor",
    "flex_attention_key_gradients": (
        f"(Tensor grad, Tensor lse, Tensor delta, {_GIVEN}) -> (Tensor, Tensor)"
    ),
    "flex_attention_bias_gradient": f"(Tensor grad, Tensor lse, Tensor delta, {_GIVEN}) -> Tensor",
}


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    blocks: Any,
    captured: Any,
    block_size: Any,
    scale: float,
    form: int,
) -> tuple[Tensor, Tensor]:
    if query.is_meta:
        return empty_results(query, value)
    return attend(form_of(form), query, key, value, captured)


def empty_results(query: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return output and logsumexp without values."""
    order = memory_order(query)
    shape = [*query.shape[:3], value.shape[3]]
    out = query.new_empty([shape[axis] for axis in order])
    out = out.permute([order.index(axis) for axis in range(4)])
    return out, query.new_empty(query.shape[:3], dtype=working_dtype(query.dtype))


def _query_gradient(grad: Tensor, lse: Tensor, delta: Tensor, query: Tensor, *rest: Any) -> Tensor:
    if query.is_meta:
        return torch.empty_like(query, memory_format=torch.contiguous_format)
    return _gradients(grad, delta, query, *rest)[0].contiguous()


def _key_gradients(
    grad: Tensor, lse: Tensor, delta: Tensor, query: Tensor, key: Tensor, value: Tensor, *rest: Any
) -> tuple[Tensor, Tensor]:
    if query.is_meta:
        plain = torch.contiguous_format
        return tuple(torch.empty_like(x, memory_format=plain) for x in (key, value))  # type: ignore[return-value]
    _, of_key, of_value, *_ = _gradients(grad, delta, query, key, value, *rest)
    return of_key.contiguous(), of_value.contiguous()


def _bias_gradient(grad: Tensor, lse: Tensor, delta: Tensor, *rest: Any) -> Tensor:
    query, captured, known = rest[0], rest[4], form_of(rest[-1])
    assert known.bias is not None
    if query.is_meta:
        return torch.empty_like(captured[known.bias], memory_format=torch.contiguous_format)
    return _gradients(grad, delta, *rest)[-1].contiguous()


def _gradients(
    grad: Tensor,
    delta: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    blocks: Any,
    captured: Any,
    block_size: Any,
    scale: float,
    form: int,
) -> Sequence[Tensor]:
    """Differentiate the formula. `delta` is the product of output and its gradient, summed, less
    the gradient of logsumexp.
    """
    known = form_of(form)
    with torch.no_grad():
        out, _ = attend(known, query, key, value, captured)
    lse_grad = (out.to(delta.dtype) * grad.to(delta.dtype)).sum(-1) - delta
    return _differentiated(known, (query, key, value), (grad, lse_grad), captured)


_RUN = {
    "flex_attention": _forward,
    "flex_attention_query_gradient": _query_gradient,
    "flex_attention_key_gradients": _key_gradients,
    "flex_attention_bias_gradient": _bias_gradient,
}
for _name, _schema in _SCHEMAS.items():
    if not is_registered(_name):  # it stays registered if jitmagic is imported again
        LIBRARY.define(f"{_name}{_schema}")
        LIBRARY.impl(_name, _RUN[_name], "CompositeImplicitAutograd")
FLEX_ATTENTION: Any = torch.ops.jitmagic.flex_attention.default
QUERY_GRADIENT: Any = torch.ops.jitmagic.flex_attention_query_gradient.default
KEY_GRADIENTS: Any = torch.ops.jitmagic.flex_attention_key_gradients.default
BIAS_GRADIENT: Any = torch.ops.jitmagic.flex_attention_bias_gradient.default
FLEX_OPERATORS = frozenset({FLEX_ATTENTION, QUERY_GRADIENT, KEY_GRADIENTS, BIAS_GRADIENT})
PURE.update(FLEX_OPERATORS)
