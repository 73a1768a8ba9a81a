"""torch.func in traced code: each transform of each function is one graph and equals eager: values,
gradients through it, mutations, random numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vjp, vmap

import jitmagic
from tests.covering import covered

from ..harness import Program, check

Function = Callable[[Tensor, Tensor], Tensor]

# -- functions of a row x[3] (or rows) and w[3, 4] -------------------------------------------------


def tanh(x: Tensor, w: Tensor) -> Tensor:
    return torch.tanh(x @ w)


def softmax(x: Tensor, w: Tensor) -> Tensor:
    y = (x @ w).softmax(-1)
    return y * y.shape[-1] + y.dim()


def in_place(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    y.mul_(2).add_(1)
    y[..., 0] = y[..., 1]
    return y * y


def without_gradients(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    with torch.no_grad():
        scale = y.sigmoid()
    return scale * y + y.detach().exp()


def normalized(x: Tensor, w: Tensor) -> Tensor:
    y = F.gelu(x @ w)
    z = F.layer_norm(y, (4,)) * y + y
    return torch.where(z > 0, z, z * 0.1).flip(-1)


def around(x: Tensor, w: Tensor) -> Tensor:
    """Read a tensor from outside the transform, and unroll a loop."""
    y = x @ w
    for n in range(2):
        y = torch.sin(y + OUTSIDE * n)
    return y


def indexed(x: Tensor, w: Tensor) -> Tensor:
    y = (x @ w)[..., torch.tensor((2, 0, 2))]
    return torch.cat([y, y.cumsum(-1)[..., :1]], -1)


FUNCTIONS: list[Function] = [
    tanh, softmax, in_place, without_gradients, normalized, around, indexed,
]  # fmt: skip
OUTSIDE = torch.linspace(-1, 1, 4)

# -- transforms ------------------------------------------------------------------------------------


class Pair(NamedTuple):
    row: Tensor
    weight: Tensor


def _scalar(f: Function) -> Function:
    return lambda x, w: f(x, w).pow(2).sum()


def grad_first(f: Function) -> Any:
    return lambda x, w: grad(_scalar(f))(x, w)


def grad_both(f: Function) -> Any:
    return lambda x, w: grad(_scalar(f), argnums=(1, 0))(x, w)


def grad_of_dict(f: Function) -> Any:
    def loss(p: dict[str, Tensor], scale: float) -> Tensor:
        return _scalar(f)(p["x"], p["w"]) * scale

    return lambda x, w: grad(loss)({"x": x, "w": w}, 0.5)


def grad_with_aux(f: Function) -> Any:
    def loss(pair: Pair) -> Any:
        y = f(*pair)
        return y.sum(), {"y": y, "x": pair.row}

    return lambda x, w: grad_and_value(loss, has_aux=True)(Pair(x, w))


def vmap_rows(f: Function) -> Any:
    return lambda x, w: vmap(f, in_dims=(0, None))(x, w)


def vmap_columns(f: Function) -> Any:
    return lambda x, w: vmap(f, in_dims=(1, None), out_dims=1)(x.t(), w)


def vmap_around(f: Function) -> Any:
    return lambda x, w: vmap(lambda part: {"y": f(part["row"], w)}, in_dims=({"row": 0},))(
        {"row": x}
    )


def vmap_in_chunks(f: Function) -> Any:
    return lambda x, w: vmap(f, in_dims=(0, None), chunk_size=2)(x, w)


def vmap_twice(f: Function) -> Any:
    return lambda x, w: vmap(lambda s: vmap(lambda r: f(r * s, w))(x))(x[:2])


def per_sample(f: Function) -> Any:
    return lambda x, w: vmap(grad(_scalar(f), argnums=1), in_dims=(0, None))(x, w)


def grad_of_vmap(f: Function) -> Any:
    return lambda x, w: grad(lambda w: vmap(f, in_dims=(0, None))(x, w).sum())(w)


def forward_mode(f: Function) -> Any:
    return lambda x, w: jvp(f, (x, w), (x * 2, w.cos()))[1]


def forward_of_rows(f: Function) -> Any:
    return lambda x, w: vmap(lambda r: jvp(lambda r: f(r, w), (r,), (r,))[1])(x)


def pulled(f: Function) -> Any:
    def run(x: Tensor, w: Tensor) -> Any:
        out, pull = vjp(f, x, w)
        return pull(out * 2)

    return run


def pulled_for_each(f: Function) -> Any:
    def run(x: Tensor, w: Tensor) -> Any:
        _, pull = vjp(lambda r: f(r, w), x[0])
        return vmap(pull)(torch.eye(4, dtype=x.dtype))

    return run


def jacobian_reverse(f: Function) -> Any:
    return lambda x, w: jacrev(f, argnums=(0, 1))(x[0], w)


def jacobian_forward(f: Function) -> Any:
    return lambda x, w: jacfwd(f)(x[0], w)


def second_order(f: Function) -> Any:
    return lambda x, w: hessian(_scalar(f))(x[0], w)


def hessian_product(f: Function) -> Any:
    return lambda x, w: jvp(grad(_scalar(f)), (x, w), (w[:, :3].sum() * x, w))[1]


def grad_of_grad(f: Function) -> Any:
    return lambda x, w: grad(lambda x: grad(_scalar(f))(x, w).sin().sum())(x)


def step_then_loss(f: Function) -> Any:
    """Run MAML's inner loop, whose outer derivative contains gradients."""

    def run(x: Tensor, w: Tensor) -> Any:
        fast = w
        for _ in range(2):
            fast = fast - 0.01 * grad(_scalar(f), argnums=1)(x, fast)
        return _scalar(f)(x, fast)

    return run


