"""Defers writes to inputs until no later step can raise.

In: a program, the storage of each buffer. Out: the steps that write to inputs, and the steps that
such a write waits for: those that may raise depending on their data. A graph that raises has then
written to no input, so the frame can be run again as eager without copies of the inputs. If a step
that may raise reads an input's new value, that value is first computed into a temporary.

On a GPU an index out of range stops the device: nothing runs after that, in any order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..loops.ir import Buffer, Extern, Load, LoopProgram, Nest, Step, Store, landmarks
from ..loops.ops.extern import call_may_raise
from .index_checks import has_checks

__all__ = ["WriteConstraints", "write_constraints"]


class WriteConstraints:
    """Holds the write constraints of a program. `inputs`: storages of inputs that are written in a
    program that may raise, or empty; `raising`: the steps that such a write waits for.
    """

    def __init__(self, inputs: frozenset[str], raising: frozenset[int]) -> None:
        self.inputs = inputs if raising else frozenset()
        self.raising = raising if inputs else frozenset()

    def mixes_writes_and_checks(self, stores: Sequence[Store], storage: Mapping[str, str]) -> bool:
        """Return whether a nest of these stores would write an input and check an index."""
        written = self.inputs and any(storage[store.buffer] in self.inputs for store in stores)
        return bool(written) and has_checks(stores)


def write_constraints(
    program: LoopProgram, storage: Mapping[str, str], writes: tuple[frozenset[str], ...]
) -> WriteConstraints:
    """Find the write constraints; `writes`: the storages that each step writes."""
    inputs = {storage[name] for name in program.inputs}
    written = frozenset(name for targets in writes for name in targets & inputs)
    if not written:
        return WriteConstraints(written, frozenset())
    raising: set[int] = set()
    made_by_checks: set[str] = set()  # outputs of checking nests, which may fuse with readers
    for number, step in enumerate(program.steps):
        if writes[number] & inputs:
            continue
        if isinstance(step, Nest):
            if _has_checks(step, program.buffers) or _reads(step, made_by_checks):
                made_by_checks |= {store.buffer for store in step.stores}
                raising.add(number)
        elif _may_raise(step, program.buffers):
            raising.add(number)
    return WriteConstraints(written, frozenset(raising))


def _has_checks(nest: Nest, buffers: Mapping[str, Buffer]) -> bool:
    on_cpu = buffers[nest.stores[0].buffer].device.type == "cpu"
    return on_cpu and has_checks(nest.stores)


def _reads(nest: Nest, names: set[str]) -> bool:
    loads = landmarks(store.value for store in nest.stores) if names else ()
    return any(isinstance(load, Load) and load.buffer in names for load in loads)


def _may_raise(step: Step, buffers: Mapping[str, Buffer]) -> bool:
    if not isinstance(step, Extern):
        return False
    name = next((name for name in step.results if name is not None), None)
    dtype = None if name is None else buffers[name].dtype
    return call_may_raise(step.op, step.args, step.kwargs, dtype)
