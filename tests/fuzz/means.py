"""MeansBySums: eager with the means of var_mean and std_mean as sums give them.

Eager updates a running mean by Welford's formula: behind an infinity that is inf - inf, hence nan
where the mean is infinite, unless the infinity comes last. That hangs on the order, which no
program can rely on: a compiled mean may be the infinite one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["MeansBySums"]

aten = torch.ops.aten
_WITH_MEAN = (aten.var_mean.correction, aten.std_mean.correction)


class MeansBySums(TorchDispatchMode):
    """`acted`: whether a mean was another than eager's."""

    def __init__(self) -> None:
        super().__init__()
        self.acted = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func not in _WITH_MEAN:
            return made
        spread, mean = made
        dims = args[1] if len(args) > 1 else None
        exact = args[0].mean(dims, keepdim=bool((kwargs or {}).get("keepdim", False)))
        lost = mean.isnan() & exact.isinf()
        self.acted |= bool(lost.any())
        return spread, torch.where(lost, exact, mean)
