"""The smallest program worth compiling, for tests of what is around a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def chain(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(x * y + 2).sum(-1)


def check_chain(run: Callable[..., Any]) -> None:
    x, y = torch.randn(8, 64), torch.randn(8, 64)
    torch.testing.assert_close(run(x, y), chain(x, y))
