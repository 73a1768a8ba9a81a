"""Takes wrapper subclasses of torch.Tensor apart, and rebuilds them around other inner tensors.

A traceable wrapper subclass names its inner tensors and its metadata in `__tensor_flatten__`, is
rebuilt by `__tensor_unflatten__`, and computes by operations on its inner tensors in
`__torch_dispatch__`. A graph takes and returns inner tensors only: a `Rewrap` node makes the
wrapper of them, an `Unwrap` node gives those of a result. Run on tensors of any kind (real, meta,
traced), the calls between them run the class's own `__torch_dispatch__`.

Both are differentiable, any number of times: the gradient of a wrapper is a wrapper of the
gradients of its inner tensors. The same two functions connect a compiled graph to the autograd
graph around it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..symbolic.sym_node import as_torch

__all__ = [
    "Gradients", "Layout", "NotFollowed", "Rewrap", "Unwrap", "holds_wrapper",
    "inner_tensors", "is_wrapper", "is_wrapper_class", "tangent_of",
]  # fmt: skip

Sizes = Sequence[Any]


def is_wrapper_class(kind: type) -> bool:
    """Return whether instances can be taken apart: the class defines all three methods."""
    return (
        kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__  # type: ignore[attr-defined]
        and hasattr(kind, "__tensor_flatten__")
        and hasattr(kind, "__tensor_unflatten__")
    )


def holds_wrapper(types: Iterable[type]) -> bool:
    """Return whether a wrapper's own `__torch_dispatch__` comes first among these classes; its
    inner calls are dispatched again.
    """
    return any(map(is_wrapper_class, types))


def is_wrapper(value: object) -> bool:
    """Return whether the value is an instance of a traceable wrapper subclass."""
    kind = type(value)
    if kind is torch.Tensor or not isinstance(value, torch.Tensor):
        return False
    return is_wrapper_class(kind)


def inner_tensors(tensor: Any) -> list[torch.Tensor]:
    """Return the plain tensors inside a wrapper, in order; those of nested wrappers too."""
    found: list[torch.Tensor] = []
    for inner in Layout.of(tensor).inner(tensor):
        found += inner_tensors(inner) if is_wrapper(inner) else [inner]
    return found


class NotFollowed(Exception):
    """Raised for a call that no graph can hold, such as some on wrapper subclasses."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The facts about a wrapper apart from its inner tensors and its sizes.

    `names`: of the inner tensors. `context`: the metadata. `others`: what `__tensor_flatten__`
    names besides tensors, such as the device mesh of a DTensor.
    """

    cls: Any
    names: tuple[str, ...]
    context: object
    others: tuple[tuple[str, object], ...] = ()

    @classmethod
    def of(cls, tensor: Any) -> Layout:
        named, context = tensor.__tensor_flatten__()
        values = {name: getattr(tensor, name) for name in named}
        names = tuple(n for n, value in values.items() if isinstance(value, torch.Tensor))
        others = tuple((n, value) for n, value in values.items() if n not in names)
        return cls(type(tensor), names, context, others)

    def equals(self, other: Layout) -> bool:
        """Compare by ==, which is code of the metadata's classes."""
        mine, theirs = (self.names, self.others), (other.names, other.others)
        same = self.context is other.context or bool(self.context == other.context)
        return self.cls is other.cls and mine == theirs and same

    def inner(self, wrapper: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the inner tensors of a wrapper that has these names."""
        return tuple([getattr(wrapper, name) for name in self.names])

    def around(self, inner: Sequence[torch.Tensor], shape: Sizes, stride: Sizes) -> torch.Tensor:
        """Return a wrapper of these sizes around the inner tensors."""
        named = {**dict(zip(self.names, inner, strict=True)), **dict(self.others)}
        size = torch.Size(map(as_torch, shape))
        made: torch.Tensor = self.cls.__tensor_unflatten__(
            named, self.context, size, tuple(map(as_torch, stride))
        )
        return made


def tangent_of(result: Any) -> Layout | None:
    """Return the metadata that the gradient of a result is expected to have, if they differ from
    the result's: those of a partial DTensor's gradient.
    """
    coerce = getattr(result, "__coerce_tangent_metadata__", None)
    return None if coerce is None or not result.requires_grad else Layout.of(coerce())


class Gradients:
    """The metadata of the gradient of an input of the graph, found when the backward is recorded.

    They may differ from the input's: a DTensor that is replicated has a partial gradient.
    """

    def __init__(self) -> None:
        self.layout: Layout | None = None
        self._strides_of: int | None = None  # the inner tensor that has the gradient's strides

    def take_apart(self, gradient: torch.Tensor, like: Layout) -> tuple[torch.Tensor, ...]:
        """Return the inner tensors of a gradient and note its metadata. Raises RuntimeError."""
        found = Layout.of(gradient) if type(gradient) is like.cls else None
        if found is None or found.names != like.names:
            raise RuntimeError(_differs(gradient, like))
        if self.layout is not None and not self.layout.equals(found):
            raise RuntimeError(_differs(gradient, self.layout))
        inner, strides = found.inner(gradient), gradient.stride()
        alike = (n for n, part in enumerate(inner) if part.stride() == strides)
        self.layout, self._strides_of = found, next(alike, None)
        return Unwrap(found)(gradient)

    def around(
        self, inner: Sequence[torch.Tensor], like: Layout, shape: Sizes, stride: Sizes
    ) -> torch.Tensor:
        """Return the gradient around its inner tensors."""
        of = self._strides_of
        strides = stride if of is None else inner[of].stride()
        return Rewrap(self.layout or like)(tuple(inner), shape, strides)


def _differs(gradient: torch.Tensor, like: Layout) -> str:
    return (
        f"the gradient of a {like.cls.__name__} is a {type(gradient).__name__} with other metadata "
        "than in the compiled graph"
    )


def _tangent_like(
    gradient: torch.Tensor, layout: Layout, shape: Sizes, stride: Sizes
) -> tuple[torch.Tensor, ...]:
    """Return the inner tensors of the gradient of a result, which has the result's metadata in the
    recorded backward. Raises RuntimeError if the caller's gradient has others.
    """
    if type(gradient) is layout.cls and (found := Layout.of(gradient)).names == layout.names:
        inner = found.inner(gradient)
        expected = Layout.of(_as_tangent(layout, inner, shape, stride))
        if expected.equals(found):
            return Unwrap(found)(gradient)
        coerce = getattr(gradient, "__coerce_same_metadata_as_tangent__", None)
        coerced = None if coerce is None else coerce(expected.context)
        if coerced is not None:
            return Unwrap(layout)(coerced)
    raise RuntimeError(_differs(gradient, layout))


def _as_tangent(
    layout: Layout, inner: Sequence[torch.Tensor], shape: Sizes, stride: Sizes
) -> torch.Tensor:
    made = Rewrap(layout)(tuple(inner), shape, stride)
    # Some classes make wrappers that require grad, as their metadata say.
    return made.requires_grad_(False) if made.requires_grad and made.is_leaf else made


class _Wrapping(torch.autograd.Function):
    """Differentiates making a wrapper: the gradient is taken apart."""

    is_linear = True  # as torch's formulas: no gradient without a tangent

    @staticmethod
    def forward(
        ctx: Any, target: Rewrap, shape: Sizes, stride: Sizes, *inner: torch.Tensor
    ) -> torch.Tensor:
        ctx.target, ctx.sizes = target, (shape, stride)
        return target.layout.around([tensor.detach() for tensor in inner], shape, stride)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor | None, ...]:
        (gradient,), target = gradients, ctx.target
        if target.gradients is not None:
            inner = target.gradients.take_apart(gradient, target.layout)
        else:
            inner = _tangent_like(gradient, target.tangent or target.layout, *ctx.sizes)
        return None, None, None, *inner


class _Unwrapping(torch.autograd.Function):
    """Differentiates taking a wrapper apart: the gradients of its inner tensors are wrapped."""

    is_linear = True

    @staticmethod
    def forward(ctx: Any, wrapper: torch.Tensor, target: Unwrap) -> tuple[torch.Tensor, ...]:
        ctx.target, ctx.sizes = target, (wrapper.shape, wrapper.stride())
        # Not the inner tensors themselves, which would get a history. detach() shares the version
        # counter, so that writes to them are still noticed by the graph's backward.
        return tuple(tensor.detach() for tensor in target.layout.inner(wrapper))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor, None]:
        target = ctx.target
        if target.gradients is not None:
            return target.gradients.around(gradients, target.layout, *ctx.sizes), None
        return _as_tangent(target.tangent or target.layout, gradients, *ctx.sizes), None


@dataclass(frozen=True, slots=True, eq=False)
class Rewrap:
    """The target of a node that makes a wrapper of its inner tensors.

    `gradients`: of an input of the program; None for a result, whose gradient has the metadata of
    `tangent`.
    """

    layout: Layout
    gradients: Gradients | None = None
    tangent: Layout | None = None
    __name__ = "rewrap"

    def __call__(
        self, inner: tuple[torch.Tensor, ...], shape: Sizes, stride: Sizes
    ) -> torch.Tensor:
        if any(tensor.requires_grad for tensor in inner):
            with torch.enable_grad():
                made: torch.Tensor = _Wrapping.apply(  # type: ignore[no-untyped-call]
                    self, shape, stride, *inner
                )
            return made
        return self.layout.around(inner, shape, stride)


@dataclass(frozen=True, slots=True, eq=False)
class Unwrap:
    """The target of a node that returns the inner tensors of a wrapper; other fields as there."""

    layout: Layout
    gradients: Gradients | None = None
    tangent: Layout | None = None
    __name__ = "unwrap"

    def __call__(self, wrapper: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if wrapper.requires_grad:
            with torch.enable_grad():
                parts: tuple[torch.Tensor, ...] = _Unwrapping.apply(wrapper, self)  # type: ignore[no-untyped-call]
            return parts
        return self.layout.inner(wrapper)
