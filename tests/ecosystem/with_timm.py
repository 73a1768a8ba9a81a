"""timm: image models, in inference with another batch size, and trained.

timm imports torchvision for transforms that models do not use. The torchvision of a package index
fits one build of torch only, so where there is none a stand-in is imported in its place.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

import torch

from .case import Tag, case
from .training import train


class _AnyName(type):
    """A class all of whose attributes exist."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _StandIn(ModuleType):
    """A package in which every name is a class that nothing is an instance of."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _AnyName(name, (), {})
        setattr(self, name, value)
        return value


def _stand_in_for(*names: str) -> None:
    """Packages before what is in them."""
    for name in names:
        sys.modules[name] = _StandIn(name)
        package, _, own = name.rpartition(".")
        if package:
            setattr(sys.modules[package], own, sys.modules[name])


if importlib.util.find_spec("torchvision") is None:
    _stand_in_for(
        "torchvision",
        "torchvision.ops",
        "torchvision.ops.misc",
        "torchvision.transforms",
        "torchvision.transforms.functional",
        "torchvision.datasets",
    )

import timm  # noqa: E402


def _classify(tag: Tag, name: str, dtype: torch.dtype = torch.float32, **sizes: Any) -> Any:
    """Two batch sizes in inference, then two steps of training."""
    model = tag(timm.create_model(name, pretrained=False, num_classes=5, **sizes).to(dtype))
    size = sizes.get("img_size", 64)

    def images(count: int) -> torch.Tensor:
        return torch.randn(count, 3, size, size, dtype=dtype)

    with torch.no_grad():
        answers = [model.eval()(images(count)) for count in (2, 3)]
    return answers, train(model.train(), [images(4) for _ in range(2)])


@case("timm", "resnet", rtol=2e-3)
def resnet(tag: Tag) -> Any:
    return _classify(tag, "resnet10t")


@case("timm", "vision transformer, drop path")
def vision_transformer(tag: Tag) -> Any:
    return _classify(
        tag, "vit_tiny_patch16_224", img_size=32, depth=2, drop_path_rate=0.2, drop_rate=0.1
    )


@case("timm", "efficientnet", rtol=1e-6)
def efficientnet(tag: Tag) -> Any:
    """In doubles: at the corners of its relu6, rounding decides about gradients of single precision
    (eager's own second loss is off by 1e-2 with the images' channels last).
    """
    return _classify(tag, "efficientnet_lite0", torch.float64, drop_path_rate=0.0)
