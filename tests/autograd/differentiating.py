"""Ways to differentiate a loss, and comparisons of all that can be seen afterwards."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["Seen", "assert_same", "once", "parts", "twice", "with_second_derivatives"]

Seen = list[Any]


def once(loss: Tensor, x: Tensor, w: Tensor) -> Any:
    loss.backward()


def twice(loss: Tensor, x: Tensor, w: Tensor) -> Any:
    loss.backward(retain_graph=True)
    loss.backward()


def with_second_derivatives(loss: Tensor, x: Tensor, w: Tensor) -> Any:
    first = torch.autograd.grad(loss, (x, w), create_graph=True)
    sum(one.square().sum() for one in first).backward()
    return [one.detach() for one in first]


def parts(value: Any) -> list[Any]:
    if isinstance(value, Tensor):
        gradient = value.grad if value.is_leaf or value.retains_grad else None
        return [value.detach().clone(), *parts(gradient)]
    if isinstance(value, (list, tuple)):
        return [part for item in value for part in parts(item)]
    if callable(value):
        return [value()]
    return [type(value) if hasattr(value, "remove") else value]


def assert_same(found: list[Any], wanted: list[Any]) -> None:
    assert len(found) == len(wanted)
    for have, want in zip(found, wanted, strict=True):
        if isinstance(want, Tensor):
            torch.testing.assert_close(have, want, rtol=1e-5, atol=1e-6)
        else:
            assert have == want
