"""Binds private parts of torch.nn, torch.optim, torch.distributions, torch.jit and torch.cuda."""

from __future__ import annotations

from collections.abc import Callable, Sized
from types import FunctionType
from typing import Any

from .table import private

__all__ = [
    "GLOBAL_MODULE_HOOKS",
    "GLOBAL_OPTIMIZER_HOOKS",
    "UNSCRIPTED_ATTRIBUTES",
    "call_module",
    "end_allocation_to_pool",
    "functional_call",
    "group_tensors",
    "group_tensors_of_optimizer",
    "lazy_property",
    "release_pool",
    "use_grad_for_differentiable",
]

call_module: FunctionType = private("torch.nn.Module._call_impl")
functional_call: Callable[..., Any] = private("torch.nn.utils.stateless._functional_call")
GLOBAL_MODULE_HOOKS: tuple[dict[int, Any], ...] = tuple(
    private(f"torch.nn.modules.module._global_{kind}")
    for kind in (
        "backward_pre_hooks",
        "backward_hooks",
        "forward_hooks",
        "forward_pre_hooks",
    )
)
UNSCRIPTED_ATTRIBUTES: list[str] = private("torch.jit._recursive.ignored_attributes")
lazy_property: Callable[..., Any] = private("torch.distributions.utils._lazy_property_and_property")

use_grad_for_differentiable: Callable[..., Any] = private(
    "torch.optim.optimizer._use_grad_for_differentiable"
)
GLOBAL_OPTIMIZER_HOOKS: tuple[Sized, ...] = tuple(
    private(f"torch.optim.optimizer._global_optimizer_{when}_hooks") for when in ("pre", "post")
)
group_tensors: Callable[..., Any] = private(
    "torch.utils._foreach_utils._group_tensors_by_device_and_dtype"
)
group_tensors_of_optimizer: Callable[..., Any] = private(
    "torch.optim.Optimizer._group_tensors_by_device_and_dtype"
)

# Memory pools of CUDA graphs.
end_allocation_to_pool: Callable[..., None] = private("torch._C._cuda_endAllocateToPool")
release_pool: Callable[..., None] = private("torch._C._cuda_releasePool")
