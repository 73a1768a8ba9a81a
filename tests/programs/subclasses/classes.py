"""Wrapper subclasses of torch.Tensor as users write them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map_only

aten = torch.ops.aten
__all__ = ["SEEN", "Logged", "Scaled", "Slotted", "TwoTensor", "scaled", "two"]


def two(*shape: int) -> TwoTensor:
    """Return a wrapper around two tensors of random numbers."""
    return TwoTensor(torch.randn(shape), torch.randn(shape))


class Scaled(Tensor):
    """A weight of int8 numbers with a scale per row; products dequantise it."""

    codes: Tensor
    scale: Tensor

    @staticmethod
    def __new__(cls, codes: Tensor, scale: Tensor, dtype: torch.dtype) -> Scaled:
        made: Any = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, codes.shape, strides=codes.stride(), dtype=dtype, device=codes.device
        )
        return made  # type: ignore[no-any-return]

    def __init__(self, codes: Tensor, scale: Tensor, dtype: torch.dtype) -> None:
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self) -> tuple[list[str], object]:
        return ["codes", "scale"], self.dtype

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, Tensor], dtype: torch.dtype, size: object, stride: object
    ) -> Scaled:
        return Scaled(inner["codes"], inner["scale"], dtype)

    def dequantise(self) -> Tensor:
        return self.codes.to(self.dtype) * self.scale

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (aten.detach.default, aten.t.default):
            own = args[0]
            made = Scaled(func(own.codes), func(own.scale), own.dtype)
            return return_and_correct_aliasing(func, args, kwargs, made)
        args, kwargs = tree_map_only(Scaled, Scaled.dequantise, (args, kwargs))
        return func(*args, **kwargs)


def scaled(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> Scaled:
    codes = torch.randint(-99, 99, (rows, columns), dtype=torch.int8)
    return Scaled(codes, torch.rand(rows, 1, dtype=dtype) / 64, dtype)


class Slotted(Tensor):
    """A wrapper with its tensor in a slot and metadata that operations read."""

    __slots__ = ("_value", "factor")
    _value: Tensor
    factor: Any

    @staticmethod
    def __new__(cls, value: Tensor, factor: object) -> Slotted:
        made: Any = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, value.shape, strides=value.stride(), dtype=value.dtype, device=value.device
        )
        made._value, made.factor = value, factor
        return made  # type: ignore[no-any-return]

    @property
    def factors(self) -> list[Any]:
        return self.factor if isinstance(self.factor, list) else [self.factor]

    def __tensor_flatten__(self) -> tuple[list[str], object]:
        return ["_value"], self.factor

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, Tensor], factor: object, size: object, stride: object
    ) -> Slotted:
        return Slotted(inner["_value"], factor)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        own = next(arg for arg in args if isinstance(arg, Slotted))
        args = tree_map_only(Slotted, lambda one: one._value * float(sum(one.factors)), args)
        return Slotted(func(*args, **(kwargs or {})), own.factor)


class Logged(Tensor):
    """A wrapper that notes the operations it sees."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Logged:
        made: Any = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device
        )
        made.inner = inner
        return made  # type: ignore[no-any-return]

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, Tensor], context: None, size: object, stride: object
    ) -> Logged:
        return Logged(inner["inner"])

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        SEEN.append(func.__name__)
        args, kwargs = tree_map_only(Logged, lambda one: one.inner, (args, kwargs or {}))
        made = func(*args, **kwargs)
        return Logged(made) if isinstance(made, Tensor) else made


SEEN: list[str] = []
