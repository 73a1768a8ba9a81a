"""Declares the keys of `node.meta`, and reads them.

`KEYS` has every key that a node of a torch-level graph or a joint graph may carry. tests/graph/
test_meta_keys.py compares the table with the package's code; `check_keys` compares a node with it.
Meta tensors are live: an in-place op on a view changes the `val` of its base's node, as in eager.
`spec` is a snapshot of the moment when the node was created.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from torch.fx import GraphModule, Node

from ..compat.modes import switch_grad_mode
from ..errors import UserLine, VerifyError
from ..spec import TensorSpec
from ..symbols.interval import Interval
from ..symbols.size import Size
from ..symbols.symbolic_numbers import Symbol, symbols_of
from .operators.foreign import is_foreign
from .symbolic.sym_node import as_dimension, as_dimensions
from .targets.regions import HookCall, back_to_entry_mode

__all__ = [
    "KEYS",
    "MetaKey",
    "changes_mode",
    "check_keys",
    "device_of",
    "devices_in",
    "is_effectful",
    "is_number",
    "is_number_like",
    "lines_of",
    "lines_of_call",
    "mutated_by",
    "spec_on",
    "specs_in",
    "symbols_in",
    "tensors_in",
    "value_of",
]


class MetaKey(NamedTuple):
    """The meaning of one key; a missing one of type bool is False."""

    stage: Literal["trace", "joint", "both"]  # the graphs whose nodes carry it
    type: type
    meaning: str
    is_kept: bool = (
        True  # whether a stored graph has it (graph/data): the tracer is not done with it
    )


KEYS: dict[str, MetaKey] = {
    "val": MetaKey("trace", object, "the meta tensor, or a structure of them, that the call "
                   "returns; for a number that calls read, its value in the traced call"),
    "spec": MetaKey("both", object, "TensorSpec with the real device; the same structure for "
                    "several results; None without tensors"),
    "lines": MetaKey("both", tuple, "UserLines: the user's, then those it was inlined from "
                     "(innermost first)"),
    "step": MetaKey("trace", int, "the tracer's number of the root frame's instruction that the "
                    "call is part of", is_kept=False),
    "mutates": MetaKey("trace", tuple, "nodes of arguments that are written in place"),
    "freed": MetaKey("trace", bool, "an output whose history a backward in the graph has freed"),
    "hooked": MetaKey("trace", bool, "an output on which the exit of the frame registers hooks: "
                      "the graph must be split after it"),
    "data_dependent": MetaKey("trace", bool, "a new tensor has a data-dependent size, or the call "
                              "has no compiled backward: it runs in eager, between partitions"),
    "stages": MetaKey("joint", tuple, "of a backward's output: the stage in which each gradient "
                      "is computed"),
    "functions": MetaKey("joint", tuple, "ATen graphs of functions that the operator takes; each "
                         "returns its result and the gradient of its first argument"),
    "expects": MetaKey("trace", bool, "eager raises unless a data-dependent size has the value "
                       "that the call needs"),
    "python": MetaKey("trace", bool, "a 0-dim tensor that stands for a Python number"),
    "number": MetaKey("trace", bool, "such a tensor, filled with a Size (computed from sizes)"),
    "range": MetaKey("trace", Interval, "of a float in which the call that reads it behaves alike"),
    "random": MetaKey("trace", bool, "the call draws from the random number generator"),
    "inference": MetaKey("trace", bool, "a tensor created under inference mode", is_kept=False),
    "speculated": MetaKey("trace", bool, "an assertion that a data-dependent branch goes as in "
                          "the traced call"),
    "mask_kind": MetaKey("trace", tuple, "of an attention mask made of constants: the count of "
                         "writes when it was read, then 'nothing', 'causal' or None",
                         is_kept=False),
    "checkpoint": MetaKey("both", object, "the `Recomputed` region (recomputed.py) that the call "
                          "is part of"),
    "enters": MetaKey("trace", dict, "Rerun -> the tensor's position among the inputs of that "
                      "checkpointed region"),
    "entered": MetaKey("joint", bool, "a value that a checkpointed region reads: the partition "
                       "saves it for the second run"),
    "recomputed": MetaKey("joint", bool, "computed by the second run of a checkpointed region"),
    "tangents": MetaKey("joint", tuple, "positions of the tangents that it depends on, if data "
                        "flow hides them (custom autograd functions)"),
    "traced_float": MetaKey("joint", float, "of a node that reads a varying number: its value "
                            "in this trace"),
    "traced_stride": MetaKey("joint", tuple, "of a placeholder that kernels lay out in another "
                             "way: its strides in the trace"),
}  # fmt: skip


def check_keys(node: Node) -> None:
    """Raise VerifyError if a node carries an undeclared key, or a value of another type."""
    for name, value in node.meta.items():
        if (key := KEYS.get(name)) is None:
            raise VerifyError(f"graph: node {node.name}: node_meta.KEYS does not declare {name!r}")
        if not isinstance(value, key.type):
            raise VerifyError(f"graph: node {node.name}: {name!r} is a {type(value).__name__}")


def value_of(node: Node) -> Any:
    """Return the meta tensor (or structure) of a node."""
    return node.meta["val"]


def device_of(node: Node) -> torch.device:
    """Return the real device of a node that stands for one tensor."""
    device: torch.device = node.meta["spec"].device
    return device


def is_number(node: Node) -> bool:
    """Return whether the node stands for a size or a float that a call reads, not for a tensor."""
    return isinstance(node.meta.get("val"), Size | float | torch.SymInt)  # or a ragged size


def devices_in(gm: GraphModule) -> set[torch.device]:
    """Return the devices that any tensor of a graph is on."""
    specs = (node.meta.get("spec") for node in gm.graph.nodes)
    return {spec.device for spec in specs if isinstance(spec, TensorSpec)}


def lines_of(node: Node) -> tuple[UserLine, ...]:
    return tuple(node.meta.get("lines", ()))


def lines_of_call(lines: tuple[UserLine, ...], operation: str) -> tuple[UserLine, ...]:
    """Return the lines that a node carries; the innermost one names the call."""
    return (*(replace(line, operation=operation) for line in lines[:1]), *lines[1:])


def mutated_by(node: Node) -> tuple[Node, ...]:
    """Return the argument nodes that this call writes in place."""
    return tuple(node.meta.get("mutates", ()))


_MODES = (
    switch_grad_mode,
    torch.set_autocast_dtype,
    torch.set_autocast_enabled,
    back_to_entry_mode,
)


def changes_mode(node: Node) -> bool:
    """Return whether the node sets the grad mode or autocast for the nodes after it."""
    return node.target in _MODES


def is_effectful(node: Node) -> bool:
    """Return whether the node must stay although its result is unused."""
    if node.op in ("placeholder", "output"):
        return True
    acts = node.meta.get("random") or node.meta.get("mutates") or changes_mode(node)
    return bool(acts) or is_foreign(node.target) or isinstance(node.target, HookCall)


def specs_in(node: Node) -> Iterator[TensorSpec]:
    """Yield the specs of all results of a node."""
    yield from _specs(node.meta.get("spec"))


def _specs(spec: object) -> Iterator[TensorSpec]:
    if isinstance(spec, TensorSpec):
        yield spec
    elif isinstance(spec, tuple | list):
        for one in spec:
            yield from _specs(one)


def symbols_in(node: Node) -> Iterator[Symbol]:
    """Yield the symbols in the sizes of a node's results."""
    value = node.meta.get("val")
    if isinstance(value, Size):
        yield from symbols_of(value.expr)
    for spec in specs_in(node):
        for size in (*spec.shape, *spec.stride, spec.storage_offset):
            if isinstance(size, Size):
                yield from symbols_of(size.expr)


