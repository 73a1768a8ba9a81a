"""Programs with autograd functions: each kind of use of ctx, each kind of result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

SCALE = 3.0
WEIGHT = torch.linspace(0.5, 1.5, 4)


class Straight(Function):
    """A straight-through estimator: the backward is not the derivative of the forward."""

    @staticmethod
    def forward(ctx, x, levels):
        return (x * levels).round() / levels

    @staticmethod
    def backward(ctx, g):
        return g, None


class Clipped(Function):
    """A saved mask, plain attributes, a write to a clone."""

    @staticmethod
    def forward(ctx, x, low, high=1.0):
        ctx.save_for_backward(x)
        ctx.low, ctx.high = low, high
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        made = g.clone()
        made[x < ctx.low] = 0
        return made * (x <= ctx.high), None, None


class Exp(Function):
    """Saves its own result."""

    @staticmethod
    def forward(ctx, x):
        made = x.exp()
        ctx.save_for_backward(made, None)
        return made

    @staticmethod
    def backward(ctx, g):
        made, nothing = ctx.saved_tensors
        assert nothing is None
        return g * made


class Linear(Function):
    """needs_input_grad decides what is computed and what is saved."""

    @staticmethod
    def forward(ctx, x, weight, bias=None):
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        ctx.biased = bias is not None
        made = x @ weight.t()
        return made + bias if bias is not None else made

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        gx = gw = gb = None
        if ctx.needs_input_grad[0]:
            gx = g @ weight
        if ctx.needs_input_grad[1]:
            gw = g.t() @ x
        if ctx.biased and ctx.needs_input_grad[2]:
            gb = g.sum(0)
        return gx, gw, gb


class Sorted(Function):
    """A result that is not differentiable, and one more that no tensor is."""

    @staticmethod
    def forward(ctx, x):
        values, order = x.sort(-1)
        ctx.mark_non_differentiable(order)
        ctx.save_for_backward(order)
        return values, order, x.shape[0]

    @staticmethod
    def backward(ctx, g, g_order, g_count):
        assert g_count is None
        (order,) = ctx.saved_tensors
        return torch.zeros_like(g).scatter(-1, order, g) + g_order.sum()


class TwoUnused(Function):
    """Zeros where no gradient comes in, and what is made of them is not zero."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, a, b):
        (x,) = ctx.saved_tensors
        return a.exp() * x + b


class Bare(Function):
    """None where no gradient comes in."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.factor = 2
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return None if g is None else g * ctx.factor


class InPlace(Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 2 + x * 0


class Reversal(Function):
    """A view of its input: gradient reversal."""

    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g.neg() * ctx.strength, None


class Same(Function):
    """Its input as it is."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 5


class Once(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.pow(3)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x * x * g


class Product(Function):
    """setup_context, defaults, names, a tensor on ctx that is not saved."""

    @staticmethod
    def forward(x, y, scale=2.0):
        return x * y * scale

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y, ctx.scale = inputs
        ctx.save_for_backward(x, y)
        ctx.output = output + 1

    @staticmethod
    def vjp(ctx, g):
        x, y = ctx.saved_tensors
        return g * y * ctx.scale, g * x * ctx.scale + ctx.output * 0, None


class Constant(Function):
    """A gradient that depends on no gradient: the forward has computed it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x * 2)
        return (x * x).sum()

    @staticmethod
    def backward(ctx, g):
        return ctx.saved_tensors[0]


class Square(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return Scaled.apply(g, ctx.saved_tensors[0])


class Scaled(Function):
    """The backward of another, with a backward of its own."""

    @staticmethod
    def forward(ctx, g, x):
        ctx.save_for_backward(g, x)
        return 2 * g * x

    @staticmethod
    def backward(ctx, gg):
        g, x = ctx.saved_tensors
        return 2 * gg * x, 2 * gg * g


class Outer(Function):
    """Another function within the forward, of which only the forward matters."""

    @staticmethod
    def forward(ctx, x):
        ctx.sizes = [x.shape[0], 1]
        return Exp.apply(x) + Straight.apply(x, 4)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.sizes[0] * SCALE * WEIGHT


class Surrogate(Function):
    """A spike: class attributes, a method of its own, a tensor that is no argument."""

    slope = 10.0

    @staticmethod
    def derivative(x):
        return 1 / (Surrogate.slope * x.abs() + 1.0) ** 2

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x > 0).float().to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        return g * Surrogate.derivative(ctx.saved_tensors[0])


class Dropped(Function):
    """Random numbers in the forward."""

    @staticmethod
    def forward(ctx, x, p):
        mask = torch.rand_like(x) > p
        ctx.scale = 1 / (1 - p)
        ctx.save_for_backward(mask)
        return x * mask * ctx.scale

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return g * mask * ctx.scale, None


class Shaped(Function):
    """A gradient of a shape that autograd sums up to the input's."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.shape = y.shape
        return x + y

    @staticmethod
    def backward(ctx, g):
        return g.expand(ctx.shape), g


def x(rows: int = 3, seed: int = 0, grad: bool = True) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 4, generator=generator).requires_grad_(grad)


