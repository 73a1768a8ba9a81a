"""What is measured: each case makes its contestants on a device, eager first.

Sizes are part of the case's title. torch.compile, JAX and numba appear where they are installed and
have an equivalent program; each contestant computes the same thing on the same data. "graphs" is
mode="reduce-overhead": CUDA graphs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import jitmagic
from demos.models import CharGPT, Classifier, Text, digits, fused

Contestants = dict[str, Callable[[], object]]
DYNAMIC = "jitmagic, dynamic"  # a contestant of `--dynamic` alone


@dataclass(frozen=True)
class Case:
    """A title with sizes, and device -> contestants. `limit`: the promised ratio to eager. `grad`:
    whether autograd is on; it is switched once, around all calls, as an inference loop does.
    """

    title: str
    make: Callable[[torch.device], Contestants]
    limit: float | None = None
    versus: str = "eager"  # whom the promise is made against
    grad: bool = True


def _copied(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function of its own, for a second jit."""
    assert isinstance(fn, FunctionType)
    return FunctionType(fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)


def _functions(fn: Callable[..., Any], args: tuple[Any, ...]) -> Contestants:
    ours, theirs = jitmagic.jit(fn), torch.compile(fn)
    dynamic = jitmagic.jit(_copied(fn), dynamic=True)
    return {
        "eager": lambda: fn(*args),
        "jitmagic": lambda: ours(*args),
        DYNAMIC: lambda: dynamic(*args),
        "torch.compile": lambda: theirs(*args),
    }


def _small_fused(device: torch.device) -> Contestants:
    x, y = torch.randn(8, 64, device=device), torch.randn(8, 64, device=device)
    made = _functions(fused, (x, y))
    if device.type == "cpu":
        made.update(_jax_fused(x, y))
        made.update(_numba_fused(x, y))
    return made


def _jax_fused(x: torch.Tensor, y: torch.Tensor) -> Contestants:
    if find_spec("jax") is None:
        return {}
    import jax
    import jax.numpy as jnp

    run = jax.jit(lambda a, b: jnp.maximum(a * b + 2, 0).sum(-1))
    a, b = jnp.asarray(x.numpy()), jnp.asarray(y.numpy())
    return {"jax": lambda: run(a, b).block_until_ready()}


def _numba_fused(x: torch.Tensor, y: torch.Tensor) -> Contestants:
    if find_spec("numba") is None:
        return {}
    import numba
    import numpy as np

    @numba.njit(fastmath=False)
    def run(a: Any, b: Any) -> Any:
        out = np.zeros(a.shape[0], a.dtype)
        for i in range(a.shape[0]):
            for j in range(a.shape[1]):
                out[i] += max(a[i, j] * b[i, j] + 2, 0)
        return out

    a, b = x.numpy(), y.numpy()
    return {"numba": lambda: run(a, b)}


def _small_fused_grad(device: torch.device) -> Contestants:
    x = torch.randn(8, 64, device=device, requires_grad=True)
    y = torch.randn(8, 64, device=device, requires_grad=True)
    ones = torch.ones(8, device=device)

    def step(fn: Callable[..., Any]) -> Callable[[], object]:
        def run() -> None:
            x.grad = y.grad = None
            fn(x, y).backward(ones)

        return run

    contestants = {
        "eager": fused,
        "jitmagic": jitmagic.jit(fused),
        DYNAMIC: jitmagic.jit(_copied(fused), dynamic=True),
        "torch.compile": torch.compile(fused),
    }
    return {name: step(fn) for name, fn in contestants.items()}


def _models(model: nn.Module) -> dict[str, nn.Module]:
    made = {
        "eager": model,
        "jitmagic": jitmagic.jit(copy.deepcopy(model)),
        DYNAMIC: jitmagic.jit(copy.deepcopy(model), dynamic=True),
        "torch.compile": torch.compile(copy.deepcopy(model)),
    }
    if next(model.parameters()).is_cuda:
        graphs = "reduce-overhead"
        made["jitmagic, graphs"] = jitmagic.jit(copy.deepcopy(model), mode=graphs)
        made["torch.compile, graphs"] = torch.compile(copy.deepcopy(model), mode=graphs)
    return made


