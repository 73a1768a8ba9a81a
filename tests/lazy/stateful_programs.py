"""Programs with random numbers, gradients, optimizers, modes and tagged functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jitmagic

from .programs import program, randn


def seeded(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    for number, parameter in enumerate(module.parameters()):
        with torch.no_grad():
            parameter.copy_(randn(*parameter.shape, dtype=torch.float64, seed=number) * 0.2)
    return module.to(dtype)


# ----------------------------------------------------------------------------------------- random


@program
def random_order(dtype: torch.dtype) -> Any:
    torch.manual_seed(3)
    a = torch.randn(4, dtype=dtype) * 2
    b = torch.rand(4, dtype=dtype) + a
    torch.manual_seed(3)
    c = torch.randn(4, dtype=dtype)
    return (
        a,
        b,
        c,
        torch.randint(0, 9, (3,)) * 2,
        torch.bernoulli(b.sigmoid()),
        torch.get_rng_state(),
    )


@program
def dropout(dtype: torch.dtype) -> Any:
    torch.manual_seed(4)
    x = randn(8, 8, dtype=dtype).requires_grad_()
    y = F.dropout(x.relu(), 0.5)
    y.sum().backward()
    return y, x.grad


# ---------------------------------------------------------------------------------------- autograd


@program
def gradients(dtype: torch.dtype) -> Any:
    x, w = randn(6, 4, dtype=dtype), randn(4, dtype=dtype, seed=1).requires_grad_()
    loss = ((x @ w).sigmoid() - 0.5).pow(2).mean()
    (grad,) = torch.autograd.grad(loss, w, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), w)
    return loss, grad, second


@program
def hooks_and_accumulation(dtype: torch.dtype) -> Any:
    w, seen = randn(4, dtype=dtype).requires_grad_(), []
    w.register_hook(lambda grad: seen.append(grad * 2))
    for scale in (1.0, 2.0):
        (w.exp() * scale).sum().backward()
    return w.grad, seen


@program
def saved_tensor_written(dtype: torch.dtype) -> Any:
    x = randn(4, dtype=dtype).requires_grad_()
    y = x.exp()
    y.add_(1)
    try:
        y.sum().backward()
    except RuntimeError as error:
        return "modified by an inplace operation" in str(error)
    return None


@program
def custom_function(dtype: torch.dtype) -> Any:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return grads[0] * 2 + ctx.saved_tensors[0]

    x = randn(4, dtype=dtype).requires_grad_()
    y = Double.apply(x * 1)
    y.sum().backward()
    return y, x.grad


def train(model: nn.Module, optimizer: torch.optim.Optimizer, dtype: torch.dtype, size: int) -> Any:
    losses = []
    for step in range(3):
        x = randn(8, size, dtype=dtype, seed=10 + step)
        loss = F.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses, list(model.parameters()), list(model.buffers())


@program
def training_sgd(dtype: torch.dtype) -> Any:
    model = seeded(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)), dtype)
    return train(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), dtype, 6)


@program
def training_adam(dtype: torch.dtype) -> Any:
    model = seeded(
        nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 1)), dtype
    )
    return train(model, torch.optim.AdamW(model.parameters(), lr=0.01), dtype, 6)


@program
def training_batch_norm(dtype: torch.dtype) -> Any:
    model = seeded(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)), dtype)
    return train(model, torch.optim.SGD(model.parameters(), lr=0.05, foreach=True), dtype, 6)


@program
def transformer_layer(dtype: torch.dtype) -> Any:
    layer = seeded(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), dtype)
    y = layer(randn(2, 5, 8, dtype=dtype))
    y.square().mean().backward()
    evaluated = layer.eval()(randn(2, 5, 8, dtype=dtype))
    return y, evaluated, [parameter.grad for parameter in layer.parameters()]


@program
def recurrent(dtype: torch.dtype) -> Any:
    cell = seeded(nn.LSTM(4, 5), dtype)
    y, (h, c) = cell(randn(3, 2, 4, dtype=dtype))
    (y.sum() + h.sum()).backward()
    return y, h, c, [parameter.grad for parameter in cell.parameters()]


# ----------------------------------------------------------------------------------- modes and jit


@program
def grad_modes(dtype: torch.dtype) -> Any:
    w = randn(4, dtype=dtype).requires_grad_()
    with torch.no_grad():
        a = w * 2
    with torch.inference_mode():
        b = (w * 3).reshape(2, 2) + 1
    c = w * a
    return a.requires_grad, b.is_inference(), b, c, c.requires_grad


@program
def autocast(dtype: torch.dtype) -> Any:
    x, w = randn(8, 8, dtype=torch.float32), randn(8, 8, dtype=torch.float32, seed=1)
    with torch.autocast("cpu", torch.bfloat16):
        y = x @ w
        z = y.softmax(-1)
    return y.dtype, z.dtype, y.float().round(decimals=1).sum() > -1e9


@program
def function_transforms(dtype: torch.dtype) -> Any:
    x = randn(4, 3, dtype=dtype)
    per_row = torch.vmap(lambda row: (row * 2).sin().sum())(x)
    return per_row, torch.func.grad(lambda t: t.exp().sum())(x), torch.func.jacrev(torch.sin)(x[0])


@jitmagic.jit
def tagged(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    return (x * y).relu()


@program
def calls_tagged_function(dtype: torch.dtype) -> Any:
    x = randn(4, dtype=dtype)
    y = x * 2
    z = tagged(x, y) + 1
    return x, y, z, tagged(y, z)


@program
def default_dtype_changes(dtype: torch.dtype) -> Any:
    n = torch.arange(3)
    a = n / 2
    torch.set_default_dtype(torch.float64)
    try:
        b = n / 2
    finally:
        torch.set_default_dtype(torch.float32)
    return a, b, n / 2


@program
def foreach_and_lists(dtype: torch.dtype) -> Any:
    tensors = [randn(3, dtype=dtype, seed=i) for i in range(3)]
    doubled = torch._foreach_mul(tensors, 2.0)
    torch._foreach_add_(tensors, 1.0)
    torch._foreach_add_(doubled, tensors)
    return tensors, doubled


@program
def errors_are_eagers(dtype: torch.dtype) -> Any:
    x, found = randn(3, 4, dtype=dtype), []
    calls: list[Callable[[], object]] = [
        lambda: x @ x,
        lambda: (x * 2).view(5),
        lambda: (x + 1)[7],
        lambda: torch.cat([x, x[:, :1]]),
        lambda: (x * 2).add_(torch.ones(2, 3, 4, dtype=dtype)),
        lambda: (x.long() + 1).mean(),
    ]
    for call in calls:
        try:
            call()
        except Exception as error:
            found.append((type(error), str(error)))
    return found, x + 1
