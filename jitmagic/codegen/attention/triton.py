"""Builds the Triton kernels of flex_attention, which never hold the whole score matrix.

In: an AttentionKernel, a config. Out: a Kernel of the linear form, and the Tile of a program. The
method is that of FlashAttention-2 (Dao 2023): a program owns a tile of queries and visits the keys
tile by tile with an online softmax, in base 2 with sums in float32. The gradients compute the
probabilities again from the logsumexp; one kernel owns queries and sums the query's gradient,
another owns keys and sums those of key and value. The gradient of a bias is that of the scores: a
program owns a tile of both, and sums over the batches and heads that share the bias.
"""

from __future__ import annotations

import math
from functools import partial

import torch

from ...errors import CannotRender
from ...loops.expr import add, times
from ...loops.ir import Axis, Load, Value
from ...loops.values import compute, where
from ...symbols.size import Size
from ..config import AttentionConfig
from ..kernel import (
    Accumulate,
    Approximate,
    Fold,
    Kernel,
    Open,
    Param,
    Result,
    Set,
    TileBlock,
    Total,
    Var,
)
from ..linearize import linearize
from ..loop_form import Body
from ..plan import Config
from ..triton.ops import TL_DTYPES
from ..triton.printer import STYLE, TritonText
from ..triton.tile import Tile
from .kernel import TANGENT, AttentionKernel
from .tile_loops import TileLoops, TileStep, place_in
from .tiles import AttentionTile, tile_of

__all__ = ["attention_form", "attention_printer", "is_written"]

_FAR_ROWS = 1 << 23  # positions in a tile of at most 128 such rows fit into 32 bits
_LOG2E = 1.4426950408889634
_SINGLE = torch.float32


def attention_form(kernel: AttentionKernel, config: Config | None) -> tuple[Kernel, Tile]:
    """Return the kernel of a call, and the tile of a program."""
    config = config if isinstance(config, AttentionConfig) else AttentionConfig()
    loops = _Kernels(kernel, tile_of(kernel, config))
    params = tuple(
        Param(name, buffer.dtype, name in kernel.written, is_constant=name in kernel.read)
        for name, buffer in kernel.buffers.items()
    )
    form = Kernel(kernel.name, params, kernel.symbols, loops.body())
    return linearize(form, STYLE), loops.tile()


def attention_printer(kernel: AttentionKernel, config: Config | None) -> TritonText:
    """Return the printer of a kernel, whose arguments have the names of their roles."""
    numbers = [role for role in kernel.buffers if kernel.is_number(role)]
    form, tile = attention_form(kernel, config)
    return TritonText(form, tile, {role: role for role in kernel.buffers}, numbers)


def is_written(kernel: AttentionKernel) -> bool:
    """Return whether Triton has a form of all operations and dtypes of a kernel."""
    if any(buffer.dtype not in TL_DTYPES for buffer in kernel.buffers.values()):
        return False
    rows = [kernel.buffers[role].stride[2] for role in ("query", "key", "value")]
    if any(not isinstance(step, Size) and step >= _FAR_ROWS for step in rows):
        return False
    try:
        attention_printer(kernel, None).lines()
    except CannotRender:
        return False
    return True


