"""Turns the steps of scores into what scaled_dot_product_attention takes: a scale and one mask.

In: an `Attention`. Out: a `Bias`: scale * product + sum(terms), and a number in filled places.
Raises NotFusible for steps that have no such form, or whose result might differ from eager's.

A fill with a finite number counts as one with -inf if no score of a program comes near to it: the
exponential of the difference is zero then, as in eager. The sum of a score and a huge bias loses
the score but not its gradient. A row of nothing else is the mean of values in eager; torch's
kernels get a zero query for it, and so no gradient. `refusal` says why such a bias, or one that
gets a gradient, is not for them in training: it takes kernels that jitmagic generates.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch.fx import Node

from ...symbols.size import is_same
from ..symbolic.known import known_tensor
from ..symbolic.ranges import element_range
from .masks import Triangle, filled_value, kept_elements, triangle
from .matching import Attention
from .reading import NotFusible, Program, spec_of
from .scores import Add, Batch, Fill, Scale

__all__ = ["Bias", "Factor", "Filled", "Term", "bias_of"]

# Scores in float16 end at -65504; in other dtypes 1e8 is far from any product of real data.
_FILLS = {torch.float16: -6e4}
_FILL = -1e8
_SMALL = 1e3


class Factor(NamedTuple):
    """A tensor that scores are multiplied with, or divided by."""

    node: Node
    divides: bool
    batch: Batch


class Term(NamedTuple):
    node: Node
    factor: float
    batch: Batch


class Filled(NamedTuple):
    """A bool tensor that is `keeps` where scores stay, or a float tensor that is 0 there."""

    mask: Node
    keeps: bool
    batch: Batch
    triangle: Triangle | None
    elements: torch.Tensor | None  # kept ones, if they are constants


class Bias(NamedTuple):
    """All that is applied to a product before its softmax. `value`: in place of filled scores.

    is_live: each row has a column that is not filled
    is_small: no term is as large as what masks add
    refusal: why torch's kernels do not compute it; empty if they do
    """

    scale: float
    factors: tuple[Factor, ...]
    terms: tuple[Term, ...]
    fills: tuple[Filled, ...]
    value: float
    is_causal: bool
    is_live: bool
    is_small: bool
    refusal: str = ""

    @property
    def mask(self) -> Literal["none", "causal", "tensor"]:
        if self.is_causal:
            return "causal"
        return "tensor" if self.terms or self.fills else "none"


class _Steps:
    """The steps so far."""

    def __init__(self, program: Program, found: Attention) -> None:
        self.program, self.found = program, found
        self.scale = 1.0
        self.factors: list[Factor] = []
        self.terms: list[Term] = []
        self.fills: list[Filled] = []
        self.values: set[float] = set()
        self.is_small, self.is_learned = True, False
        self.shape = spec_of(found.scores.nodes[0]).shape[-2:]

    def multiply(self, step: Scale) -> None:
        if isinstance(step.factor, Node):
            if self.terms or self.fills:
                raise NotFusible("a tensor scales its mask")
            self.factors.append(Factor(step.factor, step.divides, step.batch))
            return
        if not math.isfinite(step.factor) or step.factor == 0:
            raise NotFusible("its scale is no finite number")
        factor = 1 / step.factor if step.divides else step.factor
        if self.fills and factor < 0:
            raise NotFusible("its mask is multiplied by a negative number")
        self.scale *= factor
        self.terms = [term._replace(factor=term.factor * factor) for term in self.terms]
        self.values = {value * factor for value in self.values}

    def add(self, step: Add) -> None:
        known = filled_value(self.program, step.term, step.reader)
        if known is not None and known[1] * step.sign <= self.least:
            kept, value = known
            if kept.keeps_a_column(*self.shape):
                filled = Filled(step.term, True, step.batch, kept, None)
                self._fill(filled, value * step.sign)
                return
        spec = spec_of(step.term)
        if not spec.dtype.is_floating_point:
            raise NotFusible("its bias is no float")
        self.is_learned |= spec.requires_grad
        self.is_small &= _is_small(self.program, step)
        self.terms.append(Term(step.term, step.sign, step.batch))

    def fill(self, step: Fill) -> None:
        if step.value > self.least:
            raise NotFusible(f"its mask fills scores with {step.value:g}")
        if spec_of(step.mask).dtype is not torch.bool:
            raise NotFusible("its mask is no bool")
        kept = triangle(self.program, step.mask, step.reader, step.keeps)
        elements = None if kept else kept_elements(self.program, step.mask, step.keeps)
        self._fill(Filled(step.mask, step.keeps, step.batch, kept, elements), step.value)

    def _fill(self, filled: Filled, value: float) -> None:
        self.fills.append(filled)
        self.values.add(value)

    @property
    def least(self) -> float:
        """The number from which on a fill counts as one with -inf."""
        dtypes = {spec_of(node).dtype for node in self.found.scores.nodes}
        return _FILL if dtypes != {torch.float16} else _FILLS[torch.float16]

    @property
    def is_live(self) -> bool:
        if len(self.fills) == 1 and (kept := self.fills[0].triangle) is not None:
            return kept.keeps_a_column(*self.shape)
        known = [one.elements for one in self.fills if one.elements is not None]
        if len(known) < len(self.fills):
            return False
        common = torch.ones((), dtype=torch.bool)
        for elements in known:
            common = common & elements
        return bool(common.any(-1).all())

    @property
    def is_causal(self) -> bool:
        if self.terms or len(self.fills) != 1 or not is_same(*self.shape):
            return False
        kept, elements = self.fills[0].triangle, self.fills[0].elements
        if kept is not None:
            return kept.is_causal
        if elements is None or elements.dim() < 2 or elements.shape[-2] != elements.shape[-1]:
            return False
        square = torch.ones(elements.shape[-2:], dtype=torch.bool).tril()
        return bool(elements.shape[-1] > 1) and torch.equal(elements, square.expand_as(elements))


def _is_small(program: Program, step: Add) -> bool:
    """Return whether a term is known to be far from what masks add: ALiBi, for example."""
    limits = element_range(program, step.term, step.reader)
    if max(-limits.low, limits.high) <= _SMALL and not limits.nan:
        return True
    known = known_tensor(program, step.term, is_exact=False)
    return known is not None and bool((known.abs() <= _SMALL).all())  # false for NaN


def bias_of(program: Program, found: Attention, is_exact: bool) -> Bias:
    """Return the scale and the mask of attention. `is_exact`: as eager's in every row."""
    steps = _Steps(program, found)
    for step in found.scores.steps:
        if isinstance(step, Scale):
            steps.multiply(step)
        elif isinstance(step, Add):
            steps.add(step)
        else:
            steps.fill(step)
    is_live, is_causal = steps.is_live, steps.is_causal
    if len(steps.values) > 1 and not is_live:
        raise NotFusible("its masks fill scores with different numbers")
    if not steps.is_small and steps.fills and steps.values - {-math.inf}:
        raise NotFusible("its bias may outweigh a fill with a finite number")
    value = next(iter(steps.values), -math.inf)
    made = steps.scale, tuple(steps.factors), tuple(steps.terms), tuple(steps.fills)
    refusal = _refusal(steps, is_exact and spec_of(found.product).requires_grad)
    return Bias(*made, value, is_causal, is_live, steps.is_small, refusal)


def _refusal(steps: _Steps, must_differentiate: bool) -> str:
    """Return why torch's kernels do not compute a bias as eager does, or not faster."""
    if steps.is_learned:
        return "the kernel that differentiates a bias is slower"
    dtypes = {spec_of(term.node).dtype for term in steps.terms}
    if not steps.is_small and must_differentiate and (steps.fills or dtypes != {torch.float16}):
        return "its bias may mask whole rows, whose gradients would differ"
    return ""
