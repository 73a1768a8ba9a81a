"""Refuses writes whose result depends on the order in which a kernel visits the elements.

Input: the meta arguments of a call and those that it writes to. Output: the reason, or None. A
functional graph reads all operands before it writes; a kernel that overwrites elements it has still
to read gives another result (or raises), which only that kernel determines.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from ...operators.operation import is_elementwise, operation, overloads_named
from ...torch_types import Args
from ..memory import storage_under
from ..node_meta import tensors_in
from ..propagate import run_on_meta
from ..symbolic.sym_node import in_layout

__all__ = ["overlaps_itself", "why_order_matters"]

_BASIC = (int, slice, torch.SymInt)
_MOST = 1 << 20  # elements compared one by one; for larger tensors, meeting spans count as overlap


def why_order_matters(
    name: str, args: Sequence[Any], kwargs: dict[str, object], written: Sequence[torch.Tensor]
) -> str | None:
    """Return why the call's result depends on the order of its writes, or None."""
    if not written:
        return None
    if name.startswith("_foreach_") and len({id(tensor) for tensor in args[0]}) < len(args[0]):
        return "it writes to a tensor several times"
    storages = set(map(storage_under, written))
    reached = tensors_in((_regions(name, args), kwargs))
    involved = [(at, tensor) for tensor in reached if (at := storage_under(tensor)) in storages]
    earlier: dict[int, list[torch.Tensor]] = {}  # keyed by storage: optimizers write to hundreds
    targets = {id(tensor) for tensor in written}
    elsewhere = _reads_elsewhere(name)
    for storage, one in involved:
        if overlaps_itself(one):
            return "several elements of the written tensor share one memory location"
        for other in earlier.setdefault(storage, []):
            is_target = elsewhere and not targets.isdisjoint((id(one), id(other)))
            if _overlap(one, other, is_target or operation(name).scatters):
                return "it writes to memory that it reads through another view"
        earlier[storage].append(one)
    return None


def _reads_elsewhere(name: str) -> bool:
    """Return whether a kernel reads other elements than it writes, as products and scans do."""
    return not is_elementwise(name) and bool(overloads_named(name.removesuffix("_")))


def _regions(name: str, args: Args) -> Sequence[object]:
    """Return the arguments, with the assigned part in place of the whole tensor for setitem."""
    if name not in ("setitem", "__setitem__") or not _is_basic(args[1]):
        return args
    return [run_on_meta(operator.getitem, (args[0], args[1]), {}, grad=False), *args[2:]]


def _is_basic(index: object) -> bool:
    """Return whether an index gives a view."""
    parts = index if isinstance(index, tuple) else (index,)
    plain = all(part is None or part is Ellipsis or type(part) in _BASIC for part in parts)
    return plain and next(tensors_in(index), None) is None


def _layout(tensor: torch.Tensor) -> tuple[int | torch.SymInt, list[tuple[int, int]]]:
    """Return the storage offset, and (stride, extent) of the dimensions with several elements;
    symbolic ones are SymInts.
    """
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    return tensor.storage_offset(), [
        (step, size) for step, size in pairs if in_layout(">", size, 1)
    ]


def _reach(tensor: torch.Tensor) -> int:
    """Return the distance from the first to the last element."""
    return sum((step * (size - 1) for step, size in _layout(tensor)[1]), 0)


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Return whether two elements of the tensor share one memory location."""
    if not in_layout("!=", tensor.numel(), 0):  # a data-dependent size is taken as non-zero
        return False
    reach = 0
    for step, size in sorted(_layout(tensor)[1]):
        if step <= reach:
            return bool(step == 0 or tensor.numel() > _MOST or _repeats(tensor))
        reach += step * (size - 1)
    return False


def _repeats(tensor: torch.Tensor) -> bool:
    return bool(_places(tensor).unique().numel() < tensor.numel())


def _overlap(one: torch.Tensor, other: torch.Tensor, same_counts: bool = False) -> bool:
    """Return whether two views of a storage overlap; identical views only if `same_counts`."""
    if not one.numel() or not other.numel():
        return False
    # Eager compares all strides, also the insignificant ones of dimensions with one element.
    same = (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
    if same and one.storage_offset() == other.storage_offset():
        return same_counts
    if one.element_size() != other.element_size():
        return True
    start, begin = one.storage_offset(), other.storage_offset()
    if start > begin + _reach(other) or begin > start + _reach(one):
        return False
    if max(one.numel(), other.numel()) > _MOST:
        return True
    return bool(torch.isin(_places(one), _places(other)).any())


def _places(tensor: torch.Tensor) -> torch.Tensor:
    """Return the storage offset of every element, with symbolic sizes specialised to ints.

    A SymInt in tensor arithmetic would add a node that no result needs.
    """
    offsets = torch.tensor(int(tensor.storage_offset()))
    for step, size in _layout(tensor)[1]:
        offsets = offsets.unsqueeze(-1) + torch.arange(int(size)) * int(step)
    return offsets.flatten()
