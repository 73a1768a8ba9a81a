"""Rewrites indexing by masks (`x[mask]`, `x[mask] = y`, `masked_select`) to integer indices.

The indices are those of `nonzero`, as inside torch's kernels; their number is an unbacked size
(graph/symbolic/data_sizes.py). Equal mask computations share their indices, so that `x[mask]` and
`y[mask]` have the same unbacked size, and the backward needs no mask.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch.fx import Node

from ....graph.builder import GraphBuilder
from ....graph.fresh_meta import same_shape
from ....graph.symbolic.sym_node import is_data_dependent
from ....graph.target_names import Target
from ..base import Machine
from ..numbers.torch_arguments import call_with_known

__all__ = ["masks_to_indices"]

_ITEMS = (operator.getitem, operator.setitem)
_SELECTED = ("masked_select", torch.masked_select)
_DEPTH = 8  # levels of producer nodes compared to find equal masks


# Two sizes of equal masks would be two unknown numbers, and `x[mask] - y[mask]` a graph break:
# nothing proves them equal.
class _Coordinates(dict[Hashable, tuple[Node, ...]]):
    """Maps the computation of each mask of one graph to its indices."""


def masks_to_indices(
    machine: Machine, target: Target, args: list[Any], kwargs: Mapping[str, object]
) -> tuple[Target, list[Any]]:
    """Return the call and its arguments with integer indices; unchanged without a mask."""
    graph = machine.graph
    if graph.fresh_size is None or kwargs or not args or not isinstance(args[0], Node):
        return target, args
    if target in _ITEMS and _is_tensor(args[0]):
        key = args[1] if type(args[1]) is tuple else (args[1],)
        # index_put_ takes the mask itself and broadcasts the value, so it needs no size.
        if target is operator.setitem and not _is_sized_by_data(args[2]):
            return _filled(machine, target, args, key)
        if (made := _without_masks(machine, args[0], key)) is not None:
            return target, [args[0], made, *args[2:]]
    if target in _SELECTED and len(args) == 2 and all(map(_is_tensor, args)):
        x, mask = args
        if _meta(mask).dtype is torch.bool:
            if not same_shape(_meta(x).shape, _meta(mask).shape):
                lines = machine.lines()
                # masked_select broadcasts both operands, indexing does not.
                x, mask = graph.call(torch.broadcast_tensors, [x, mask], {}, lines)
            if _meta(x).dim():
                return operator.getitem, [x, _coordinates(machine, mask)]
    return target, args


def _is_sized_by_data(value: Any) -> bool:
    return _is_tensor(value) and any(map(is_data_dependent, _meta(value).shape))


def _filled(
    machine: Machine, target: Target, args: list[Any], key: tuple[Any, ...]
) -> tuple[Target, list[Any]]:
    """Rewrite `x[mask] = y` to `torch.where` if each row gets the same value and y needs grad.

    The backward of where has no data-dependent size.
    """
    x, _, value = args
    if len(key) != 1 or not _is_mask(key[0]) or not _is_tensor(value):
        return target, args
    (mask,), rest = key, _meta(x).dim() - _meta(key[0]).dim()
    fits = _meta(value).dtype is _meta(x).dtype and _meta(value).dim() <= rest
    covers = same_shape(_meta(mask).shape, _meta(x).shape[: _meta(mask).dim()])
    if not _meta(value).requires_grad or not fits or not covers or not _meta(mask).dim():
        return target, args
    # The masked training of HuBERT, SEW and wav2vec2 is one graph this way.
    graph, lines = machine.graph, machine.lines()
    shape = (*_meta(mask).shape, *(1,) * rest)
    rows = graph.call("reshape", [mask, shape], {}, lines) if rest else mask
    return "copy_", [x, graph.call(torch.where, [rows, value, x], {}, lines)]


def _is_tensor(value: object) -> bool:
    return isinstance(value, Node) and isinstance(value.meta["val"], torch.Tensor)


def _meta(node: Node) -> torch.Tensor:
    meta: torch.Tensor = node.meta["val"]
    return meta


def _is_mask(part: Any) -> bool:
    return _is_tensor(part) and _meta(part).dtype is torch.bool


def _without_masks(machine: Machine, x: Node, key: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return the key with integer indices, or None to record the key unchanged.

    That is so if it has no mask, or if a mask does not fit the tensor, for which torch raises.
    """
    if not any(map(_is_mask, key)):
        return None
    taken = sum(_meta(p).dim() if _is_mask(p) else p is not None and p is not ... for p in key)
    shape, at = _meta(x).shape, 0
    made: list[Any] = []
    for part in key:
        if part is ...:
            at += len(shape) - taken
        elif _is_mask(part):
            mask = _meta(part)
            if not mask.dim() or not same_shape(mask.shape, shape[at : at + mask.dim()]):
                return None
            at += mask.dim()
            made += _coordinates(machine, part)
            continue
        else:
            at += part is not None
        made.append(part)
    return tuple(made)


def _coordinates(machine: Machine, mask: Node) -> tuple[Node, ...]:
    graph, known = machine.graph, machine.notes.of(_Coordinates)
    # A write in place changes the mask but not its node, so the key has the version as well.
    itself = mask, _meta(mask)._version
    if itself not in known:
        alike = itself if graph.writes.to(mask) else _computation(graph, mask, _DEPTH)
        if alike not in known:
            known[alike] = call_with_known(machine, torch.where, [mask], {})
        known[itself] = known[alike]
    return known[itself]


def _computation(graph: GraphBuilder, value: object, depth: int) -> Hashable:
    """Return a key that is equal for equal computations on tensors without writes."""
    if isinstance(value, tuple | list):
        return type(value), *(_computation(graph, part, depth) for part in value)
    if isinstance(value, slice):
        return slice, *(
            _computation(graph, p, depth) for p in (value.start, value.stop, value.step)
        )
    # 1, 1.0 and True are equal and hash alike, but as arguments they give other dtypes.
    if not isinstance(value, Node):
        return type(value), repr(value)
    acts = value.op not in ("call_function", "call_method") or value.meta.get("random")
    if acts or not depth or any(map(graph.writes.to, value.all_input_nodes)):
        return value
    kwargs = tuple(sorted(value.kwargs.items()))
    parts = (_computation(graph, part, depth - 1) for part in (value.args, kwargs))
    return value.target, getattr(value.meta["val"], "dtype", None), *parts