class _Kernels(TileLoops):
    """Builds each kind of kernel. `unit`: the scale of scores that the exponents' factor has."""

    def __init__(self, kernel: AttentionKernel, tile: AttentionTile) -> None:
        super().__init__(kernel, tile)
        self.unit = kernel.scale if self.is_folded else 1.0

    def body(self) -> Body:
        """Return the statements of a program."""
        kinds = {
            "forward": self._forward, "query": self._query, "keys": self._keys, "bias": self._bias,
        }  # fmt: skip
        kinds[self.kernel.kind]()
        return tuple(self.made)

    # -- forward ---------------------------------------------------------------------------------

    def _forward(self) -> None:
        self.open_program()
        self.open_rows("query", "key", "value")
        self.made += [Open(self.e), Open(self.e_down), Open(self.f)]
        q = self.let("q", self.load("query", self.own, self.e))
        largest = self.start_total("max_number", "largest", self.own)
        total = self.start_total("sum", "total", self.own)
        out = self.start_total("sum", "acc", self.own, self.f)
        self.visit(partial(self._forward_step, q, largest, total, out))
        nothing = compute("eq", _held(total), 0.0)
        whole = where(nothing, 1.0, _held(total))
        mean = Approximate("truediv", (_held(out), whole), _SINGLE)
        self.store("out", mean, self.own, self.f)
        if "lse" in self.kernel.written:
            # Scores of masked rows are all minus infinity, and so is the log of their sum.
            shift = compute("mul", _held(largest), self.unit)
            logsumexp = compute("add", shift, compute("log", whole))
            self.store("lse", where(nothing, -math.inf, logsumexp), self.own)

    def _forward_step(
        self, q: Var, largest: Total, total: Total, out: Total, is_masked: bool
    ) -> None:
        k = self.let("k", self.load("key", self.visited, self.e_down))
        product = self.product(q, k, self.e, (self.e_down, self.visited))
        scores, _ = self.scores(product, is_masked)
        before, factor = _held(largest), self.unit * _LOG2E
        best = self.let("best", Fold("max_number", scores, self.visited, _SINGLE))
        larger = self.let("larger", compute("fmax", before, best))
        # Of a row without scores so far the largest is minus infinity, less which it is not 0.
        shift = compute("mul", _finite(larger), factor)
        p = self._powers(scores, shift)
        faded = compute("sub", compute("mul", before, factor), shift)
        fading = self.let("fading", Approximate("exp2", (faded,), _SINGLE))
        self._fade(total, fading)
        shares = self.let("shares", Fold("sum", p, self.visited, _SINGLE))
        self.made.append(Accumulate(total, shares))
        v = self.let("rows", self.load("value", self.turned, self.f))
        self._fade(out, fading)
        self.add_product(out, p, v, (self.turned, self.f), self.f)
        self.made.append(Set(largest.var, larger))

    def _fade(self, total: Total, fading: Var) -> None:
        self.made.append(Set(total.var, compute("mul", _held(total), fading)))

    def _powers(self, scores: Value, shift: Value) -> Var:
        """Return the exponentials of scores less a shift, in base 2."""
        exponent = compute("fma", scores, self.unit * _LOG2E, compute("neg", shift))
        return self.let("p", Approximate("exp2", (exponent,), _SINGLE))

    # -- gradients -------------------------------------------------------------------------------

    def _query(self) -> None:
        self.open_program()
        self.open_rows("query", "key", "value", "grad", "lse", "delta")
        self.made += [Open(block) for block in (self.e, self.e_down, self.f, self.f_down)]
        q = self.let("q", self.load("query", self.own, self.e))
        grad = self.let("tangent", self.load("grad", self.own, self.f))
        facts = self._facts(self.own)
        out = self.start_total("sum", "acc", self.own, self.e)
        self.visit(partial(self._query_step, q, grad, facts, out))
        self.store("query_grad", self._scaled(out), self.own, self.e)

    def _query_step(
        self, q: Var, grad: Var, facts: tuple[Var, Var], out: Total, is_masked: bool
    ) -> None:
        k, of_scores = self._score_gradients(q, grad, facts, is_masked)
        self.add_product(out, of_scores, k, (self.visited, self.e_down), self.e)

    def _score_gradients(
        self, q: Var, grad: Var, facts: tuple[Var, Var], is_masked: bool
    ) -> tuple[Var, Value]:
        """Return the visited keys, and the gradients of the scores of owned queries and these."""
        shift, delta = facts
        k = self.let("k", self.load("key", self.visited, self.e_down))
        product = self.product(q, k, self.e, (self.e_down, self.visited))
        scores, kept = self.scores(product, is_masked)
        p = self._powers(scores, shift)
        v = self.let("rows", self.load("value", self.visited, self.f_down))
        of_shares = self.product(grad, v, self.f, (self.f_down, self.visited))
        return k, self._gradient(p, of_shares, delta, kept)

    def _keys(self) -> None:
        self.open_program()
        self.open_rows("key", "value")
        self.made += [Open(self.e), Open(self.e_down), Open(self.f)]
        k = self.let("k", self.load("key", self.own, self.e))
        v = self.let("rows", self.load("value", self.own, self.f))
        of_keys = self.start_total("sum", "acc", self.own, self.e)
        of_values = self.start_total("sum", "acc", self.own, self.f)
        step = partial(self._keys_step, k, v, of_keys, of_values)
        if self.is_grouped:
            with self.loop(Axis("group", self.groups)) as group:
                head = add(times(place_in(self.head), self.groups), group)
                self.made.append(Open(self.query_head, head))
                self._visit_queries(step)
        else:
            self._visit_queries(step)
        self.store("key_grad", self._scaled(of_keys), self.own, self.e)
        self.store("value_grad", _held(of_values), self.own, self.f)

    def _visit_queries(self, step: TileStep) -> None:
        self.open_rows("query", "grad", "lse", "delta")
        self.visit(step)

    def _keys_step(self, k: Var, v: Var, of_keys: Total, of_values: Total, is_masked: bool) -> None:
        q = self.let("q", self.load("query", self.visited, self.e_down))
        shift, delta = self._facts(self.visited)
        product = self.product(k, q, self.e, (self.e_down, self.visited))
        scores, kept = self.scores(product, is_masked)
        p = self._powers(scores, shift)
        grad = self.let("tangent", self.load("grad", self.turned, self.f))
        self.add_product(of_values, p, grad, (self.turned, self.f), self.f)
        of_shares = self.product(v, grad, self.f, (self.f, self.turned))
        of_scores = self._gradient(p, of_shares, delta, kept)
        self.add_product(of_keys, of_scores, q, (self.visited, self.e_down), self.e)

    def _bias(self) -> None:
        is_masked = self.kernel.keeps is not None
        first = self.open_pair()
        self.made += [Open(block) for block in (self.e, self.e_down, self.f, self.f_down)]
        total = self.start_total("sum", "acc", self.own, self.visited, over=self.b.axes)
        with self.sharing_heads(first):
            self.open_rows("query", "key", "value", "grad", "lse", "delta")
            self.compute_ahead(is_masked)
            q = self.let("q", self.load("query", self.own, self.e))
            grad = self.let("tangent", self.load("grad", self.own, self.f))
            _, of_scores = self._score_gradients(q, grad, self._facts(self.own), is_masked)
            self.made.append(Accumulate(total, of_scores))
        self.store_at(first, "bias_grad", _held(total), self.own, self.visited)

    def _facts(self, rows: TileBlock) -> tuple[Var, Var]:
        """Return of each query the logsumexp in base 2, and the sum of its gradients."""
        shift = self.let("shift", compute("mul", _finite(self.load("lse", rows)), _LOG2E))
        return shift, self.let("delta", self.load("delta", rows))

    def _gradient(self, p: Var, of_shares: Value, delta: Var, kept: Value | None) -> Value:
        """Return the gradient of the scores before the function."""
        given = compute("mul", p, compute("sub", of_shares, delta))
        changed = self.kernel.gradient
        if isinstance(changed, Load):
            return given
        self.bind(TANGENT, self.let("g", given))
        return changed if kept is None else where(kept, changed, 0.0)

    def _scaled(self, total: Total) -> Value:
        return compute("mul", _held(total), self.kernel.scale)


def _held(total: Total) -> Value:
    """Return what an accumulator holds."""
    return Result(total, total.var.dtype)


def _finite(value: Value) -> Value:
    """Return the value, 0 instead of minus infinity."""
    return where(compute("eq", value, -math.inf), 0.0, value)
