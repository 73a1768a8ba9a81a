"""Binds objects of torch.distributed, such as meshes and placements, to calls that take them.

Input: a call with such objects among its arguments. Output: a call without, whose target holds
them. The objects are immutable, and the trace guards each by its identity. They are found by the
names of their classes, because importing torch.distributed.tensor takes 0.6 s.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from ...torch_types import AnyFunction, Args, Kwargs, OpOverload

__all__ = [
    "FIXED_CLASSES", "PLACEMENT", "PROCESS_GROUP", "Bound", "is_fixed_class", "is_marked_async",
    "made_on_mesh", "makes_async", "mark_async", "names_of_class", "runs_at_once", "without_fixed",
]  # fmt: skip

PLACEMENT = ("torch.distributed.tensor.placement_types", "Placement")
PROCESS_GROUP = ("torch.distributed.distributed_c10d", "ProcessGroup")
FIXED_CLASSES = (
    PLACEMENT,
    PROCESS_GROUP,
    ("torch._C._distributed_c10d", "RedOpType"),
    ("torch.distributed.device_mesh", "DeviceMesh"),
    ("torch.distributed.tensor._dtensor_spec", "DTensorSpec"),
    ("torch.distributed.tensor._dtensor_spec", "TensorMeta"),
)
_MARK = "_jitmagic_async"


class Bound:
    """The target of a node that calls a function with fixed objects among its arguments.

    Those are no arguments of the node, because torch.fx writes arguments as text.
    """

    __module__ = __name__  # torch.fx refers to functions of torch by name

    def __init__(self, function: AnyFunction, fixed: Mapping[int | str, object]) -> None:
        self.function, self.fixed = function, dict(fixed)
        self.__name__ = function.__name__

    def __call__(self, *args: object, **kwargs: object) -> object:
        given, rest = self.arguments(args, kwargs)
        return self.function(*given, **rest)

    def arguments(self, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """Return the arguments of the function."""
        given, rest = list(args), dict(kwargs)
        for key, value in self.fixed.items():
            if isinstance(key, int):
                given.insert(key, value)
            else:
                rest[key] = value
        return tuple(given), rest


def without_fixed(
    target: Any, args: list[Any], kwargs: dict[str, Any]
) -> tuple[Any, list[Any], dict[str, Any]]:
    """Return the call with fixed objects, and lists of these, bound to its target."""
    every: list[tuple[int | str, object]] = [*enumerate(args), *kwargs.items()]
    fixed = {key: value for key, value in every if _is_fixed(value)}
    if not fixed:
        return target, args, kwargs
    given = [arg for n, arg in enumerate(args) if n not in fixed]
    return Bound(target, fixed), given, {k: v for k, v in kwargs.items() if k not in fixed}


def _is_fixed(value: object) -> bool:
    if isinstance(value, tuple | list):
        return any(map(_is_fixed, value))
    return is_fixed_class(type(value))


def made_on_mesh(target: object) -> str | None:
    """Return the type of device on which a factory makes a DTensor; None for other targets."""
    mesh = target.fixed.get("device_mesh") if isinstance(target, Bound) else None
    return None if mesh is None else str(mesh.device_type)  # type: ignore[attr-defined]


def runs_at_once(op: OpOverload) -> bool:
    """Return whether the operator communicates between processes when it is called on tensors
    without data too.
    """
    return op.namespace == "c10d"


def makes_async(op: OpOverload) -> bool:
    """Return whether eager's result is an AsyncCollectiveTensor, which waits at its first use. The
    graph waits at once and has a plain tensor.
    """
    return op._opname == "_wrap_tensor_autograd" and op.namespace == "_c10d_functional"


def mark_async(meta: torch.Tensor) -> None:
    setattr(meta, _MARK, True)


def is_marked_async(meta: torch.Tensor) -> bool:
    return hasattr(meta, _MARK)


@lru_cache(maxsize=256)
def names_of_class(kind: type) -> frozenset[tuple[str, str]]:
    """Return (module, name) of the class and its bases."""
    return frozenset((base.__module__, base.__name__) for base in kind.__mro__)


def is_fixed_class(kind: type) -> bool:
    """Return whether instances are immutable objects of torch.distributed."""
    return not names_of_class(kind).isdisjoint(FIXED_CLASSES)
