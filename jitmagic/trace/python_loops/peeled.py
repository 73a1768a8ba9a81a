"""Loop peeling: the first iteration of a rolled loop joins the graph before the loop.

Peeling pays if the inputs of the first iteration differ from those of later ones in kind, layout,
autograd history or aliasing. Before the loop of an LSTM, for example, both states are the same
tensor of zeros. Without peeling, the first iteration would need a variant of its own.

The trace goes through the first iteration and compares the variables at the loop's head before and
after it. If they are alike, or if anything else ends the graph on the way, the trace restarts and
ends before the loop.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...graph.symbolic.sym_node import as_dimensions
from ...spec import TensorSpec
from ..restarts import Restart, Stop
from ..result import BreakReason
from ..values.base import Lazy, Machine, Value

__all__ = ["check_peeled", "finish_peeling", "is_peeling", "refused_peeling", "start_peeling"]

Found = tuple[object, ...]


class _Peeling:
    """The loop of the root frame whose first iteration is part of this graph, if any."""

    def __init__(self) -> None:
        self.stop: Stop | None = None  # before the loop; None: no loop is peeled
        self.head = -1
        self.before: dict[str, Value | Found] = {}  # at the head; Lazy: not read yet
        self.pays = False


def start_peeling(machine: Machine, reason: BreakReason) -> None:
    """Begin the first iteration of the loop at the root's current instruction.

    `reason`: of the graph break there, if peeling does not pay.
    """
    peeling, root = machine.notes.root.of(_Peeling), machine.root
    if peeling.stop is None:
        # An LSTM with 16 batch sizes and lengths: its iteration has 2 variants if the first one is
        # peeled, 5 if it is not.
        peeling.head, peeling.stop = root.at, Stop(machine.step, reason, root.line())
        peeling.before = {
            # A variable that was not read yet is described after the iteration: to read it here
            # would add guards that the graph may not need.
            name: value if _is_unread(value) else _describe(machine, value)
            for name, value in _variables(machine, root.at)
        }


def is_peeling(machine: Machine) -> bool:
    """Return whether the trace is in, or has been through, a loop's first iteration."""
    return machine.notes.root.of(_Peeling).stop is not None


def finish_peeling(machine: Machine) -> None:
    """Decide whether peeling pays; called before the graph break at the head of a rolled loop."""
    peeling = machine.notes.root.of(_Peeling)
    if peeling.stop is None or not _has_iterated(machine, peeling):
        return
    before = {
        name: _describe(machine, value) if isinstance(value, Value) else value
        for name, value in peeling.before.items()
    }
    after = {name: _describe(machine, v) for name, v in _variables(machine, peeling.head)}
    peeling.pays = _without_identities(before) != _without_identities(after)


def check_peeled(machine: Machine) -> None:
    """Restart if the trace is about to end elsewhere than at the head of a peeled loop."""
    peeling = machine.notes.root.of(_Peeling)
    if peeling.stop is not None and not _has_iterated(machine, peeling):
        raise Restart(peeling.stop)


def _has_iterated(machine: Machine, peeling: _Peeling) -> bool:
    """Return whether the root is at the loop's head again."""
    here = machine.root.at == peeling.head
    return here and peeling.stop is not None and machine.step > peeling.stop.step


def refused_peeling(machine: Machine) -> Stop | None:
    """Return where the graph ends after a restart because peeling does not pay; else None."""
    peeling = machine.notes.root.of(_Peeling)
    return None if peeling.pays else peeling.stop


def _variables(machine: Machine, head: int) -> list[tuple[str, Value]]:
    """Return the root frame's variables that are read after the loop head."""
    slots: dict[str, Value] = machine.root.slots
    live = machine.assumed.live.get(head, slots.keys())
    return [(name, value) for name, value in slots.items() if name in live]


def _is_unread(value: Value) -> bool:
    return isinstance(value, Lazy) and value.real is None


def _without_identities(found: dict[str, Found]) -> dict[str, Found]:
    """Return the descriptions, with the first variable that holds it in place of each tensor."""
    holders: dict[object, str] = {}
    return {
        name: (holders.setdefault(one[1], name), *one[2:]) if one[0] is Tensor else one
        for name, one in found.items()
    }


def _describe(machine: Machine, value: Value) -> Found:
    """Return the kind of a value; of a tensor (Tensor, identity, properties that a guard fixes)."""
    real: Any = value.real if isinstance(value, Lazy) else value
    if real is not None and real.holds_data and hasattr(real, "live"):
        # Inputs by the spec with symbols: two sizes that happen to be equal in this call may differ
        # in the next.
        specs = {entry.source: entry.spec for entry in machine.notes.root.inputs.values()}
        if real.live is None:
            return Tensor, id(real), *_layout(real.meta)
        if real.source in specs:
            return Tensor, real.source, *_layout(specs[real.source])
    if value.source is not None:
        return (value.source,)
    return (type(real.value) if hasattr(real, "value") else type(real),)


def _layout(tensor: Tensor | TensorSpec) -> Found:
    """Return the properties of a tensor that its guard would fix.

    Sizes are compared as text, because symbols of two inputs are never equal.
    """
    shape, stride = (tensor.shape, tensor.stride)
    if isinstance(tensor, Tensor):
        shape, stride = as_dimensions(shape), as_dimensions(tensor.stride())
    return repr(tuple(shape)), repr(tuple(stride)), tensor.dtype, tensor.requires_grad  # type: ignore[arg-type]
