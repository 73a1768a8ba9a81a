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
    "IMPLEMENTED",
    "OPERATOR_DEFINITIONS",
    "CustomOpDef",
    "DispatchKey",
    "OpNamespace",
    "OpOverload",
    "OpOverloadPacket",
    "Ops",
    "fake_contexts",
    "has_kernel",
    "has_trivial_fake",
    "qualified_name",
    "registry",
    "resolve_overload",
]

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
