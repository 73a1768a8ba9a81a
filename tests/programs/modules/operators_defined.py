"""Operators that programs and libraries register with torch.library, one for each kind."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["NAMESPACE", "scaled"]

NAMESPACE = "jitmagic_tests"
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")


def _define(schema: str, kernel: object, fake: object = None, tags: object = ()) -> None:
    name = schema.partition("(")[0]
    _LIBRARY.define(schema, tags=tags)
    _LIBRARY.impl(name, kernel, "CompositeExplicitAutograd")
    if fake is not None:
        torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_LIBRARY)


@torch.library.custom_op(f"{NAMESPACE}::scaled", mutates_args=())
def scaled(x: Tensor, factor: float, times: int = 1) -> Tensor:
    return x * factor * times


@scaled.register_fake
def _(x: Tensor, factor: float, times: int = 1) -> Tensor:
    return torch.empty_like(x)


def _save_factor(ctx, inputs, output):
    ctx.factor = inputs[1] * inputs[2]


scaled.register_autograd(lambda ctx, g: (g * ctx.factor, None, None), setup_context=_save_factor)


@torch.library.custom_op(f"{NAMESPACE}::square_backward", mutates_args=())
def square_backward(x: Tensor, g: Tensor) -> Tensor:
    return 2 * x * g


square_backward.register_fake(lambda x, g: torch.empty_like(x))


@torch.library.custom_op(f"{NAMESPACE}::square", mutates_args=())
def square(x: Tensor) -> Tensor:
    return x * x


square.register_fake(lambda x: torch.empty(x.shape, dtype=x.dtype))  # no device: on the CPU


def _save_input(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _square_gradient(ctx, g):
    return torch.ops.jitmagic_tests.square_backward(ctx.saved_tensors[0], g)


square.register_autograd(_square_gradient, setup_context=_save_input)


@torch.library.custom_op(f"{NAMESPACE}::apart", mutates_args=())
def apart(tensors: list[Tensor], weights: list[float], mode: str) -> list[Tensor]:
    return [t * w if mode == "mul" else t + w for t, w in zip(tensors, weights, strict=True)]


apart.register_fake(lambda tensors, weights, mode: [torch.empty_like(t) for t in tensors])
apart.register_autograd(
    lambda ctx, grads: ([g * w for g, w in zip(grads, ctx.weights, strict=True)], None, None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "weights", inputs[1]),
)


@torch.library.custom_op(f"{NAMESPACE}::both", mutates_args=())
def both(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.sin(), x.argsort(-1)


both.register_fake(lambda x: (torch.empty_like(x), torch.empty_like(x, dtype=torch.int64)))
both.register_autograd(lambda ctx, g, _: g * ctx.saved_tensors[0].cos(), setup_context=_save_input)


@torch.library.custom_op(f"{NAMESPACE}::add_into", mutates_args={"out", "count"})
def add_into(out: Tensor, x: Tensor, count: Tensor | None = None) -> None:
    out.add_(x)
    if count is not None:
        count.add_(1)


@torch.library.custom_op(f"{NAMESPACE}::push", mutates_args={"rows"})
def push(rows: list[Tensor], x: Tensor) -> Tensor:
    for row in rows:
        row.mul_(2).add_(x)
    return x + 1


push.register_fake(lambda rows, x: torch.empty_like(x))


@torch.library.custom_op(f"{NAMESPACE}::note", mutates_args=())
def note(x: Tensor, text: str) -> None:
    print(f"{text} {tuple(x.shape)}")


note.register_fake(lambda x, text: None)

_define(
    "noise(Tensor x) -> Tensor",
    lambda x: x + torch.rand_like(x),
    torch.empty_like,
    torch.Tag.nondeterministic_seeded,
)
_define("plain(Tensor x) -> Tensor", lambda x: x + 1)
_define("number(Tensor x) -> Scalar", lambda x: 3, lambda x: 3)
_define("rank(Tensor x) -> int", lambda x: x.dim(), lambda x: x.dim())
_define("is_large(Tensor x) -> bool", lambda x: bool(x.sum() > 9), lambda x: True)
_define(
    "positives(Tensor x) -> Tensor",
    lambda x: x[x > 0].clone(),
    lambda x: x.new_empty(torch.library.get_ctx().new_dynamic_size()),
)
_define(
    "count(Tensor x) -> SymInt",
    lambda x: int((x > 0).sum()),
    lambda x: torch.library.get_ctx().new_dynamic_size(),
)
_define(
    "normed(Tensor x) -> (Tensor, float)",
    lambda x: (x / x.abs().max(), x.abs().max().item()),
    lambda x: (torch.empty_like(x), 1.0),
)
_define("sounding(Tensor x) -> Tensor", lambda x: (print("sounding"), x + 1)[1], torch.empty_like)
_define("part(Tensor(a) x) -> Tensor(a)", lambda x: x[1:], lambda x: x[1:])
_define("mul_(Tensor(a!) x, float y) -> Tensor(a!)", lambda x, y: x.mul_(y), lambda x, y: x)
_define("same(Tensor x) -> Tensor", lambda x: x, torch.empty_like)
_define("combined.two(Tensor x, Tensor y) -> Tensor", lambda x, y: x - y, lambda x, y: x - y)
_define("combined.one(Tensor x) -> Tensor", lambda x: -x, lambda x: -x)
_LIBRARY.define("composed(Tensor x, int n=2) -> Tensor")
_LIBRARY.impl("composed", lambda x, n=2: x.sin() * n, "CompositeImplicitAutograd")
