"""Takes wrapper subclasses of torch.Tensor apart, and rebuilds them around other inner tensors.

A traceable wrapper subclass names its inner tensors and its metadata in `__tensor_flatten__`, is
rebuilt by `__tensor_unflatten__`, and computes by operations on its inner tensors in
`__torch_dispatch__`. A graph takes and returns inner tensors only: a `Rewrap` node makes the
wrapper of them, an `Unwrap` node gives those of a result. Run on tensors of any kind (real, meta,
traced), the calls between them run the class's own `__torch_dispatch__`.

Both are differentiable, any number of times: the gradient of a wrapper is a wrapper of the
gradients of its inner tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from functools import reduce
from types import FunctionType
from typing import Any

import torch

from ...compat.distributed import placed_class, same_placement, sizes_of_placed
from ...compat.modes import TorchFunctionOn
from ...lazy_dataclass import dataclass, replace
from ...symbols.size import is_same
from ...torch_types import AnyFunction
from ..symbolic.sym_node import as_dimension, as_torch

__all__ = [
    "Gradients",
    "Layout",
    "NotFollowed",
    "Rewrap",
    "Unwrap",
    "WithTorchFunctions",
    "differentiable",
    "gradients_of_any_size",
    "holds_wrapper",
    "inner_tensors",
    "is_library_call",
    "is_wrapper",
    "is_wrapper_class",
    "placed_facts",
    "shards_of",
    "sizes_of_wrapper",
    "tangent_of",
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
    """Return the plain tensors inside a wrapper, in order; those of nested wrappers too. A plain
    tensor is returned alone.
    """
    if not is_wrapper(tensor):
        return [tensor]
    found: list[torch.Tensor] = []
    for inner in Layout.of(tensor).inner(tensor):
        found += inner_tensors(inner)
    return found


_LIBRARY = (
    "torch.distributed._functional_collectives",
    "torch.distributed.tensor",  # of functions that it exports, whose `__module__` it sets
    "torch.distributed.tensor._api",
    "torch.nested",
)


def is_library_call(target: object) -> bool:
    """Return whether the target is a Python function of torch that makes wrappers or takes them,
    and is one node of the graph.
    """
    function = getattr(target, "function", target)
    return isinstance(function, FunctionType) and function.__module__ in _LIBRARY


class WithTorchFunctions:
    """The target of a call in which torch's own subclasses run their `__torch_function__`.

    Elsewhere in a graph, torch functions of subclasses are off, because the trace follows them.
    """

    __module__ = __name__

    def __init__(self, function: AnyFunction | str) -> None:
        self.function = function
        self.__name__ = function if isinstance(function, str) else function.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        called = self.function
        function = getattr(type(args[0]), called) if isinstance(called, str) else called
        with TorchFunctionOn():
            return function(*args, **kwargs)


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
        if _is_placed(tensor):  # makes its metadata of the sizes that it is rebuilt with
            kind: Any = sizes_of_placed()
            context = tuple(kind((), (), x.dtype) if type(x) is kind else x for x in context)
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


def _is_placed(tensor: torch.Tensor) -> bool:
    """Return whether the tensor is a DTensor, with the metadata of that class."""
    placed = placed_class()
    flatten = getattr(type(tensor), "__tensor_flatten__", None)
    return placed is not None and flatten is placed.__tensor_flatten__


def placed_facts(tensor: torch.Tensor) -> tuple[str, Any, tuple[Any, ...]] | None:
    """Return (attribute, object, its facts by path) for a DTensor: they equal its metadata apart
    from the global sizes, which are those of the tensor itself. None for any other wrapper.
    """
    if not _is_placed(tensor):
        return None
    spec: Any = tensor._spec  # type: ignore[attr-defined]
    sizes = spec.tensor_meta
    if (sizes.shape, tuple(sizes.stride)) != (tensor.shape, tensor.stride()):
        return None
    paths = ("mesh",), ("placements",), ("shard_order",), ("tensor_meta", "dtype")
    return "_spec", spec, tuple((path, reduce(getattr, path, spec)) for path in paths)


def shards_of(tensor: torch.Tensor) -> dict[int, int]:
    """Return into how many parts each divided dimension of a DTensor is divided; empty for other
    wrappers.
    """
    found: dict[int, int] = {}
    if _is_placed(tensor):
        spec: Any = tensor._spec  # type: ignore[attr-defined]
        for mesh_dim, placement in enumerate(spec.placements):
            if (dim := getattr(placement, "dim", None)) is not None:
                found[dim] = found.get(dim, 1) * spec.mesh.size(mesh_dim)
    return {dim: count for dim, count in found.items() if count > 1}


def sizes_of_wrapper(wrapper: torch.Tensor) -> tuple[Sizes, Sizes]:
    """Return (shape, strides) as `Layout.around` takes them; () for a nested tensor, whose ragged
    size is an object that its class makes of the inner tensors.
    """
    return ((), ()) if wrapper.is_nested else (wrapper.shape, tuple(wrapper.stride()))


def differentiable(inner: Sequence[torch.Tensor]) -> tuple[bool, ...]:
    """Return which inner tensors get a part of their wrapper's gradient.

    Those without elements do not, next to others: a nested tensor keeps lengths as their sizes.
    """
    floats = tuple(tensor.is_floating_point() or tensor.is_complex() for tensor in inner)
    filled = tuple(
        is_float and not any(type(size) is int and size == 0 for size in tensor.shape)
        for is_float, tensor in zip(floats, inner, strict=True)
    )
    return filled if any(filled) else floats


def tangent_of(result: Any) -> Layout | None:
    """Return the metadata that the gradient of a result is expected to have, if they differ from
    the result's: those of a partial DTensor's gradient.
    """
    coerce = getattr(result, "__coerce_tangent_metadata__", None)
    return None if coerce is None or not result.requires_grad else Layout.of(coerce())


class Gradients:
    """The metadata of the gradient of an input of the graph, found when the backward is recorded.

    They may differ from the input's: a DTensor that is replicated has a partial gradient. `shapes`:
    those of parts whose shape is not that of the inner tensor, by the inner tensor's number; each
    size is a row (FIXED, size), or the dimension of the wrapper or the inner tensor that it equals:
    (OF_WRAPPER, dim), (OF_PART, dim).
    """

    def __init__(self) -> None:
        self.layout: Layout | None = None
        self.shapes: dict[int, tuple[tuple[int, int], ...]] = {}
        self._strides_of: int | None = None  # the inner tensor that has the gradient's strides
        self._made: tuple[object, object] | None = None  # sizes and metadata of the last DTensor

    def take_apart(
        self, gradient: torch.Tensor, like: Layout, of: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor | None, ...]:
        """Return the inner tensors of the gradient of a wrapper around `of`, and note its metadata.
        Raises RuntimeError.
        """
        found = _layout_like(gradient, like)
        if found is None:
            raise RuntimeError(_differs(gradient, like))
        if self.layout is not None and not self.layout.equals(found):
            raise RuntimeError(_differs(gradient, self.layout))
        inner = _parts_of(gradient, found)
        strides = () if gradient.is_nested else gradient.stride()
        alike = (n for n, part in enumerate(inner) if part is not None and part.stride() == strides)
        self.layout, self._strides_of = found, next(alike, None)
        pairs = enumerate(zip(inner, of, strict=True))
        return tuple(self._fitting(n, gradient, *pair) for n, pair in pairs)

    def _fitting(
        self, number: int, whole: torch.Tensor, part: torch.Tensor | None, own: torch.Tensor
    ) -> torch.Tensor | None:
        """Return a part of the gradient, or a stand-in that autograd accepts for its tensor."""
        stand_ins = _STAND_INS.get()
        if part is None or stand_ins is None or part.shape == own.shape:
            return part
        self.shapes[number] = tuple(
            _extent(dim, size, whole.shape, own.shape) for dim, size in enumerate(part.shape)
        )
        stand_ins.append((torch.zeros_like(own), part))
        return stand_ins[-1][0]

    def around(
        self, like: Layout, inner: Sequence[torch.Tensor], shape: Sizes, stride: Sizes
    ) -> torch.Tensor:
        """Return the gradient around its inner tensors."""
        of = self._strides_of
        strides = tuple(stride if of is None else inner[of].stride())
        if self._made is not None and not inner[0].requires_grad:
            sizes, made = self._made
            if sizes == (shape, strides):
                return same_placement(made, inner[0])
        wrapper = Rewrap(self.layout or like)(tuple(inner), shape, strides)
        if placed_facts(wrapper) is not None and not wrapper.requires_grad:
            self._made = (shape, strides), wrapper._spec  # type: ignore[attr-defined]
        return wrapper


FIXED, OF_WRAPPER, OF_PART = range(3)  # as in extensions/runtime/wrappers.cpp


def _extent(dim: int, size: Any, whole: Sizes, part: Sizes) -> tuple[int, int]:
    """Return a row of `Gradients.shapes`."""
    for kind, sizes in ((OF_WRAPPER, whole), (OF_PART, part)):
        if dim < len(sizes) and is_same(as_dimension(size), as_dimension(sizes[dim])):
            return kind, dim
    return FIXED, int(size)


_STAND_INS: ContextVar[list[tuple[torch.Tensor, torch.Tensor]] | None] = ContextVar(
    "stand-ins", default=None
)


def gradients_of_any_size(backward: Callable[..., Sequence[Any]], *args: Any) -> list[Any]:
    """Return the gradients that `backward(*args)` computes. Those of inner tensors may have another
    size than these: a divided weight may have a gradient that is not. Raises RuntimeError.
    """
    stand_ins: list[tuple[torch.Tensor, torch.Tensor]] = []
    token = _STAND_INS.set(stand_ins)
    try:
        computed = backward(*args)
    finally:
        _STAND_INS.reset(token)
    parts = {id(stand_in): part for stand_in, part in stand_ins}
    made = [parts.pop(id(gradient), gradient) for gradient in computed]
    if parts:
        raise RuntimeError("a gradient of another size than its tensor is added to others")
    return made


def _layout_like(gradient: torch.Tensor, like: Layout) -> Layout | None:
    """Return the layout of a gradient, with the inner tensors of the layout of what it belongs to;
    None if the differentiable ones have other names.
    """
    if type(gradient) is not like.cls:
        return None
    found = Layout.of(gradient)
    if found.names == like.names:
        return found
    # Others, such as the lengths that a nested tensor caches, come from the tensor itself.
    parts = {
        n for n, own in zip(found.names, differentiable(found.inner(gradient)), strict=True) if own
    }
    return replace(found, names=like.names) if parts <= {*like.names} else None


def _parts_of(gradient: torch.Tensor, layout: Layout) -> tuple[torch.Tensor | None, ...]:
    """Return the differentiable inner tensors of a gradient, with None in place of the others."""
    own = Layout.of(gradient)
    inner = Unwrap(own)(gradient)
    rows = zip(own.names, inner, differentiable(inner), strict=True)
    parts = {name: tensor for name, tensor, is_part in rows if is_part}
    return tuple(map(parts.get, layout.names))


def _differs(gradient: torch.Tensor, like: Layout) -> str:
    return (
        f"the gradient of a {like.cls.__name__} is a {type(gradient).__name__} with other metadata "
        "than in the compiled graph"
    )


def _tangent_like(
    gradient: torch.Tensor, layout: Layout, inner: Sequence[Any], shape: Sizes, stride: Sizes
) -> tuple[torch.Tensor | None, ...]:
    """Return the inner tensors of the gradient of a result, which has the result's metadata in the
    recorded backward. `inner`: those of the result. Raises RuntimeError if the caller's gradient
    has others.
    """
    if (found := _layout_like(gradient, layout)) is not None:
        parts = _parts_of(gradient, found)
        every = [own if part is None else part for part, own in zip(parts, inner, strict=True)]
        expected = Layout.of(_as_tangent(layout, every, shape, stride))
        if replace(expected, names=found.names).equals(found):
            return parts
        coerce = getattr(gradient, "__coerce_same_metadata_as_tangent__", None)
        coerced = None if coerce is None else coerce(expected.context)
        if coerced is not None:
            return _parts_of(coerced, layout)
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
        # Others keep their identity: by it, nested tensors compare the offsets of their parts.
        parts = [tensor.detach() if tensor.requires_grad else tensor for tensor in inner]
        ctx.inner = parts
        return target.layout.around(parts, shape, stride)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor | None, ...]:
        (gradient,), target = gradients, ctx.target
        if target.gradients is not None:
            inner = target.gradients.take_apart(gradient, target.layout, ctx.inner)
        else:
            layout = target.tangent or target.layout
            inner = _tangent_like(gradient, layout, ctx.inner, *ctx.sizes)
        return None, None, None, *inner


class _Unwrapping(torch.autograd.Function):
    """Differentiates taking a wrapper apart: the gradients of its inner tensors are wrapped."""

    is_linear = True

    @staticmethod
    def forward(ctx: Any, wrapper: torch.Tensor, target: Unwrap) -> tuple[torch.Tensor, ...]:
        ctx.target, ctx.sizes = target, sizes_of_wrapper(wrapper)
        inner = target.layout.inner(wrapper)
        pairs = [*zip(inner, differentiable(inner), strict=True)]
        ctx.others = [None if is_part else tensor for tensor, is_part in pairs]
        # Not the inner tensors themselves, which would get a history. detach() shares the version
        # counter, so that writes to them are still noticed by the graph's backward.
        return tuple(tensor.detach() for tensor, is_part in pairs if is_part)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor, None]:
        target, rest = ctx.target, iter(gradients)
        inner = [next(rest) if other is None else other for other in ctx.others]
        return _as_tangent(target.tangent or target.layout, inner, *ctx.sizes), None


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
    """The target of a node that returns the inner tensors of a wrapper; fields as there."""

    layout: Layout
    tangent: Layout | None = None
    __name__ = "unwrap"

    def __call__(self, wrapper: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inner = self.layout.inner(wrapper)
        if not wrapper.requires_grad:
            return inner
        with torch.enable_grad():
            parts = iter(_Unwrapping.apply(wrapper, self))  # type: ignore[no-untyped-call]
        pairs = zip(inner, differentiable(inner), strict=True)
        return tuple(next(parts) if is_part else tensor for tensor, is_part in pairs)
