"""Takes wrapper subclasses of torch.Tensor apart, and rebuilds them around other inner tensors.

A traceable wrapper subclass names its inner tensors and its metadata in `__tensor_flatten__`, is
rebuilt by `__tensor_unflatten__`, and computes by operations on its inner tensors in
`__torch_dispatch__`. A graph takes and returns inner tensors only: a `Rewrap` node makes the
wrapper of them, an `Unwrap` node gives those of a result. Run on tensors of any kind (real, meta,
traced), the calls between them run the class's own `__torch_dispatch__`.

Both are differentiable: the gradient of a wrapper is a wrapper of the gradients of its inner
tensors. The same two functions connect a compiled graph to the autograd graph around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .symbolic.sym_node import as_torch

__all__ = [
    "Layout", "Rewrap", "Unwrap", "flattened", "inner_tensors", "is_wrapper", "is_wrapper_class",
]  # fmt: skip

Sizes = Sequence[Any]


def is_wrapper_class(kind: type) -> bool:
    """Return whether instances can be taken apart: the class defines all three methods."""
    return (
        kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__  # type: ignore[attr-defined]
        and hasattr(kind, "__tensor_flatten__")
        and hasattr(kind, "__tensor_unflatten__")
    )


def is_wrapper(value: object) -> bool:
    """Return whether the value is an instance of a traceable wrapper subclass."""
    kind = type(value)
    if kind is torch.Tensor or not isinstance(value, torch.Tensor):
        return False
    return is_wrapper_class(kind)


def flattened(tensor: Any) -> tuple[tuple[str, ...], object]:
    """Return the names of the inner tensors and the metadata."""
    names, context = tensor.__tensor_flatten__()
    return tuple(names), context


def inner_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the plain tensors inside a wrapper, in order; those of nested wrappers too."""
    found: list[torch.Tensor] = []
    for name in flattened(tensor)[0]:
        inner = getattr(tensor, name)
        found += inner_tensors(inner) if is_wrapper(inner) else [inner]
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The facts about a wrapper apart from its inner tensors."""

    cls: Any
    names: tuple[str, ...]
    context: object

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Layout:
        return cls(type(tensor), *flattened(tensor))

    def inner(self, wrapper: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the inner tensors of a wrapper of this class and metadata. Raises RuntimeError."""
        if type(wrapper) is not self.cls or flattened(wrapper) != (self.names, self.context):
            kind = type(wrapper).__name__
            raise RuntimeError(
                f"a gradient or result is a {kind} whose metadata differ from those of the "
                f"{self.cls.__name__} that the graph was traced with"
            )
        return tuple(getattr(wrapper, name) for name in self.names)

    def around(self, inner: Sequence[torch.Tensor], shape: Sizes, stride: Sizes) -> torch.Tensor:
        """Return a wrapper of these sizes around the inner tensors."""
        named = dict(zip(self.names, inner, strict=True))
        size = torch.Size(map(as_torch, shape))
        made: torch.Tensor = self.cls.__tensor_unflatten__(
            named, self.context, size, tuple(map(as_torch, stride))
        )
        return made


class _Wrapping(torch.autograd.Function):
    """Differentiates making a wrapper: the gradient is taken apart."""

    is_linear = True  # as torch's formulas: no gradient without a tangent

    @staticmethod
    def forward(
        ctx: Any, layout: Layout, shape: Sizes, stride: Sizes, *inner: torch.Tensor
    ) -> torch.Tensor:
        ctx.layout = layout
        return layout.around([tensor.detach() for tensor in inner], shape, stride)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor | None, ...]:
        (gradient,) = gradients
        return None, None, None, *ctx.layout.inner(gradient)


class _Unwrapping(torch.autograd.Function):
    """Differentiates taking a wrapper apart: the gradients of its inner tensors are wrapped."""

    is_linear = True

    @staticmethod
    def forward(ctx: Any, wrapper: torch.Tensor, layout: Layout) -> tuple[torch.Tensor, ...]:
        ctx.layout, ctx.sizes = layout, (wrapper.shape, wrapper.stride())
        # Not the inner tensors themselves, which would get a history. detach() shares the version
        # counter, so that writes to them are still noticed by the graph's backward.
        return tuple(tensor.detach() for tensor in layout.inner(wrapper))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor, None]:
        return ctx.layout.around(gradients, *ctx.sizes), None


@dataclass(frozen=True, slots=True, eq=False)
class Rewrap:
    """The target of a node that makes a wrapper of its inner tensors."""

    layout: Layout
    __name__ = "rewrap"

    def __call__(
        self, inner: tuple[torch.Tensor, ...], shape: Sizes, stride: Sizes
    ) -> torch.Tensor:
        if any(tensor.requires_grad for tensor in inner):
            with torch.enable_grad():
                made: torch.Tensor = _Wrapping.apply(  # type: ignore[no-untyped-call]
                    self.layout, shape, stride, *inner
                )
            return made
        return self.layout.around(inner, shape, stride)


@dataclass(frozen=True, slots=True, eq=False)
class Unwrap:
    """The target of a node that returns the inner tensors of a wrapper."""

    layout: Layout
    __name__ = "unwrap"

    def __call__(self, wrapper: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if wrapper.requires_grad:
            with torch.enable_grad():
                parts: tuple[torch.Tensor, ...] = _Unwrapping.apply(wrapper, self.layout)  # type: ignore[no-untyped-call]
            return parts
        return self.layout.inner(wrapper)
