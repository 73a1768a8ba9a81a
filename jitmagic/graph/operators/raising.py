"""Finds operations that may raise because of tensor data, so they run even if unused.

Input: the bare name of a torch function, a tensor method or an ATen operator, with its arguments as
the graph has them. Output: whether eager's kernel reads the data and may refuse it. Errors due to
dtypes and shapes were found when the call was recorded and are ignored here, unless a size is
data-dependent.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Node

from ...late import load
from ...spec import TensorSpec
from ...symbols.size import DataSize, Size
from ...torch_types import Args, Kwargs
from ..nested import nodes_in
from ..node_meta import symbols_in, value_of
from ..target_names import target_name
from ..targets.inner_graphs import WithGraphs

__all__ = ["call_may_raise", "has_data_sizes", "may_raise_on_data", "takes_data_size"]


def may_raise_on_data(node: Node) -> bool:
    """Return whether running the node on real data can raise although recording succeeded."""
    if node.op not in ("call_function", "call_method"):
        return False
    if node.meta.get("expects"):  # it raises unless a data-dependent size has the right value
        return True
    if isinstance(node.target, WithGraphs):
        return any(may_raise_on_data(n) for graph in node.target.graphs() for n in graph.nodes)
    if node.target in (operator.getitem, operator.setitem):
        return _looks_up(node.args[1:2])
    spec = node.meta.get("spec")
    dtype = spec.dtype if isinstance(spec, TensorSpec) else None
    return call_may_raise(node.target, node.args, node.kwargs, dtype)


def call_may_raise(target: Any, args: Args, kwargs: Kwargs, dtype: torch.dtype | None) -> bool:
    """Do `may_raise_on_data` for a call whose first result has this dtype. Only ints, floats and
    complex numbers among its arguments count as numbers.
    """
    name = target_name(target)
    # The rows of all operators are a tenth of the import of the stages, and what runs a stored
    # entry has no graph to ask about.
    raises = load("graph.operators.target_traits").operation_of(target).raises
    if raises == "zero":
        return _is_integer(dtype) and not _is_number(_divisor(name, args, kwargs))
    return raises in ("data", "often")


def has_data_sizes(node: Node) -> bool:
    """Return whether a size of the node's results is data-dependent, or one that they read."""
    return any(isinstance(symbol.origin, DataSize) for symbol in symbols_in(node))


def takes_data_size(node: Node) -> bool:
    """Return whether the call takes a data-dependent int, as in `zeros(n.item())`: it may be
    negative, or too large for the tensor that is cut.
    """
    if node.op not in ("call_function", "call_method"):
        return False
    return any(
        isinstance(value_of(one), Size) and has_data_sizes(one) for one in node.all_input_nodes
    )


def _is_integer(dtype: torch.dtype | None) -> bool:
    fractional = dtype is None or dtype.is_floating_point or dtype.is_complex
    return not fractional and dtype is not torch.bool


def _divisor(name: str, args: Args, kwargs: Kwargs) -> object:
    """Return the divisor: a number was checked when recorded, a tensor may contain a zero."""
    if "other" in kwargs:
        return kwargs["other"]
    return args[0] if name.startswith("__r") else args[1]


def _is_number(value: object) -> bool:
    return isinstance(value, bool | int | float | complex)


def _looks_up(index: object) -> bool:
    """Return whether an index has a tensor or a list; slices and integers were checked already."""
    inside = index if isinstance(index, tuple) else (index,)
    listed = any(
        isinstance(part, list) or (isinstance(part, tuple) and _looks_up(part)) for part in inside
    )
    return listed or bool(nodes_in(index))
