"""Autograd functions that are not followed: eager runs them, and the break says why."""

from __future__ import annotations

import torch
from torch.autograd import Function

from .custom import WEIGHT

SEEN: list[int] = []


class Doubling(Function):
    """A function whose backward alone is unusual."""

    @staticmethod
    def forward(ctx, x):
        return x * 2


class Counting(Doubling):
    @staticmethod
    def backward(ctx, g):
        SEEN.append(1)
        return g * 2


class Drawing(Doubling):
    @staticmethod
    def backward(ctx, g):
        return g * torch.rand_like(g)


class Asking(Doubling):
    @staticmethod
    def backward(ctx, g):
        return g * (3 if torch.is_grad_enabled() else 2)


class Flagged(Doubling):
    @staticmethod
    def backward(ctx, g):
        return g * (3 if g.requires_grad else 2)


class Escaping(Function):
    @staticmethod
    def forward(ctx, x):
        SEEN.append(ctx)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


class Popping(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.left = [3.0, 2.0]
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * ctx.left.pop()


class Foreign(Function):
    @staticmethod
    def forward(ctx, x):
        return WEIGHT

    @staticmethod
    def backward(ctx, g):
        return g * 2


class Differentiating(Function):
    """A backward that recomputes, as reentrant checkpointing does."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (saved,) = ctx.saved_tensors
        with torch.enable_grad():
            again = saved.detach().requires_grad_()
            made = again.sin()
        return torch.autograd.grad(made, again, g)[0]


class Wrong(Function):
    """Too few gradients: eager raises in the backward."""

    @staticmethod
    def forward(ctx, x, y):
        return x * y

    @staticmethod
    def backward(ctx, g):
        return g


REFUSED = {
    "side effect": (lambda a: Counting.apply(a) * 2, "side effects"),
    "random": (lambda a: Drawing.apply(a) * 2, "random numbers"),
    "grad mode": (lambda a: Asking.apply(a) * 2, "with or without gradients"),
    "requires_grad": (lambda a: Flagged.apply(a) * 2, "requires_grad"),
    "context escapes": (lambda a: Escaping.apply(a) * 2, "context"),
    "a list of ctx": (lambda a: Popping.apply(a) * 2, "side effects"),
    "a foreign result": (lambda a: Foreign.apply(a) * a, "neither an input nor its own"),
    "differentiates": (lambda a: Differentiating.apply(a) * 2, ""),
    "too few gradients": (lambda a: Wrong.apply(a, a * 2) * 2, "1 gradients for 2"),
}
