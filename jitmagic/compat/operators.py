"""Binds operators, their registrations and the dispatcher's facts about them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from .table import private

if TYPE_CHECKING:
    from torch._C import DispatchKey
    from torch._library.custom_ops import CustomOpDef
    from torch._ops import OpOverload, OpOverloadPacket
else:
    DispatchKey = private("torch._C.DispatchKey")
    CustomOpDef = private("torch._library.custom_ops.CustomOpDef")
    OpOverload = private("torch._ops.OpOverload")
    OpOverloadPacket = private("torch._ops.OpOverloadPacket")

__all__ = [
    "ASSOCIATIVE_SCAN",
    "COND",
    "IMPLEMENTED",
    "MAP",
    "OPERATOR_DEFINITIONS",
    "SCAN",
    "WHILE_LOOP",
    "CustomOpDef",
    "DispatchKey",
    "HigherOrderNamespace",
    "HigherOrderOperator",
    "OpNamespace",
    "OpOverload",
    "OpOverloadPacket",
    "Ops",
    "fake_contexts",
    "has_autocast_rule",
    "has_kernel",
    "has_trivial_fake",
    "qualified_name",
    "registry",
    "resolve_overload",
]

HigherOrderNamespace: type[Any] = private("torch._ops._HigherOrderNamespace")
HigherOrderOperator: type[Any] = private("torch._ops.HigherOrderOperator")
OpNamespace: type[Any] = private("torch._ops._OpNamespace")
Ops: type[Any] = private("torch._ops._Ops")
has_kernel: Callable[[str, Any], bool] = private("torch._C._dispatch_has_kernel_for_dispatch_key")
resolve_overload: Callable[..., str] = private("torch._C._jit_resolve_packet")
qualified_name: Callable[[Callable[..., Any]], str] = private("torch.fx.node._get_qualified_name")

# torch.library: custom operators, fake kernels and the names of all implementations.
OPERATOR_DEFINITIONS: Any = private("torch._library.custom_ops.OPDEFS")
registry: Any = private("torch._library.simple_registry.singleton")
IMPLEMENTED: set[str] = private("torch.library._impls")
fake_contexts: Callable[[Callable[[], object]], AbstractContextManager[None]] = private(
    "torch._library.fake_impl.set_ctx_getter"
)
has_trivial_fake: Callable[[OpOverload], bool] = private(
    "torch._library.utils.can_generate_trivial_fake_impl"
)


def has_autocast_rule(definition: CustomOpDef) -> bool:
    """Return whether a dtype for autocast was registered for the operator."""
    names = ("_autocast_dtype", "_autocast_cuda_dtype", "_autocast_cpu_dtype")  # one since 2.12
    return any(vars(definition).get(name) for name in names)


# Operators that take functions; torch.cond and the like end in a call of one.
COND: Any = private("torch.ops.higher_order.cond")
WHILE_LOOP: Any = private("torch.ops.higher_order.while_loop")
SCAN: Any = private("torch.ops.higher_order.scan")
MAP: Any = private("torch.ops.higher_order.map_impl")
ASSOCIATIVE_SCAN: Any = private("torch.ops.higher_order.associative_scan")
