"""Guards live tensors that become graph inputs, and chooses which of their sizes are symbols.

Input: a tensor and its Source. Output: its spec, with symbols for the sizes that may vary, and a
TensorMatch guard with the sizes of this call where they are not free.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch

from ....compat.tensors import dispatch_keys, dispatch_keys_on
from ....devices import counted_device
from ....guards.guard import TensorMatch
from ....guards.kinds.tensors import hiding_entries
from ....guards.source import Source
from ....lazy_dataclass import replace
from ....spec import TensorSpec, spec_of
from ....symbols.size import Size
from ...varying.symbolic_sizes import symbolic_shape
from ..base import Machine
from ..tensor_base import TensorBase

__all__ = ["guarded_spec", "own_symbols"]

_NONE: Mapping[int, Size] = MappingProxyType({})


def guarded_spec(
    machine: Machine, tensor: torch.Tensor, source: Source, known: Mapping[int, Size] = _NONE
) -> TensorSpec:
    """Guard a tensor and return its spec, whose sizes are symbols where they vary. `known`: sizes
    that are computed from others, by dimension.
    """
    spec, given = spec_of(tensor), dispatch_keys(tensor)
    if (device := counted_device(spec.device)) != spec.device:
        spec, given = replace(spec, device=device), dispatch_keys_on(device.type, given)
    # One comparison of the dispatch keys excludes conjugate, negative and functorch tensors.
    keys, hiding = given.raw_repr(), hiding_entries(tensor)
    varying = machine.symbols.varying_dims(source, tensor)
    if not varying:
        machine.guard(TensorMatch(source, spec, keys, hiding=hiding))
        return spec
    shape = symbolic_shape(machine.symbols, source, spec, varying, known)
    machine.guard(TensorMatch(source, spec, keys, shape.free_sizes, shape.free_strides, hiding))
    machine.guard(*shape.guards)
    return shape.spec


def own_symbols(machine: Machine, made: TensorBase) -> None:
    """Note that the tensor of a new graph input is the one that its symbols are read from."""
    for symbol, (node, dim) in machine.notes.root.graph.sizes.inputs.items():
        if node is made.node:
            machine.symbols.owners[symbol] = made, dim