def made_before(f: Function) -> Any:
    before = vmap(grad(_scalar(f)), (0, None))
    return lambda x, w: before(x, w)


def without_grad_around(f: Function) -> Any:
    def run(x: Tensor, w: Tensor) -> Any:
        with torch.no_grad():
            return grad(_scalar(f))(x, w), vmap(f, (0, None))(x, w)

    return run


TRANSFORMS: list[Any] = [
    grad_first, grad_both, grad_of_dict, grad_with_aux, vmap_rows, vmap_columns, vmap_around,
    vmap_in_chunks, vmap_twice, per_sample, grad_of_vmap, forward_mode, forward_of_rows, pulled,
    pulled_for_each, jacobian_reverse, jacobian_forward, second_order, hessian_product,
    grad_of_grad, step_then_loss, made_before, without_grad_around,
]  # fmt: skip


def _program(transform: Any, function: Function, wanted: bool, backend: str) -> Program:
    def calls() -> Any:
        torch.manual_seed(7)
        return [(torch.randn(4, 3).requires_grad_(wanted), torch.randn(3, 4, requires_grad=wanted))]

    return Program(
        f"{transform.__name__} of {function.__name__}",
        lambda: transform(function),
        calls,
        options={"backend": backend, "fullgraph": True},
    )


@covered(transform=TRANSFORMS, function=FUNCTIONS, backend=["eager", "aot_eager"])
def test_training(transform: Any, function: Function, backend: str) -> None:
    check(_program(transform, function, True, backend))


@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda t: t.__name__)
def test_inference(transform: Any) -> None:
    check(_program(transform, in_place, False, "aot_eager"))


@pytest.mark.parametrize(
    "number", range(0, len(TRANSFORMS), 2), ids=lambda n: TRANSFORMS[n].__name__
)
def test_generated_code(number: int) -> None:
    check(_program(TRANSFORMS[number], FUNCTIONS[number % len(FUNCTIONS)], True, "native"))


def _penalized(x: Tensor) -> Tensor:
    """Numbers precede 0-dim tensors: rules of jvp copy and expand the numbers alone."""
    return 0.01 * (x**2).sum() + (1 - x).max() / 3 + (x**3).sum() - 0.5


NUMBERS = {
    "hessian": hessian(_penalized),
    "forward": jacfwd(_penalized),
    "twice reverse": jacrev(jacrev(_penalized)),
    "rows": vmap(hessian(_penalized)),
    "along": lambda x: jvp(grad(_penalized), (x,), (x.cos(),))[1],
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_before_tensors_of_no_dimension(name: str, backend: str) -> None:
    x = torch.linspace(-1, 2, 8).view(2, 4) if name == "rows" else torch.linspace(-1, 2, 4)
    transformed = NUMBERS[name]
    tagged = jitmagic.jit(lambda x: transformed(x), backend=backend, fullgraph=True)
    torch.testing.assert_close(tagged(x), transformed(x))