@dataclass(frozen=True)
class Case:
    """`twice`: its gradients can be differentiated as well."""

    function: Callable[..., Any]
    inputs: Callable[[], tuple[Tensor, ...]] = lambda: (x(),)
    twice: bool = True
    graphs: int = 1


def loop(a: Tensor) -> Tensor:
    for n in range(3):
        a = Clipped.apply(a * 1.5, -0.5, 0.5 + n)
    return a


def frozen(a: Tensor, weight: Tensor) -> Tensor:
    return Linear.apply(a, weight, None)


def quiet(a: Tensor) -> Tensor:
    with torch.no_grad():
        b = Exp.apply(a)
    return a * b


def mixed(a: Tensor) -> tuple[Tensor, Tensor]:
    s, c = TwoUnused.apply(a)
    return s * 2, c


def nested_in_backward(a: Tensor) -> Tensor:
    return Square.apply(a).sin()


class Overwriting(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g.mul_(2)


CASES = {
    "straight": Case(lambda a: Straight.apply(a * 2, 8).sin()),
    "clipped": Case(lambda a: Clipped.apply(a, -0.5)),
    "clipped in a loop": Case(loop),
    "own result": Case(lambda a: Exp.apply(a) * Exp.apply(a * 0.5)),
    "linear": Case(
        lambda a, w, b: Linear.apply(a, w, b), lambda: (x(), x(2, 1), x(1, 2)[0, :2].detach())
    ),
    "linear, bias wanted": Case(
        lambda a, w, b: Linear.apply(a, w, b),
        lambda: (x(), x(2, 1), x(1, 2)[0, :2].detach().requires_grad_()),
    ),
    "weight frozen": Case(frozen, lambda: (x(), x(2, 1, grad=False))),
    "input frozen": Case(frozen, lambda: (x(grad=False), x(2, 1))),
    "nothing wanted": Case(frozen, lambda: (x(grad=False), x(2, 1, grad=False))),
    "not differentiable": Case(lambda a: Sorted.apply(a)),
    "first of two": Case(lambda a: TwoUnused.apply(a)[0]),
    "both of two": Case(mixed),
    "not materialized": Case(lambda a: Bare.apply(a) + 1),
    "dirty": Case(lambda a: InPlace.apply(a * 1)),
    "view of an intermediate": Case(lambda a: Reversal.apply(a * 2, 0.3).sin()),
    "view of an input": Case(lambda a: Reversal.apply(a, 0.3) * 2),
    "as it is": Case(lambda a: Same.apply(a) * 2),
    "once": Case(lambda a: Once.apply(a), twice=False),
    "two parts": Case(lambda a, b: Product.apply(a, b), lambda: (x(), x(seed=1))),
    "two parts, named": Case(
        lambda a, b: Product.apply(a, y=b, scale=4.0), lambda: (x(), x(seed=1))
    ),
    "constant": Case(lambda a: Constant.apply(a) * 2),
    "nested in the backward": Case(nested_in_backward),
    "nested in the forward": Case(lambda a: Outer.apply(a).sin()),
    "no grad": Case(quiet),
    "surrogate": Case(lambda a: Surrogate.apply(a - 0.1) * a),
    "writes to the gradient": Case(lambda a: Overwriting.apply(a) * 2),
    "summed": Case(lambda a, b: Shaped.apply(a, b), lambda: (x(1), x())),
}
