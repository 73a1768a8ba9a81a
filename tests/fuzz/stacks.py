"""Stacks of layers over weights that are arguments: the shapes, layouts and statements of one.

`stack(rng)` chooses rows and odd widths, how each product is written, what is between two of them
and what else reads it; schedule/products.py and schedule/product_chains.py are what it aims at.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = ["Stack", "stack"]

WIDTHS = (1, 2, 3, 4, 5, 7, 8, 10, 15, 16, 17, 24, 31, 33, 48, 64, 65, 100)
USUAL = 15  # the first ones of BETWEEN
ROWS = (1, 2, 3, 4, 7, 8, 9, 16, 17, 31, 32, 33, 48, 64, 70)
WEIGHT_LAYOUTS = (
    *("plain", "plain", "plain", "transposed", "padded", "strided", "offset", "expanded"),
)
# {h} what came before, {w} weight of (out, in), {b} bias of (out,)
PRODUCTS = (
    "F.linear({h}, {w}, {b})",
    "F.linear({h}, {w}, {b})",
    "F.linear({h}, {w})",
    "{h} @ {w}.t()",
    "{h} @ {w}.t() + {b}",
    "torch.mm({h}, {w}.T).add({b})",
    "torch.addmm({b}, {h}, {w}.t())",
    "torch.addmm({b}[None], {h}, {w}.t(), alpha=2)",
    "({w} @ {h}.t()).t()",
    "({w} @ {h}.t() + {b}[:, None]).t()",
    "torch.einsum('ij,kj->ik', {h}, {w})",
    "F.linear({h}, {w} * 0.5, {b} + 1)",
    "F.linear({h}.contiguous(), {w}.contiguous(), {b})",
)
BETWEEN = (
    "{h}",
    "{h}.relu()",
    "F.relu({h})",
    "{h}.tanh()",
    "F.gelu({h})",
    "F.gelu({h}, approximate='tanh')",
    "F.silu({h}) * 0.5",
    "{h}.sigmoid() + {b}",
    "F.leaky_relu({h}, 0.1) * {b}",
    "F.elu({h}) - k",
    "F.softplus({h}).clamp(max=2)",
    "torch.where({h} > {b}, {h}, {b})",
    "torch.where({h} > 0, {h}, -0.1 * {h})",
    "{h} * torch.sigmoid({h})",
    "{h}.abs().sqrt()",
    "{h} / (1 + {h}.abs())",
    "{h} * {h}.shape[1]",
    "{h} + torch.arange({h}.shape[1])",
    "{h} + torch.arange({h}.shape[0])[:, None]",
    "{h}.masked_fill({h} < 0, 0.25)",
    "{h}.half().float()",
    "{h}.bfloat16()",
    "F.softmax({h}, 1)",
    "F.layer_norm({h}, {h}.shape[1:], {b})",
    "{h} - {h}.mean(0)",
    "{h} * ({h} > 0)",
    "{h}.round()",
    "{h}.flip(1)",
    "{h}.t().contiguous().t()",
    "F.dropout({h}, 0.5, True)",
    "F.dropout({h}, 0.5, False)",
)
AFTER = (
    "{h}.sum(1)",
    "F.softmax({h}, -1)",
    "F.log_softmax({h}, 1)",
    "{h}.argmax(1)",
    "F.cross_entropy({h}, torch.zeros({h}.shape[0], dtype=torch.int64))",
    "{h}.sigmoid().double()",
    "{h}.t()",
    "{h}[:, :1]",
    "{h}[::2] * 2",
    "{h}.unsqueeze(1)",
    "{h}.view(-1)",
    "({h} - {h}.mean(0)).square().mean()",
    "{h}.to(torch.int32)",
)


@dataclass(frozen=True)
class Stack:
    """Arguments x0 (rows), x1, x2 (weight, bias of the first layer), ... and what is done."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    layouts: tuple[str, ...]
    statements: tuple[str, ...]


def stack(rng: random.Random) -> Stack:
    """One to four layers; values keep the names v1, v2, ... that generate.py gives."""
    widths = [rng.choice(WIDTHS) for _ in range(rng.choice([2, 3, 3, 4, 5]))]
    if rng.random() < 0.2:
        widths = [widths[0]] * len(widths)
    plain = rng.random() < 0.4
    made = _Layers(rng, plain, (rng.choice(ROWS), widths[0]))
    tied = len(set(widths)) == 1 and rng.random() < 0.3
    for n in range(len(widths) - 1):
        made.add_layer(widths[n], widths[n + 1], tied and n > 0)
    if rng.random() < 0.5:
        made.write(rng.choice(AFTER))
    dtype = rng.choice(["float32"] * 8 + ["float64", "bfloat16", "float16"])
    dtypes = (dtype,) * len(made.shapes)
    return Stack(tuple(made.shapes), dtypes, tuple(made.layouts), tuple(made.statements))


class _Layers:
    """The arguments and statements so far."""

    def __init__(self, rng: random.Random, plain: bool, shape: tuple[int, ...]) -> None:
        self.rng = rng
        self.plain = plain
        self.shapes = [shape]
        self.layouts = ["plain" if plain else rng.choice(WEIGHT_LAYOUTS)]
        self.statements: list[str] = []
        self.last = "x0"
        self.weight = self.bias = ""

    def add_layer(self, before: int, width: int, tied: bool) -> None:
        """A product, mostly with something behind it; `tied`: over the weight of the one before."""
        rng = self.rng
        if not tied:
            self._add_weight(before, width)
        product = PRODUCTS[0] if self.plain else rng.choice(PRODUCTS)
        self.write(f"{product} + {{h}}" if before == width and rng.random() < 0.15 else product)
        if rng.random() < 0.85:
            usual = self.plain or rng.random() < 0.6
            self.write(rng.choice(BETWEEN[:USUAL] if usual else BETWEEN))

    def write(self, template: str) -> None:
        text = template.format(h=self.last, w=self.weight, b=self.bias)
        self.last = f"v{len(self.statements) + 1}"
        self.statements.append(f"{self.last} = {text}")

    def _add_weight(self, before: int, width: int) -> None:
        self.weight, self.bias = (f"x{len(self.shapes) + n}" for n in range(2))
        self.shapes += [(width, before), (width,)]
        layouts = [self.rng.choice(WEIGHT_LAYOUTS), self.rng.choice(("plain", "strided"))]
        self.layouts += ["plain"] * 2 if self.plain else layouts