def _inference(model: nn.Module, *inputs: torch.Tensor) -> Contestants:
    def call(target: nn.Module) -> Callable[[], object]:
        return lambda: target(*inputs)

    return {name: call(target) for name, target in _models(model.eval()).items()}


def _training(
    model: nn.Module, loss: Callable[..., torch.Tensor], *batch: torch.Tensor
) -> Contestants:
    """The whole step is tagged: forward, loss, backward and the optimizer's update."""

    def step(target: nn.Module) -> Callable[[], object]:
        optimizer = torch.optim.Adam(target.parameters())

        def run() -> None:
            optimizer.zero_grad()
            loss(target, *batch).backward()
            optimizer.step()

        return run

    model.train()
    return {
        "eager": step(copy.deepcopy(model)),
        "jitmagic": jitmagic.jit(step(copy.deepcopy(model))),
        DYNAMIC: jitmagic.jit(step(copy.deepcopy(model)), dynamic=True),
        "torch.compile": torch.compile(step(copy.deepcopy(model))),
    }


def _classifier_loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y)


def _language_loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def _digits(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = next(digits(1))
    return images.to(device), labels.to(device)


def _mlp_inference(device: torch.device) -> Contestants:
    torch.manual_seed(0)
    return _inference(Classifier().to(device), _digits(device)[0])


def _mlp_training(device: torch.device) -> Contestants:
    torch.manual_seed(0)
    return _training(Classifier().to(device), _classifier_loss, *_digits(device))


def _gpt(device: torch.device) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    text = Text()
    x, y = next(text.batches(1))
    return CharGPT(len(text.characters)).to(device), x.to(device), y.to(device)


def _gpt_training(device: torch.device) -> Contestants:
    model, x, y = _gpt(device)
    return _training(model, _language_loss, x, y)


def _gpt_inference(device: torch.device) -> Contestants:
    model, x, _ = _gpt(device)
    return _inference(model, x)


def _size(device: torch.device) -> int:
    return 2048 if device.type == "cpu" else 8192


def _pointwise(device: torch.device) -> Contestants:
    def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.gelu(torch.sin(x) * torch.cos(y) + torch.exp(-x * x)) * y + x

    n = _size(device)
    return _functions(chain, (torch.randn(n, n, device=device), torch.randn(n, n, device=device)))


def _softmax(device: torch.device) -> Contestants:
    n = _size(device)
    return _functions(lambda x: torch.softmax(x, -1), (torch.randn(n, n, device=device),))


def _layer_norm(device: torch.device) -> Contestants:
    n = _size(device)
    x, weight, bias = (torch.randn(*shape, device=device) for shape in ((n, n), (n,), (n,)))
    return _functions(lambda x, w, b: F.layer_norm(x, (x.shape[-1],), w, b), (x, weight, bias))


CASES = [
    Case("relu(x*y+2).sum(-1), 8x64", _small_fused, 0.2),
    Case("the same, forward and backward", _small_fused_grad, 0.6),
    Case("MLP 784-256-128-10 inference, batch 32", _mlp_inference, 0.5, grad=False),
    Case("MLP training step with Adam, batch 32", _mlp_training, 0.7),
    Case("gelu(sin(x)*cos(y)+exp(-x*x))*y+x, n x n", _pointwise, 1.0, "torch.compile"),
    Case("softmax over rows, n x n", _softmax, 0.8, "torch.compile"),
    Case("layer norm over rows, n x n", _layer_norm, 0.8, "torch.compile"),
    Case("character GPT inference, 4 layers, batch 16x64", _gpt_inference, grad=False),
    Case("character GPT training step, 4 layers, batch 16x64", _gpt_training),
]