def spec_on(value: object, device: torch.device) -> Any:
    """Return the spec of a meta tensor that really lives on `device`; structures are mapped."""
    if isinstance(value, torch.Tensor) and value.is_nested:  # its sizes are objects of its class
        return TensorSpec(
            (), (), value.dtype, device, value.requires_grad, _is_leaf(value), type(value)
        )
    if isinstance(value, torch.Tensor):
        return TensorSpec(
            as_dimensions(value.shape),
            as_dimensions(value.stride()),
            value.dtype,
            device,
            value.requires_grad,
            _is_leaf(value),
            storage_offset=as_dimension(value.storage_offset()),
        )
    if isinstance(value, tuple | list):
        return tuple(spec_on(item, device) for item in value)
    return None


def _is_leaf(value: torch.Tensor) -> bool:
    """Return whether the tensor is a leaf. torch raises for a view taken under no_grad whose base
    was written to since; such a view is not one.
    """
    try:
        return value.is_leaf
    except RuntimeError:
        return False


def is_number_like(value: torch.Tensor) -> bool:
    """Return whether a tensor has the form in which graphs hold Python numbers."""
    return not value.dim() and value.dtype in (torch.int64, torch.float64, torch.bool)


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """Yield the tensors in a nested structure of tuples, lists, dicts and slices, in order."""
    if isinstance(value, torch.Tensor):
        yield value
        return
    if isinstance(value, dict):
        value = value.values()
    elif isinstance(value, slice):
        value = (value.start, value.stop, value.step)
    elif not isinstance(value, (tuple, list)):
        return
    for item in value:
        kind = type(item)
        # Runs about twenty times per traced call: a plain number needs no recursive generator.
        if not (kind is int or item is None or kind is bool or kind is float):
            yield from tensors_in(item)
