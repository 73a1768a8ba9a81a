"""Writes a call of fused attention in the place of attention that is written out.

In: a copy of the graph, and an `Attention` of the original. Out: the call's node. Operands take
four dimensions, (batch, head, position, feature). Factors become the scale, or part of the query;
biases and fills become one mask; a result is laid out as eager's. Where torch's kernels do not
compute a bias as eager does (`Bias.refusal`), the call is one of flex_attention, whose score
function adds it: kernels for it are generated.

Rows without a column to attend to are NaN in eager if scores are filled with -inf, and the mean of
all values if they are filled with a finite number. Kernels differ there, so unless the mask is
known to have no such row, it keeps all columns of one. The result is then replaced by NaN, or the
row of the query by zero, which weighs all columns alike.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node
from torch.nn.attention import SDPBackend

from ...devices import AttentionFacts, row_of
from ...spec import contiguous_strides
from ...symbols.size import Dimension, Size, hint_of, is_same
from ..lazy_module import add_node
from ..memory import memory_of
from ..node_meta import lines_of, lines_of_call
from ..targets.attention_kernels import KernelChoice, WithKernels
from ..targets.flex_attention import FlexAttention, may_be_tiled
from .bias import Bias, bias_of
from .matching import DROPOUT, Attention
from .products import Operand, swapped
from .reading import NotFusible, Program, all_same, spec_of
from .score_function import Captured, biased_scores
from .scores import Batch

__all__ = ["write"]

_attend = F.scaled_dot_product_attention
# From here on an additive mask is the greatest part of its scores. Kernels subtract the maximum of
# a row after they have rounded it, so a row with nothing greater is shifted first.
_LARGE = -1e4
_ABSORBS = -1e16  # scores vanish beside a number of this size, in float64 too


def write(
    program: Program, found: Attention, graph: Graph, copies: dict[Node, Node], is_exact: bool
) -> Node:
    """Replace the attention in `graph`, where `copies` has the nodes of the program's graph."""
    bias = bias_of(program, found, is_exact)
    writer = _Writer(program, found, bias, graph, copies, is_exact)
    kernels = writer.kernels()
    order = writer.layout()
    product = copies[found.product]
    with graph.inserting_before(product):
        made, result = writer.attend(kernels) if kernels else writer.attend_with_function()
        result = writer.placed(result, order)
    product.replace_all_uses_with(result)
    copies[found.product] = result
    graph.erase_node(product)
    for node in sorted(found.nodes[:-1], key=program.place.__getitem__, reverse=True):
        if not copies[node].users:  # factories may take its shape; nothing computes it then
            graph.erase_node(copies[node])
    return made


