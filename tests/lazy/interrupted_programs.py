"""Programs whose recording is interrupted: by exceptions, nested blocks, threads, printing, NumPy,
writes by index and optimizers written by hand.
"""

from __future__ import annotations

import contextlib
import io
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jitmagic

from .programs import program, randn
from .stateful_programs import seeded


@program
def adam_by_hand(dtype: torch.dtype) -> Any:
    weight = randn(6, 3, dtype=dtype).requires_grad_()
    mean, square = torch.zeros_like(weight), torch.zeros_like(weight)
    losses = []
    for step in range(1, 6):
        rate, beta1, beta2 = 0.1 / step, 0.9, 0.99
        loss = (randn(4, 6, dtype=dtype, seed=step) @ weight).square().mean()
        (grad,) = torch.autograd.grad(loss, weight)
        with torch.no_grad():
            mean = beta1 * mean + (1 - beta1) * grad
            square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            unbiased = square / (1 - beta2**step)
            weight -= rate / (1 - beta1**step) * mean / (unbiased.sqrt() + 1e-8)
        losses.append(loss.detach())
    return losses, weight, mean, square


@program
def moving_average_of_parameters(dtype: torch.dtype) -> Any:
    model = seeded(nn.Linear(4, 2), dtype)
    average = {name: value.detach().clone() for name, value in model.named_parameters()}
    for step in range(4):
        decay = 1 - 1 / (step + 2)
        model(randn(3, 4, dtype=dtype, seed=step)).sum().backward()
        with torch.no_grad():
            for name, value in model.named_parameters():
                assert value.grad is not None
                value.sub_(value.grad, alpha=0.1 / (step + 1))
                average[name].lerp_(value, 1 - decay)
        model.zero_grad()
    return list(average.values())


@program
def exception_in_the_middle(dtype: torch.dtype) -> Any:
    y, found = randn(4, dtype=dtype) * 2, []
    for number in range(3):
        try:
            y = y + number
            if float(y.sum()) > -1e9 and number == 1:
                raise KeyError(number)
            y.mul_(2)
        except KeyError as error:
            found.append(str(error))
            y = y - 1
    return y, found


@program
def error_of_data_in_the_middle(dtype: torch.dtype) -> Any:
    x, rows = randn(3, 4, dtype=dtype), torch.tensor([0, 9])
    before = x * 2
    try:
        float(x[rows].sum())
    except IndexError as error:
        text = str(error).partition(" (recorded")[0]
    return before, text, before + 1


@program
def nested_blocks(dtype: torch.dtype) -> Any:
    x = randn(5, dtype=dtype)
    y = x * 2
    with jitmagic.lazy():
        z = y.exp()
        with contextlib.suppress(ZeroDivisionError), jitmagic.lazy():
            z = z + 1
            _ = 1 // 0
        y.add_(z)
    return y, z, y * z


def chunks(x: Tensor) -> Iterator[Tensor]:
    total = torch.zeros_like(x[0])
    for row in x:
        total = total + row
        yield total


@program
def generator_that_yields_tensors(dtype: torch.dtype) -> Any:
    parts = chunks(randn(4, 3, dtype=dtype))
    first = next(parts) * 2
    return first, [part.sum() for part in parts]


@program
def reads_from_other_threads(dtype: torch.dtype) -> Any:
    y, found = randn(8, dtype=dtype).exp(), []
    thread = threading.Thread(target=lambda: found.append((y * 2).sum().item()))
    thread.start()
    thread.join()
    return y + 1, found


@program
def printing_in_a_loop(dtype: torch.dtype) -> Any:
    y = torch.arange(4).to(dtype)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        for step in range(3):
            y = y * 2 + step
            print(f"step {step}: {y.int()} {y.sum():.0f} {y.shape}")
        print(repr(y.bool()), [y[0] > 1], y.tolist())
    return out.getvalue()


@program
def warnings_are_eagers(dtype: torch.dtype) -> Any:
    x = randn(2, 3, dtype=dtype)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loss = F.mse_loss(x * 2, x[:1] * 3)
    return loss, [(one.category.__name__, str(one.message)[:60]) for one in caught]


