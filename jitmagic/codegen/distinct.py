"""Equal kernels are made once: the layers of a model differ in their buffers, not in their loops.

In: the nests of a program. Out: the nests to render, and for every nest the kernel that it
launches. Two nests are equal when their stores are the same values after the buffers are numbered
in the order of the kernel's arguments, and those buffers have the same shapes, strides and dtypes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..loops.ir import Buffer, Load, Nest, Value
from ..schedule.rebuild import Rebuilder
from .structure import nest_arguments

__all__ = ["distinct_kernels"]


def distinct_kernels(
    nests: Sequence[Nest], buffers: Mapping[str, Buffer]
) -> tuple[list[Nest], dict[str, str]]:
    """(one nest per kernel, nest name -> kernel name)."""
    seen: dict[object, str] = {}
    kernels: dict[str, str] = {}
    chosen: list[Nest] = []
    for nest in nests:
        key = _shape_of(nest, buffers)
        if key not in seen:
            seen[key] = nest.name
            chosen.append(nest)
        kernels[nest.name] = seen[key]
    return chosen, kernels


def _shape_of(nest: Nest, buffers: Mapping[str, Buffer]) -> object:
    """The nest with numbers for buffer names, and the facts of the buffers in that order."""
    names = nest_arguments(nest)
    number = {name: f"#{position}" for position, name in enumerate(names)}

    def renamed(load: Load) -> Value:
        return Load(number[load.buffer], load.index, load.dtype, load.mask, load.fill)

    rebuild = Rebuilder(on_load=renamed)
    stores = tuple(
        replace(rebuild.store(store), buffer=number[store.buffer]) for store in nest.stores
    )
    facts = tuple((b.shape, b.stride, b.dtype, b.device) for b in (buffers[name] for name in names))
    return nest.outer, stores, facts
