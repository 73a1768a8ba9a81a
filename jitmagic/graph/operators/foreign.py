"""Reads what the registrations of operators outside torch (torch.library) say about their calls.

Input: an overload or a packet of overloads. Output: the reason why a call cannot be in a graph, if
there is one, and a `Registrations`, which detects that the operator was registered anew. The schema
declares what is written and shared; the fake kernel gives the results. The kernel may have any
other side effect, so each call runs once, in the program's order, even if its results are unused.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeGuard
from weakref import ref

import torch

from ...compat.operators import (
    IMPLEMENTED,
    OPERATOR_DEFINITIONS,
    CustomOpDef,
    OpOverload,
    OpOverloadPacket,
    has_kernel,
    has_trivial_fake,
    registry,
)
from ...extend.operator_rows import OPERATORS, is_pure, row_of
from .operator_library import PURE

__all__ = [
    "NUMBER_TYPES",
    "TENSOR_TYPES",
    "Registrations",
    "has_side_effects",
    "is_foreign",
    "is_random_op",
    "name_of",
    "overloads_of",
    "packet_of",
    "registrations",
    "why_refused",
    "without_data",
]

_OF_TORCH = frozenset({"aten", "prims", "prim"})
NUMBER_TYPES = {"int": torch.int64, "float": torch.float64, "bool": torch.bool}
"""Types of results that are numbers, with the dtype that holds them."""
TENSOR_TYPES = {"Tensor": "Tensor", "Optional[Tensor]": "Tensor?", "List[Tensor]": "Tensor[]"}
"""Types of results that are tensors, as schemas write them."""
_KEYS = (
    "Autograd AutogradCPU AutogradCUDA AutocastCPU AutocastCUDA Meta CompositeImplicitAutograd "
    "CompositeExplicitAutograd"
).split()
_DEFINED = "_abstract_fn _backward_fn _setup_context_fn".split()  # of torch.library.custom_op


def is_foreign(target: object) -> TypeGuard[OpOverload | OpOverloadPacket]:
    """Return whether the target is an operator registered outside torch."""
    return isinstance(target, OpOverload | OpOverloadPacket) and name_of(target)[0] not in _OF_TORCH


def name_of(op: OpOverload | OpOverloadPacket) -> tuple[str, str]:
    """Return the operator's namespace and its name there."""
    qualified = op._qualified_op_name if isinstance(op, OpOverloadPacket) else op._schema.name
    namespace, _, name = qualified.partition("::")
    return namespace, name


def packet_of(op: OpOverload | OpOverloadPacket) -> OpOverloadPacket:
    return op.overloadpacket if isinstance(op, OpOverload) else op


def is_random_op(target: object) -> bool:
    """Return whether the operator is tagged as one that draws random numbers."""
    if isinstance(target, OpOverloadPacket):
        return any(map(is_random_op, overloads_of(target)))
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


def has_side_effects(target: object) -> bool:
    """Return whether each call draws random numbers, or does what only a foreign kernel knows."""
    draws, is_unknown = _effects_of(target)
    return draws or (is_unknown and not is_pure(target))


@lru_cache(maxsize=4096)
def _effects_of(target: object) -> tuple[bool, bool]:
    return is_random_op(target), is_foreign(target) and target not in PURE


def overloads_of(op: OpOverload | OpOverloadPacket) -> list[OpOverload]:
    """Return the overload, or all overloads of a packet."""
    if isinstance(op, OpOverload):
        return [op]
    return [getattr(op, name) for name in op.overloads()]


# -- what a graph cannot hold ----------------------------------------------------------------------


def why_refused(op: OpOverload | OpOverloadPacket) -> str | None:
    """Return why calls of the operator must stay outside graphs; None if they need not."""
    reasons = (_refusal(overload) for overload in overloads_of(op))
    return next((why for why in reasons if why is not None), None)


def _refusal(op: OpOverload) -> str | None:
    if _has(op, "CompositeImplicitAutograd"):
        return None  # a composite: the operators that it calls are checked instead
    row = row_of(OPERATORS.rows, op)
    if (row is None or row.shape is None) and (not _has(op, "Meta") or _lacks_fake(op)):
        name = op._schema.name
        return f'it has no fake kernel (remedy: torch.library.register_fake("{name}", ...))'
    gives_number = any(str(returned.type) in NUMBER_TYPES for returned in op._schema.returns)
    for returned in op._schema.returns:
        if str(returned.type) not in TENSOR_TYPES and str(returned.type) not in NUMBER_TYPES:
            return f"it returns a value of type {returned.type}"
        if returned.alias_info is not None and gives_number:
            return "it returns numbers, and an argument that it writes to"
        if returned.alias_info is not None and not returned.alias_info.is_write:
            return "its schema says that it returns a view of an argument"
    return None


def _has(op: OpOverload, key: str) -> bool:
    return bool(has_kernel(op.name(), key))


def _lacks_fake(op: OpOverload) -> bool:
    """Return whether a custom_op has no real fake kernel: torch registers one that raises."""
    definition = OPERATOR_DEFINITIONS.get(op._schema.name)
    if definition is None or definition._opoverload is not op:
        return False
    known = has_trivial_fake(op)
    return definition._abstract_fn is None and not known


def without_data(made: object, device: torch.device | None = None) -> object:
    """Return the results of a fake kernel as meta tensors: `torch.empty(...)` in it is on the CPU.

    Raises ValueError if it should be on another device.
    """
    if isinstance(made, list | tuple):
        return type(made)(without_data(part, device) for part in made)
    if not isinstance(made, torch.Tensor) or made.is_meta:
        return made
    if device not in (None, made.device):
        raise ValueError(f"its fake kernel makes a tensor on {made.device}")
    return torch.empty_strided(made.shape, made.stride(), dtype=made.dtype, device="meta")


# -- new registrations -----------------------------------------------------------------------------


class Registrations:
    """Reads the objects registered for an operator, which are compared at each call.

    Calling it gives the operator itself and the Python functions registered for it, in a tuple
    compared item by item, by identity. Functions behind dispatcher keys cannot be read; only which
    keys have one.
    """

    def __init__(self, packet: OpOverloadPacket) -> None:
        namespace, self._name = name_of(packet)
        self.__name__ = f"torch.ops.{namespace}.{self._name}"
        self._space = vars(getattr(torch.ops, namespace))
        full = [overload.name() for overload in overloads_of(packet)]
        self._fakes = [registry.find(name).fake_impl.kernels for name in full]
        self._keys = [f"{name.replace('::', '/')}/{key}" for name in full for key in _KEYS]
        found = OPERATOR_DEFINITIONS.get(f"{namespace}::{self._name}")
        self._definition: Callable[[], CustomOpDef | None] = (
            (lambda: None) if found is None else ref(found)
        )

    @property
    def module(self) -> str | None:
        """The module whose import registers the operator, if torch.library.custom_op did."""
        definition = self._definition()
        return None if definition is None else definition._init_fn.__module__

    def __call__(self) -> tuple[object, ...]:
        definition = self._definition()
        written = None if definition is None else vars(definition)
        implemented = IMPLEMENTED
        return (
            self._space.get(self._name),
            *(kernels[-1].func if kernels else None for kernels in self._fakes),
            *(key in implemented for key in self._keys),
            *(written[name] for name in _DEFINED if written is not None),
            *((written or {}).get("_autocast_dtype") or {}).items(),
        )


@lru_cache(maxsize=256)
def registrations(packet: OpOverloadPacket) -> Registrations:
    """Return the one Registrations of an operator, so that guards on it are equal."""
    return Registrations(packet)