@program
def numpy_both_ways(dtype: torch.dtype) -> Any:
    y = randn(3, 4, dtype=dtype).cos()
    array = np.tanh(y.numpy()) + 1
    z = torch.from_numpy(array) * 2
    array *= 0
    return z, torch.as_tensor(array) + z, float(np.sum(array)), torch.tensor(np.float32(2)) * y


@program
def writes_by_index(dtype: torch.dtype) -> Any:
    y = randn(5, 4, dtype=dtype) * 2
    y[torch.tensor([0, 3])] = 1.5
    y[:, 1] += y[:, 2]
    y[y > 1] = 0
    y[1:3, ::2].mul_(-1)
    y.index_put_((torch.tensor([4, 4]), torch.tensor([0, 0])), y[0, :2] * 1, accumulate=True)
    y.scatter_(0, torch.zeros(1, 4, dtype=torch.int64), 7.0)
    y.fill_diagonal_(3)
    return y, y.masked_fill(y < 0, -1.0), y.index_add(0, torch.tensor([1]), y[:1])


@program
def writes_through_views_of_views(dtype: torch.dtype) -> Any:
    y = randn(4, 6, dtype=dtype).sin()
    inner = y.view(2, 2, 6)[:, 1].t()[1:5:2]
    same, flat = inner.T, y.view(-1)
    inner += 10
    flat[::5] = 0
    same.neg_()
    return y, inner, same, flat, same.data_ptr() == inner.data_ptr(), inner._is_view()


@program
def versions_and_history(dtype: torch.dtype) -> Any:
    x = randn(4, dtype=dtype).requires_grad_()
    y = x * 2
    z = y.view(2, 2)
    z.mul_(3)
    (y * y.detach()).sum().backward()
    return y, z, x.grad, y._version, z.grad_fn is not None and z.grad_fn.name(), y.is_leaf


@program
def double_backward_with_accumulation(dtype: torch.dtype) -> Any:
    w, x = randn(4, dtype=dtype).requires_grad_(), randn(3, 4, dtype=dtype, seed=1)
    for scale in (0.5, 0.25, 0.125):
        loss = ((x @ w).tanh() * scale).sum()
        (grad,) = torch.autograd.grad(loss, w, create_graph=True)
        (loss + grad.square().sum()).backward()
    return w.grad, loss


@program
def inference_tensors(dtype: torch.dtype) -> Any:
    with torch.inference_mode():
        x = randn(4, dtype=dtype) * 2
        x.add_(1)
    with torch.no_grad():
        y = (x + 1).requires_grad_()
    (y * y).sum().backward()
    return x.is_inference(), x * 3, y.grad, y.is_inference()


@program
def random_streams(dtype: torch.dtype) -> Any:
    own = torch.Generator().manual_seed(5)
    torch.manual_seed(6)
    x = randn(6, dtype=dtype) * 2
    noise = torch.randn(6, generator=own, dtype=dtype)
    with torch.random.fork_rng():
        inside = torch.rand(3, dtype=dtype) + 1
    kept = F.dropout(x, 0.5) + torch.randn_like(x)
    x.normal_(generator=own).mul_(2)
    return x, noise * 2, inside, kept, torch.randperm(5), own.get_state()


@program
def module_with_buffers_and_hooks(dtype: torch.dtype) -> Any:
    model = seeded(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.PReLU()), dtype)
    seen: list[Any] = []
    model[0].register_forward_hook(lambda module, args, out: seen.append(out.mean()) or out * 1.5)
    model[0].weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum()))
    for size in (5, 5, 3):  # a short last batch
        model(randn(size, 4, dtype=dtype, seed=size)).square().mean().backward()
    model.eval()
    return model(randn(2, 4, dtype=dtype)), seen, list(model.state_dict().values())


@program
def values_decide_shapes(dtype: torch.dtype) -> Any:
    y = randn(4, 5, dtype=dtype) * 2
    count = int((y > 0).sum())
    return y.flatten()[:count] + 1, y.nonzero().shape, y[y > 0].sum(), y.repeat(1, count % 3 + 1)
