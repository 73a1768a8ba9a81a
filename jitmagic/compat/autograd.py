"""Binds the parts of autograd that have no public name: engine, nodes, saved-tensor hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .table import private

__all__ = [
    "BackwardHookFunction",
    "CreationMeta",
    "FunctionBase",
    "PlainFunction",
    "checkpointed",
    "creation_meta",
    "current_node",
    "disable_saved_hooks",
    "enable_record_function",
    "enable_saved_hooks",
    "engine",
    "forward_level",
    "is_checkpoint_valid",
    "is_profiler_enabled",
    "pop_saved_hooks",
    "push_saved_hooks",
    "run_backward",
    "saved_hooks_refusal",
    "sequence_number",
    "top_saved_hooks",
]

Hook = Callable[..., Any]

# The engine and its nodes.
engine: Any = private("torch.autograd.Variable._execution_engine")
current_node: Callable[[], Any] = private("torch._C._current_autograd_node")
sequence_number: Callable[[], int] = private("torch._C._autograd._get_sequence_nr")
CreationMeta: Any = private("torch._C._autograd.CreationMeta")
creation_meta: Callable[[Any], Any] = private("torch._C._autograd._get_creation_meta")

# Hooks on saved tensors.
top_saved_hooks: Callable[[bool], tuple[Hook, Hook] | None] = private(
    "torch._C._autograd._top_saved_tensors_default_hooks"
)
push_saved_hooks: Callable[[Hook, Hook], None] = private(
    "torch._C._autograd._push_saved_tensors_default_hooks"
)
pop_saved_hooks: Callable[[], None] = private("torch._C._autograd._pop_saved_tensors_default_hooks")
enable_saved_hooks: Callable[[], None] = private("torch._C._autograd._saved_tensors_hooks_enable")
disable_saved_hooks: Callable[[str, bool], None] = private(
    "torch._C._autograd._saved_tensors_hooks_disable"
)
saved_hooks_refusal: Callable[[], str | None] = private(
    "torch._C._autograd._saved_tensors_hooks_get_disabled_error_message"
)

# The profiler.
is_profiler_enabled: Callable[[], bool] = private("torch._C._autograd._profiler_enabled")
enable_record_function: Callable[[bool], None] = private(
    "torch._C._autograd._enable_record_function"
)

# Functions written in Python.
FunctionBase: Any = private("torch._C._FunctionBase")
PlainFunction: Any = private("torch.autograd.function._SingleLevelFunction")
BackwardHookFunction: Any = private("torch.nn.modules._functions.BackwardHookFunction")
is_checkpoint_valid: Callable[[], bool] = private("torch.autograd._is_checkpoint_valid")
checkpointed: Callable[..., Iterator[None]] = private(
    "torch.utils.checkpoint._checkpoint_without_reentrant_generator"
)


def run_backward(
    outputs: Sequence[Any],
    tangents: Sequence[Any],
    inputs: Sequence[Any],
    *,
    keep: bool = False,
    create: bool = False,
    unused: bool = True,
) -> tuple[Any, ...]:
    """Return the gradients of the inputs; `unused` inputs get None.

    torch.autograd.grad does the same, but imports sympy at its first call (0.3 s).
    """
    computed: tuple[Any, ...] = engine.run_backward(
        tuple(outputs), tuple(tangents), keep, create, tuple(inputs),
        allow_unreachable=unused, accumulate_grad=False,
    )  # fmt: skip
    return computed


def forward_level() -> int:
    """Return the level of forward-mode differentiation, -1 outside of it."""
    level: int = _forward_ad._current_level
    return level


_forward_ad: Any = private("torch.autograd.forward_ad")
private("torch.autograd.forward_ad._current_level")  # a number, which changes
