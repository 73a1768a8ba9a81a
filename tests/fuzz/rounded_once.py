"""RoundedOnce: eager whose sums and normalizations are computed in float64 and rounded once.

Eager's own are noise where terms cancel: its layer norm is x * rstd - mean * rstd, which of equal
numbers in 16 bits is a rounding of the two products and not 0, and what is divided by it next
becomes 1, -1 or nan.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

__all__ = ["RoundedOnce"]


class RoundedOnce(TorchDispatchMode):
    """Of operators whose names begin with `names`. `acted`: whether a result was not eager's."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.names = names
        self.acted = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        eager = func(*args, **kwargs)
        named = func._schema.name.removeprefix("aten::").startswith(self.names)
        if not named or func._schema.is_mutable:
            return eager
        wide = func(*tree_map(_widened, args), **tree_map(_widened, kwargs))
        return tree_map(self._rounded, eager, wide)

    def _rounded(self, eager: Any, wide: Any) -> Any:
        if not isinstance(eager, Tensor) or not eager.is_floating_point():
            return eager
        exact = wide.to(eager.dtype)
        self.acted |= not torch.equal(eager, exact)
        return exact


def _widened(value: Any) -> Any:
    is_real = isinstance(value, Tensor) and value.is_floating_point()
    return value.double() if is_real and not value._is_zerotensor() else value
