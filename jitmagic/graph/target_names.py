"""Names the targets of calls in a graph, as tables of operators and messages spell them."""

from __future__ import annotations

from ..torch_types import AnyFunction, OpOverload
from .operators.foreign import is_foreign, name_of

__all__ = ["Target", "call_name", "target_name"]

Target = AnyFunction | str


def target_name(target: Target) -> str:
    """Return the bare name of a function or method: `relu`, `add_`, `getitem`; `ns::op` for
    operators registered outside torch.
    """
    if isinstance(target, str):
        return target
    if is_foreign(target):
        return "::".join(name_of(target))  # tables of torch's names do not apply to it
    if isinstance(target, OpOverload):
        return str(target._opname)
    return str(getattr(target, "__name__", target))


def call_name(target: Target) -> str:
    """Return the name of the call in messages."""
    name = target_name(target)
    if isinstance(target, str):
        return f"Tensor.{name}"
    kind = "operator" if getattr(target, "__module__", "") == "_operator" else "torch"
    return f"{kind} {name}"