class _Writer:
    """Adds calls to a graph; nodes are those of the program until `_copy` takes their copies."""

    def __init__(
        self,
        program: Program,
        found: Attention,
        bias: Bias,
        graph: Graph,
        copies: Mapping[Node, Node],
        is_exact: bool,
    ) -> None:
        self.program, self.found, self.bias = program, found, bias
        self.graph, self.copies, self.is_exact = graph, copies, is_exact
        self.rows, self.columns = spec_of(found.scores.nodes[0]).shape[-2:]
        self.home = _home(found)
        self.trains = spec_of(found.product).requires_grad
        self.alive: Node | None = None  # rows with a column to attend to; None: all
        self.absorbed: Node | None = None  # rows whose biases are so low that scores vanish

    # -- choices -----------------------------------------------------------------------------------

    def kernels(self) -> tuple[SDPBackend, ...]:
        """Return the kernels to choose from, the first one that takes the arguments; none if they
        are to be generated.
        """
        if self.found.dropout:
            raise NotFusible(DROPOUT)
        spec = spec_of(self.found.product)
        if torch.are_deterministic_algorithms_enabled() and spec.device.type != "cpu":
            raise NotFusible("deterministic algorithms are asked for")
        shapes = (*self.found.query.shape, *self.found.key.shape, *self.found.value.shape)
        facts = AttentionFacts(
            spec.device,
            self.found.dtype,
            hint_of(self.rows),
            hint_of(self.columns),
            self.bias.mask,
            self.trains,
            any(isinstance(size, Size) for size in shapes),
        )
        if refusal := self.bias.refusal or self._why_too_wide():
            self._check_generated(facts, refusal)
            return ()
        kernels = row_of(spec.device).attention(facts)
        if not kernels:
            raise NotFusible("fused kernels are not faster at its size and dtype")
        return kernels

    def _why_too_wide(self) -> str:
        """Return why torch's kernels would round biases, which they take in the scores' dtype."""
        wide = [spec_of(term.node).dtype for term in self.bias.terms]
        is_wide = any(
            torch.promote_types(one, self.found.dtype) != self.found.dtype for one in wide
        )
        return "its bias has a wider dtype than its products" if self.is_exact and is_wide else ""

    def _check_generated(self, facts: AttentionFacts, refusal: str) -> None:
        """Refuse what is not faster in kernels that are generated, or not as exact."""
        widths = self.found.query.shape[-1], self.found.value.shape[-1]
        is_filled = math.isfinite(self.bias.value)  # a row of nothing else has eager's mean
        is_double = any(spec_of(term.node).dtype is torch.float64 for term in self.bias.terms)
        generates = row_of(facts.device).generates_attention(facts)
        if is_filled or is_double or not may_be_tiled(widths) or not generates:
            raise NotFusible(refusal)

    def layout(self) -> tuple[int, ...]:
        """Return the order of (batch ..., row, feature) in which the result is contiguous."""
        found, spec = self.found, spec_of(self.found.product)
        rank = len(spec.shape)
        plain = tuple(range(rank))
        inside = found.order  # contiguous as the result's dimensions
        for order in dict.fromkeys((inside, plain, swapped(rank))):
            places = [found.order.index(dim) for dim in order]
            shape = tuple(spec.shape[place] for place in places)
            strides = tuple(spec.stride[place] for place in places)
            pairs = zip(shape, strides, contiguous_strides(shape), strict=True)
            if all(is_same(size, 1) or is_same(old, new) for size, old, new in pairs):
                return order
        raise NotFusible("its result is laid out in another way")

    # -- calls -------------------------------------------------------------------------------------

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """Add a call of a function, or of a method if the target is a string."""
        op = "call_method" if isinstance(target, str) else "call_function"
        node = add_node(self.graph, op, target, args, kwargs)
        product = self.found.product
        node.meta["lines"] = lines_of_call(lines_of(product), _attend.__name__)
        if "step" in product.meta:
            node.meta["step"] = product.meta["step"]
        if "checkpoint" in product.meta:
            node.meta["checkpoint"] = product.meta["checkpoint"]
        return node

    def attend(self, kernels: tuple[SDPBackend, ...]) -> tuple[Node, Node]:
        """Return the call of torch's attention, and its result in four dimensions."""
        query, key, value = self.operands()
        mask, alike = self.mask(), self.alike()
        weighed = query if alike is None else self.call(torch.where, alike, 0.0, query)
        attend = WithKernels(_attend, (KernelChoice(kernels, set_priority=True),))
        made = self.call(
            attend, weighed, key, value,
            attn_mask=mask, is_causal=self.bias.is_causal, scale=self.bias.scale,
        )  # fmt: skip
        return made, self.with_nan(made, value)

    def attend_with_function(self) -> tuple[Node, Node]:
        """Return the call of flex_attention, and its result in four dimensions."""
        dtype = self.found.dtype
        query, key, value = (self.call("to", one, dtype) for one in self.operands())
        captured = self.captured()
        form = biased_scores(captured, self.bias.scale)
        made = self.call(FlexAttention(form), query, key, value, *(one.node for one in captured))
        return made, self.with_nan(self.call(operator.getitem, made, 0), value)

    def placed(self, result: Node, order: tuple[int, ...]) -> Node:
        """Return a result in four dimensions as the program has it."""
        batch = self.found.batches[1]
        if not all_same(batch, self.four):
            result = self.call("reshape", result, (*batch, self.rows, self.found.value.shape[-1]))
        return self.laid_out(result, order)

    # -- rows without a column to attend to --------------------------------------------------------

    def alike(self) -> Node | None:
        """Return the rows that weigh all columns alike."""
        if self.absorbed is not None:
            return self.absorbed
        if self.alive is None or math.isinf(self.bias.value):
            return None
        return self.call(torch.logical_not, self.alive)

    def with_nan(self, result: Node, value: Node) -> Node:
        """Put NaN into rows of a result, and into the gradients in which eager has it.

        A bias of -inf makes all gradients NaN. A fill lets none through to the scores, so that only
        the value's are NaN.
        """
        if self.alive is None or math.isfinite(self.bias.value):
            return result
        if self.absorbed is not None:
            nan = self.call(torch.where, self.alive, 1.0, math.nan)
            return self.call("mul", result, self.call("to", nan, self.found.dtype))
        if not self.trains:
            return self.call(torch.where, self.alive, result, math.nan)
        all_alive = self.call("all", self.alive, -2, True)
        nan = self.call("to", self.call(torch.where, all_alive, 0.0, math.nan), self.found.dtype)
        filled = self.call("mul", self.call("sum", value, -2, True), nan)
        return self.call(torch.where, self.alive, result, filled)

    def laid_out(self, result: Node, order: tuple[int, ...]) -> Node:
        """Copy the result to memory of its own: eager does not save it for the backward."""
        plain = tuple(range(len(order)))
        if order != plain:
            result = self.call("permute", result, order)
        result = self.call("clone", result, memory_format=torch.contiguous_format)
        back = tuple(order.index(dim) for dim in self.found.order)
        return result if back == plain else self.call("permute", result, back)

    # -- operands ----------------------------------------------------------------------------------

    @property
    def four(self) -> Batch:
        """The two batch dimensions of operands."""
        *more, last = self.home or (1,)
        return math.prod(more), last

    def operands(self) -> tuple[Node, Node, Node]:
        """Return query, key and value in four dimensions."""
        found, bias = self.found, self.bias
        query = self.operand(found.query, found.scores.batch, found.key)
        for node, divides, batch in bias.factors:
            factor = self.beside_rows(self.copies[node], spec_of(node).shape, batch)
            query = self.call("div" if divides else "mul", query, factor)
        query = self.call("to", query, spec_of(found.query.node).dtype) if bias.factors else query
        key = self.operand(found.key, found.scores.batch, found.query)
        return query, key, self.operand(found.value, found.batches[1], None)

    def operand(self, operand: Operand, batch: Batch, partner: Operand | None) -> Node:
        """Return an operand in four dimensions. `partner`: its gradient makes eager save it."""
        node, rank = self.copies[operand.node], len(spec_of(operand.node).shape)
        taken = [dim for dim in operand.dims if dim is not None]
        if taken != [*range(rank)]:
            node = self.call("permute", node, tuple(taken))
        for place, dim in enumerate(operand.dims):
            node = self.call("unsqueeze", node, place) if dim is None else node
        last = operand.shape[-2:]
        if not all_same(operand.shape[:-2], batch):
            node = self.call("expand", node, (*batch, *last))
        if not all_same(batch, self.four):
            node = self.call("reshape", node, (*self.four, *last))
        if not is_same(operand.last_stride, 1):
            node = self.call("contiguous", node)
        is_saved = self.needs_scores_grad if partner is None else _grad(partner)
        if self.trains and not is_saved and memory_of(operand.node) & self.program.shown:
            node = self.call("clone", node)
        return node

    @property
    def needs_scores_grad(self) -> bool:
        return spec_of(self.found.scores.nodes[-1]).requires_grad

    def beside_rows(self, node: Node, shape: Batch, batch: Batch) -> Node:
        """Return a tensor that broadcasts to scores of a batch, in four dimensions."""
        while len(shape) < 2:
            node, shape = self.call("unsqueeze", node, 0), (1, *shape)
        lead, last = shape[:-2], shape[-2:]
        if all(is_same(size, 1) for size in lead):
            return self.call("reshape", node, (1, 1, *last)) if len(lead) != 2 else node
        if all_same(batch, self.four):
            return node if len(lead) == 2 else self.call("unsqueeze", node, 0)
        node = self.call("expand", node, (*batch, *last))
        return self.call("reshape", node, (*self.four, *last))

    # -- masks -------------------------------------------------------------------------------------

    def mask(self) -> Node | None:
        """Return the mask; it keeps all columns of rows that have none to attend to."""
        bias = self.bias
        if bias.is_causal or bias.mask == "none":
            return None
        if not bias.is_small:
            return self.shifted(self.total())
        if not bias.fills:
            return self.whole(self.call("to", self.total(), self.found.dtype))
        kept = self.kept()
        if not bias.is_live:
            self.alive = self.call("any", kept, -1, True)
            kept = self.call(torch.logical_or, kept, self.call(torch.logical_not, self.alive))
        if bias.terms:
            total = self.call("to", self.total(), self.found.dtype)
            kept = self.call(torch.where, kept, total, -math.inf)
        return self.whole(kept)

    def shifted(self, total: Node) -> Node:
        """Return the mask of biases that may be as low as masks, see `_LARGE`."""
        if self.bias.fills:
            total = self.call(torch.where, self.kept(), total, -math.inf)
        most = self.call("amax", total, -1, True)
        self.alive = self.call("ne", most, -math.inf)
        self.absorbed = self.call("lt", most, _ABSORBS)
        shift = self.call(torch.where, self.call("lt", most, _LARGE), most, 0.0)
        total = self.call(torch.where, self.alive, self.call("sub", total, shift), 0.0)
        return self.whole(self.call("to", total, self.found.dtype))

    def captured(self) -> tuple[Captured, ...]:
        """Return what the score function reads: a bias, and what keeps huge ones exact.

        Kernels subtract a row's maximum in float32, and its logsumexp in the backward. Of a row
        whose maximum is far from 0 it is subtracted from the bias first. One that leaves nothing of
        scores in eager absorbs them here too, but not their gradients.
        """
        terms, fills = self.bias.terms, self.bias.fills
        total, of_total = self.total(), self.shape_of((one.node, one.batch) for one in terms)
        held, of_held = self.call("detach", total), of_total
        kept: tuple[Captured, ...] = ()
        if fills:
            mask, of_mask = self.kept(), self.shape_of((one.mask, one.batch) for one in fills)
            held = self.call(torch.where, mask, held, -math.inf)
            of_held = tuple(map(_broadcast, of_held, of_mask))
            kept = (Captured("kept", mask, of_mask),)
        most = self.call("to", self.call("amax", held, -1, True), torch.float32)
        size, of_rows = self.call("abs", most), (*of_held[:-1], 1)
        self.alive = self.call("ne", most, -math.inf)
        self.absorbed = self.call("gt", size, -_ABSORBS)
        is_far = self.call("logical_and", self.call("gt", size, -_LARGE), self.alive)
        shift = self.call(torch.where, is_far, most, 0.0)
        return (
            Captured("bias", self.whole(total), (*of_total[:2], self.rows, self.columns)),
            Captured("shift", shift, of_rows),
            Captured("absorbed", self.absorbed, of_rows),
            *kept,
        )

    def shape_of(self, parts: Iterable[tuple[Node, Batch]]) -> tuple[Dimension, ...]:
        """Return the shape of tensors beside rows that are combined."""
        shapes = [self._shape_beside(spec_of(node).shape, batch) for node, batch in parts]
        return reduce(lambda one, other: tuple(map(_broadcast, one, other)), shapes)

    def _shape_beside(self, shape: Batch, batch: Batch) -> tuple[Dimension, ...]:
        *lead, row, column = (1, 1, *shape)[-max(len(shape), 2) :]
        if all(is_same(size, 1) for size in lead):
            return 1, 1, row, column
        if not all_same(batch, self.four):
            return *self.four, row, column
        return *(1, *lead)[-2:], row, column

    def total(self) -> Node:
        """Return the sum of all terms."""
        made: Node | None = None
        for term in self.bias.terms:
            node = self.beside_rows(self.copies[term.node], spec_of(term.node).shape, term.batch)
            node = node if term.factor == 1 else self.call("mul", node, term.factor)
            made = node if made is None else self.call("add", made, node)
        assert made is not None
        return made

    def kept(self) -> Node:
        """Return where no fill is, in four dimensions."""
        made: Node | None = None
        for fill in self.bias.fills:
            node, spec = self.copies[fill.mask], spec_of(fill.mask)
            node = self.beside_rows(node, spec.shape, fill.batch)
            if spec.dtype is not torch.bool:
                node = self.call("eq", node, 0)
            elif not fill.keeps:
                node = self.call(torch.logical_not, node)
            made = node if made is None else self.call(torch.logical_and, made, node)
        assert made is not None
        return made

    def whole(self, mask: Node) -> Node:
        """Return a mask with all rows and columns; batch dimensions may stay 1."""
        return self.call("expand", mask, (-1, -1, self.rows, self.columns))


def _broadcast(one: Dimension, other: Dimension) -> Dimension:
    return other if is_same(one, 1) else one


def _grad(operand: Operand) -> bool:
    return spec_of(operand.node).requires_grad


def _home(found: Attention) -> Batch:
    """Return the batch dimensions that masks have, if two of them; else the most."""
    steps = [step.batch for step in found.scores.steps]
    known = [found.scores.batch, *steps, *found.batches]
    return next((one for one in known if len(one) == 2), max(known, key=len))
