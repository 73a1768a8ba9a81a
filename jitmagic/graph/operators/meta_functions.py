"""Infers the results of ATen calls that no shape rule covers.

Input: an operator and its arguments as meta tensors, whose sizes may be symbolic. Output: its
results as meta tensors, laid out as the CPU's kernel lays them out. Raises what torch raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ...late import late_names
from ...torch_types import Args, Kwargs, OpOverload
from .foreign import is_foreign, without_data
from .kernel_probing import in_kernel_format, kernel_result
from .shapes import tensors_of

if TYPE_CHECKING:
    from .symbolic_shapes import infer_symbolic, shapes_by_sampling
else:
    late_names(globals(), {"graph.operators.symbolic_shapes": "infer_symbolic, shapes_by_sampling"})

__all__ = ["infer_without_rule"]

aten = torch.ops.aten
ByRule = Callable[[OpOverload, Sequence[object], Mapping[str, object]], object]
"""Returns the results of a call by a shape rule, or None."""


def infer_without_rule(
    op: OpOverload,
    args: Args,
    kwargs: Kwargs,
    by_rule: ByRule,
    device: torch.device | None = None,
) -> object:
    """Return the results of a call for which `by_rule` has returned None. `device` is the real
    device, if it is known.
    """
    made = infer_symbolic(op, args, kwargs)
    # The kernel comes before torch's meta function, whose strides may differ from it.
    if made is None:
        made = kernel_result(op, args, kwargs)
    return _by_torch(op, args, kwargs, by_rule, device) if made is None else made


def _by_torch(
    op: OpOverload,
    args: Sequence[Any],
    kwargs: Kwargs,
    by_rule: ByRule,
    device: torch.device | None,
) -> object:
    """Run torch's meta function. If it refuses symbolic sizes, sample it: such a shape is a
    conjecture, which the plan checks in each call (plan.cpp).
    """

    at_ints = partial(_at_ints, op, by_rule, device)
    if op._schema.is_mutable:
        _refuse_to_grow(op, args, kwargs)
    try:
        made = op(*args, **kwargs)
    except Exception:  # perhaps caused by symbolic sizes
        made = None if op._schema.is_mutable else shapes_by_sampling(at_ints, (args, kwargs))
        if made is None:
            raise
    else:
        made = in_kernel_format(op, args, kwargs, made)
    # Factories and custom operators may return a tensor with memory.
    return without_data(made, device) if is_foreign(op) or not tensors_of(args) else made


def _at_ints(
    op: OpOverload, by_rule: ByRule, device: torch.device | None, arguments: Any
) -> tuple[object, tuple[int, ...]]:
    args, kwargs = arguments
    made = by_rule(op, args, kwargs)
    return infer_without_rule(op, args, kwargs, by_rule, device) if made is None else made, ()


def _refuse_to_grow(op: OpOverload, args: Sequence[Any], kwargs: Kwargs) -> None:
    """Raise if an in-place result would grow; meta functions resize with a warning first."""
    tensors = tensors_of(args)
    if not op._opname.endswith("_") or is_foreign(op) or any(map(_is_symbolic, tensors)):
        return
    functional = getattr(aten, op._opname.removesuffix("_"), None)
    if functional is None or len({t.shape for t in tensors}) < 2:
        return
    try:
        result = functional(*args, **kwargs)
    except Exception:  # the caller runs the call itself, which raises the same error
        return
    if isinstance(result, torch.Tensor) and result.shape != args[0].shape:
        shapes = f"{[*args[0].shape]} doesn't match the broadcast shape {[*result.shape]}"
        raise RuntimeError(f"output with shape {shapes}")


def _is_symbolic(tensor: torch.Tensor) -> bool:
    return any(type(size) is not int for size in tensor.shape)
