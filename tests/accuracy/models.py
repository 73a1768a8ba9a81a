"""Gradients of networks with batch norm against float64.

In: timm, importable. Out: a Row per model: the error of the whole gradient, relative to it, in the
geometric mean over the seeds. Where an activation lies within rounding of a corner of ReLU or
ReLU6, the gradient jumps by 1e-3 to 1e-2, in eager as well; which seeds jump is chance (of dpn48b
nearly all, of rexnet_100 a third). `smooth`: SiLU in their place, which leaves the roundings.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jitmagic

from .measure import Row

__all__ = ["MODELS", "measure_model"]

MODELS = ("efficientnet_lite0", "mobilenetv2_050", "dpn48b", "rexnet_100")
CLASSES, BATCH, SIDE = 10, 4, 64
Loss = Callable[[Tensor, Tensor], Tensor]


def measure_model(
    name: str, seeds: int, device: str = "cpu", smooth: bool = False, **options: object
) -> Row:
    """Weights, images and labels are drawn anew for each seed; the model is compiled once."""
    import timm  # noqa: PLC0415 - not among the requirements of the tests

    torch.backends.cudnn.allow_tf32 = False
    model: nn.Module = timm.create_model(name, num_classes=CLASSES).train().to(device)
    _alike_in_every_dtype(model, smooth)
    jitted = jitmagic.jit(_loss(model), options={"keep": "compiled", **options})
    eager, ours = [], []
    for seed in range(seeds):
        torch.manual_seed(seed)
        fresh = timm.create_model(name, num_classes=CLASSES).state_dict()
        images = torch.randn(BATCH, 3, SIDE, SIDE).to(device)
        labels = torch.randint(0, CLASSES, (BATCH,)).to(device)
        model.load_state_dict(fresh)
        wide = copy.deepcopy(model).double()
        exact = _gradient(_loss(wide), wide, images.double(), labels)
        for loss, errors in ((_loss(model), eager), (jitted, ours)):
            model.load_state_dict(fresh)
            got = _gradient(loss, model, images, labels)
            errors.append(float((got - exact).norm() / exact.norm()))
    unit = torch.finfo(torch.float32).eps
    title = f"{name}, gradient{', smooth' if smooth else ''}"
    return Row(title, _geomean(eager), _geomean(ours), unit)


def _alike_in_every_dtype(model: nn.Module, smooth: bool) -> None:
    """No dropout, whose masks float64 would draw otherwise, and no corners if `smooth`."""
    for module in list(model.modules()):
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, child in module.named_children():
            if smooth and isinstance(child, nn.ReLU | nn.ReLU6):
                setattr(module, name, nn.SiLU())


def _loss(model: nn.Module) -> Loss:
    return lambda images, labels: F.cross_entropy(model(images), labels)


def _gradient(loss: Loss, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    model.zero_grad()
    loss(images, labels).backward()
    found = [p.grad for p in model.parameters() if p.grad is not None]
    return torch.cat([grad.double().flatten() for grad in found])


def _geomean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))
