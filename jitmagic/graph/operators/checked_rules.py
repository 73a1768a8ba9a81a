"""Applies shape rules on symbolic sizes, checked against torch's meta functions at this call's
sizes.

Input: an operator and its arguments as meta tensors, some of whose sizes are symbols. Output: its
result by a rule of `graph/operators/shapes.py`, or None. The rule gives the result's sizes as
functions of the operands' sizes. torch's C++ meta function needs ints, so it runs at the sizes of
this call: it raises what eager raises and gives the dtype, which does not depend on sizes. If rule
and meta function disagree at these sizes, the result is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from ..node_meta import tensors_in
from ..symbolic.sym_node import sizes_in, with_hints
from ..symbolic.symbolic_views import symbolic_view
from .kernel_probing import kernel_result
from .shapes import infer, infer_in_place
from .tensor_iterator import elementwise

__all__ = ["infer_checked", "infer_symbolic"]

aten = torch.ops.aten


def infer_symbolic(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the result of an operator on symbolic sizes, or None if no rule covers it."""
    if (view := symbolic_view(op, args, kwargs)) is not None:
        return view
    if op is aten._to_copy.default and next(sizes_in(args), None) is not None:
        return infer(op, args, kwargs)  # torch's meta function would need ints
    return infer_checked(op, args, kwargs)


def infer_checked(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the result with Sizes. Raises what the operator raises at this call's sizes."""
    if next(sizes_in((tuple(args), dict(kwargs))), None) is None:
        return None
    # First, because the rule may add expectations that change the example sizes read below.
    made = infer(op, args, kwargs)
    if made is None:
        made = infer_in_place(op, args, kwargs)
    here = with_hints(tuple(args)), with_hints(dict(kwargs))
    known = kernel_result(op, *here)
    if known is None:
        known = op(*here[0], **here[1])
    if made is None and _is_elementwise(op) and isinstance(known, torch.Tensor):
        made = elementwise(list(tensors_in((tuple(args), dict(kwargs)))), known.dtype)
    return made if made is not None and _is_alike(with_hints(made), known) else None


@lru_cache(maxsize=4096)
def _is_elementwise(op: Any) -> bool:
    """Return whether TensorIterator alone decides the layout of a fresh result."""
    return torch.Tag.pointwise in op.tags and not op._schema.is_mutable


def _is_alike(made: object, known: object) -> bool:
    if isinstance(made, torch.Tensor) and isinstance(known, torch.Tensor):
        return (made.shape, made.stride(), made.dtype) == (known.shape, known.stride(), known.dtype)
    if isinstance(made, tuple | list) and isinstance(known, tuple | list):
        return len(made) == len(known) and all(map(_is_alike, made, known))
    return False
