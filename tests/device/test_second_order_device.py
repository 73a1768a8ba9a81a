"""create_graph=True on a GPU: eager's gradients of gradients, its draws too, beside CUDA graphs."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import jitmagic

pytestmark = [
    pytest.mark.device,
    pytest.mark.filterwarnings("ignore:.*op by op:jitmagic.errors.FallbackWarning"),
]
grad = torch.autograd.grad


def penalty(model, x, seed: int = 0):
    """The gradient penalty of a critic, its gradients, and what the generator gives next."""
    torch.manual_seed(seed)
    x = x.clone().requires_grad_()
    (slope,) = grad(model(x).sum(), x, create_graph=True)
    loss = (slope.flatten(1).norm(2, dim=1) - 1).pow(2).mean()
    made = grad(loss, list(model.parameters()), allow_unused=True)
    return [loss, *(g for g in made if g is not None), torch.rand(3, device=x.device)]


def networks() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    torch.manual_seed(1)
    mlp = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 1))
    drawn = nn.Sequential(nn.Linear(4, 16), nn.Softplus(), nn.Dropout(0.5), nn.Linear(16, 1))
    critic = nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.SiLU(), nn.Flatten(), nn.Linear(64, 1)
    )
    points, images = torch.randn(8, 4).cuda(), torch.randn(8, 1, 8, 8).cuda()
    return {"mlp": (mlp, points), "dropout": (drawn, points), "conv": (critic, images)}


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("name", ["mlp", "dropout", "conv"])
def test_a_gradient_penalty(name, mode):
    model, x = networks()[name]
    model = model.cuda()
    compiled = jitmagic.jit(copy.deepcopy(model), mode=mode)
    for seed in range(4):
        for a, e in zip(penalty(compiled, x, seed), penalty(model, x, seed), strict=True):
            torch.testing.assert_close(a, e, rtol=1e-3, atol=1e-4)


def test_under_autocast():
    model, x = networks()["mlp"]
    model = model.cuda()
    compiled = jitmagic.jit(copy.deepcopy(model))

    def cast(model):
        def run(x):
            with torch.autocast("cuda", torch.bfloat16):
                return model(x).float()

        run.parameters = model.parameters
        return run

    for a, e in zip(penalty(cast(compiled), x), penalty(cast(model), x), strict=True):
        torch.testing.assert_close(a, e, rtol=5e-2, atol=5e-2)


def test_a_captured_training_step_still_captures():
    """The generator's state cannot be read then, and nobody asks for it."""
    x = torch.randn(8, 8, device="cuda", requires_grad=True)
    compiled = jitmagic.jit(lambda x: F.dropout(x.sin(), 0.5) * 2)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            grad(compiled(x).sum(), x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (made,) = grad(compiled(x).sum(), x)
    graph.replay()
    torch.cuda.synchronize()
    kept = made != 0
    torch.testing.assert_close(made[kept], (4 * x.cos())[kept])
    assert 0.2 < kept.float().mean() < 0.8
