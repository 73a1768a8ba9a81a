"""Infers shapes of small results by running the CPU kernel on stand-in inputs.

Input: an operator and its arguments as meta tensors. Output: its results as meta tensors, or None.
The first call of torch's meta functions written in Python imports sympy (0.3 s) or torch._dynamo
(1.8 s); a CPU kernel answers on tensors of the same shapes in some microseconds. Only operators
with such a meta function are asked: their shapes do not depend on data. If the kernel fails, the
meta function is used. Insignificant strides depend on the kernel itself, which therefore runs
whenever there are any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from ..node_meta import tensors_in
from ..symbolic.sym_node import sizes_in
from .pointwise import is_pointwise
from .tensor_iterator import has_insignificant_strides

__all__ = ["kernel_result"]

_MOST = 1 << 13  # elements of all arguments: their outer product still fits in memory
_DATA = (
    torch.Tag.inplace_view,
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.nondeterministic_seeded,
)


def kernel_result(
    op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], most: int = _MOST
) -> Any:
    """Return the operator's results, or None if the kernel cannot run or refuses. `most`: the limit
    for the elements of all arguments.
    """
    if not _can_be_asked(op) or torch.cuda.is_available():  # layouts may differ on a GPU
        return None
    if next(sizes_in((args, dict(kwargs))), None) is not None:
        return None  # symbolic sizes: a kernel needs ints
    tensors = list(tensors_in((args, dict(kwargs))))
    if not (_has_slow_meta(op) or any(map(has_insignificant_strides, tensors))):
        return None
    if not tensors or sum(t.numel() for t in tensors) > most or not all(map(_is_plain, tensors)):
        return None
    named = _named(op, args, kwargs)
    pivots = _pivots_in(named)
    elementwise = _is_elementwise(op)
    indexes = [t for t in tensors if _counts(t) and t.numel() and id(t) not in pivots]
    if (
        indexes
        and not elementwise
        and (0 in map(torch.Tensor.numel, tensors) or _has_no_rows(named))
    ):
        return None  # the table may be empty, and kernels of gradients write to the indexed row
    stand_ins = {id(t): _stand_in(t, int(elementwise or id(t) in pivots)) for t in tensors}
    try:
        with torch._C._DisableAutocast():
            made = op(*_mapped(args, stand_ins), **_mapped(dict(kwargs), stand_ins))
    except Exception:  # bad numbers or shapes: the meta function raises for them
        return None
    if any(stand_ins[id(t)].shape != t.shape for t in tensors):
        return None
    return _as_meta(made, {id(stand_ins[id(t)]): t for t in tensors})


def _counts(t: torch.Tensor) -> bool:
    return not (t.is_floating_point() or t.is_complex() or t.dtype is torch.bool)


def _named(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments by their names in the schema."""
    names = (argument.name for argument in op._schema.arguments)
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _pivots_in(named: Mapping[str, Any]) -> set[int]:
    """Return the ids of LAPACK pivots, which count from 1 and are not checked.

    Other indexes are filled with 0, which every table has: some kernels do not check them either.
    """
    return {id(value) for name, value in named.items() if "pivots" in name.lower()}


def _has_no_rows(named: Mapping[str, Any]) -> bool:
    """Return whether a number says that a table is empty: `num_weights` of a gradient."""
    return any(value == 0 for name, value in named.items() if name.startswith("num_"))


@lru_cache(maxsize=4096)
def _can_be_asked(op: Any) -> bool:
    if any(tag in op.tags for tag in _DATA):
        return False
    return all(info is None or info.is_write for info in _alias_infos(op._schema))


def _is_elementwise(op: Any) -> bool:
    """Return whether integers are operands, not indexes; they are filled with 1 then."""
    return is_pointwise(op) or torch.Tag.pointwise in op.tags or op._opname.startswith("_foreach_")


def _has_slow_meta(op: Any) -> bool:
    return torch._C.DispatchKey.Meta in op.py_kernels or op._opname.startswith("_foreach_")


def _alias_infos(schema: Any) -> list[Any]:
    return [returned.alias_info for returned in schema.returns]


def _is_plain(t: torch.Tensor) -> bool:
    return t.is_meta and t.layout is torch.strided and not t.is_conj() and not t.is_neg()


def _stand_in(t: torch.Tensor, integer: int) -> torch.Tensor:
    """Return a CPU tensor of the same layout whose matrices are invertible."""
    made = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cpu")
    if not (made.is_floating_point() or made.is_complex()):
        return made.fill_(integer)
    (made.zero_().diagonal(dim1=-2, dim2=-1) if made.dim() > 1 else made).fill_(1)
    return made


def _mapped(value: object, stand_ins: Mapping[int, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return stand_ins[id(value)]
    if isinstance(value, (list, tuple)):
        return [_mapped(part, stand_ins) for part in value]
    if isinstance(value, dict):
        return {key: _mapped(part, stand_ins) for key, part in value.items()}
    return torch.device("cpu") if value == torch.device("meta") else value


def _as_meta(value: object, given: Mapping[int, torch.Tensor]) -> Any:
    """Return the results as meta tensors; an argument that is written and returned stays itself."""
    if isinstance(value, torch.Tensor):
        if id(value) in given:
            return given[id(value)]
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, (list, tuple)):
        return type(value)(_as_meta(part, given) for part in value)
    return value
