"""Merges equal kernels: layers of a model differ only in their buffers, unrolled time steps only in
the offsets into them.

In: the nests of a program. Out: the nests to render, and for every nest the kernel that it
launches. Two nests are equal when their stores are the same values after the buffers are numbered
in the order of the kernel's arguments, and those buffers have the same shapes, strides and dtypes.
Nests that differ only in constants added to their indexes share a kernel without these constants:
each launch passes the address of its first element. An unrolled GRU of 32 steps has 19 kernels
instead of 78, forward and backward, and g++ takes 0.9 s instead of 4.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..lazy_dataclass import dataclass, field, replace
from ..loops.expr import Expr, Integer, add, bounds, linear
from ..loops.ir import Buffer, Load, Nest, Value, walk
from ..schedule.dependencies import store_values
from ..schedule.substitution import Rebuilder
from .loop_structure import nest_arguments

if TYPE_CHECKING:
    from .attention.kernel import AttentionKernel, Kernel

__all__ = ["SharedKernels", "distinct_kernels"]

_BOUNDARY = 16  # bytes: Triton specialises GPU kernels on the arguments that are aligned to it
_Starts = Mapping[str, tuple[int, ...]]  # buffer -> the least index of each dimension


@dataclass(frozen=True, slots=True)
class SharedKernels:
    """Maps nests to shared kernels. `nests`: one per kernel; `kernels`: nest name -> kernel name;
    `starts`: nest name -> offset in elements of each argument, absent if all are 0.
    """

    nests: tuple[Kernel, ...]
    kernels: Mapping[str, str]
    starts: Mapping[str, tuple[int, ...]]
    attention: Mapping[str, AttentionKernel] = field(default_factory=dict)  # by the call

    def with_attention(self, calls: Sequence[AttentionKernel]) -> SharedKernels:
        """Return these kernels and those of the calls; equal calls share one."""
        first: dict[object, AttentionKernel] = {}
        shared = {call.name: first.setdefault(call.key, call).name for call in calls}
        named = {call.name: call for call in calls}
        nests = (*self.nests, *first.values())
        return SharedKernels(nests, {**self.kernels, **shared}, self.starts, named)


def distinct_kernels(nests: Sequence[Nest], buffers: Mapping[str, Buffer]) -> SharedKernels:
    """Choose one kernel for all nests that are equal but for their offsets."""
    first: dict[object, Nest] = {}
    like = {n.name: first.setdefault(_shape_of(n, buffers), n) for n in nests}
    groups: dict[object, list[tuple[Nest, _Starts]]] = {}
    for shape, nest in first.items():
        starts = _starts(nest, buffers)
        key = _shape_of(_from_start(nest, starts), buffers) if starts else shape
        groups.setdefault(key, []).append((nest, starts))
    chosen: list[Nest] = []
    kernels: dict[str, str] = {}
    begins: dict[str, tuple[int, ...]] = {}
    for members in groups.values():
        nest, starts = members[0]
        # A nest with no equal keeps its constants: the renderer may align loads by them.
        chosen.append(nest if len(members) == 1 else _from_start(nest, starts))
        for member, starts in members:
            kernels[member.name] = nest.name
            if starts and len(members) > 1:
                begins[member.name] = _offsets(member, starts, buffers)
    launched = {name: kernels[same.name] for name, same in like.items()}
    moved = {name: begins[same.name] for name, same in like.items() if same.name in begins}
    return SharedKernels(tuple(chosen), launched, moved)


def _shape_of(nest: Nest, buffers: Mapping[str, Buffer]) -> object:
    """Return a key that is equal for nests that can share a kernel: the nest with numbered buffers,
    and the facts of the buffers in that order.
    """
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


# -- where a nest begins --------------------------------------------------------------------------


def _starts(nest: Nest, buffers: Mapping[str, Buffer]) -> _Starts:
    """Return the least indexes of the buffers that are not accessed from their first element."""
    least: dict[str, tuple[int, ...]] = {}
    for name, index in _accesses(nest):
        low = tuple(map(_least, index))
        before = least.get(name, low)
        least[name] = tuple(map(min, low, before))
    return {name: low for name, low in least.items() if any(low) and _may_move(buffers[name], low)}


def _accesses(nest: Nest) -> list[tuple[str, tuple[Expr, ...]]]:
    nodes = walk(store_values(nest.stores))
    loads = [(node.buffer, node.index) for node in nodes if isinstance(node, Load)]
    return [*loads, *((store.buffer, store.index) for store in nest.stores)]


def _least(index: Expr) -> int:
    """Return the largest constant that leaves the index a sum of the same terms, none negative."""
    return max(0, min(linear(index)[0], bounds(index)[0]))


def _may_move(buffer: Buffer, low: tuple[int, ...]) -> bool:
    if not all(isinstance(n, int) for n in buffer.stride):
        return False
    # On a GPU a shared kernel must keep the alignment that Triton has specialised on.
    moved = _flat(buffer, low) * buffer.dtype.itemsize
    return buffer.device.type == "cpu" or moved % _BOUNDARY == 0


def _flat(buffer: Buffer, low: tuple[int, ...]) -> int:
    return sum(n * int(stride) for n, stride in zip(low, buffer.stride, strict=True))


def _offsets(nest: Nest, starts: _Starts, buffers: Mapping[str, Buffer]) -> tuple[int, ...]:
    names = nest_arguments(nest)
    return tuple(_flat(buffers[n], starts[n]) if n in starts else 0 for n in names)


def _from_start(nest: Nest, starts: _Starts) -> Nest:
    """Return the nest over buffers that begin at its own first elements."""

    def moved(name: str, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        if name not in starts:
            return index
        pairs = zip(index, starts[name], strict=True)
        return tuple(add(part, Integer(-low)) if low else part for part, low in pairs)

    def load(node: Load) -> Value:
        index = moved(node.buffer, node.index)
        return Load(node.buffer, index, node.dtype, node.mask, node.fill)

    rebuild = Rebuilder(on_load=load)
    stores = [rebuild.store(store) for store in nest.stores]
    return replace(nest, stores=tuple(replace(s, index=moved(s.buffer, s.index)) for s in stores))
