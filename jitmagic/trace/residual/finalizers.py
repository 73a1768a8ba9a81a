"""Finalizer timing: breaks where the last reference to an object with a finalizer may be dropped.

CPython runs `__del__` when the last reference to an object is dropped. So a frame that creates such
an object breaks there, and its resume functions hold the only references to their arguments. The
trace of such a resume function breaks again before each instruction that drops one of these. Python
executes that instruction, so the object dies when it does in eager. Values that may die unnoticed
(numbers, tensors) are dropped at any time. The others stay bound, even if they are not read again,
until the program unbinds them or the frame returns.
"""

from __future__ import annotations

import types
from collections.abc import Iterator

import torch

from ...errors import UserLine
from ...guards.guard import LengthIs, TypeIs
from ...guards.source import Argument, CellContents, Item, Source
from ..breaks import Finalizer
from ..restarts import Restart, Stop
from ..state import Interpreter
from ..values.base import Args, Kwargs, Lazy, Value
from ..values.containers.generators import GeneratorValue
from ..values.numbers.number import NumberValue
from ..values.objects.constants import ATOMS, ConstantValue
from ..values.objects.functions import CellValue

__all__ = [
    "check_dropped",
    "is_plain_tensor",
    "may_be_freed",
    "names_kept_bound",
    "passes_last_reference",
    "start_watching",
]

# Exact classes: a subclass may define `__del__`.
_PLAIN = frozenset(
    {*ATOMS, torch.Tensor, torch.nn.Parameter, torch.Size, slice, type, types.ModuleType}
    | {types.BuiltinFunctionType}
)

_CONTAINERS = frozenset({list, tuple, dict, set})


class _References:
    """The objects that the root frame references, by id, before the instruction at `line`."""

    def __init__(self) -> None:
        self.watches = False
        # Holds the objects, so that no other one gets their ids during the trace.
        self.objects: dict[int, tuple[object, Source]] = {}
        self.line: UserLine | None = None


def start_watching(machine: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """Start to watch references; traced as the first call in such a resume function."""
    machine.notes.root.of(_References).watches = True
    return machine.constant(None)


def check_dropped(machine: Interpreter) -> None:
    """Break if the root frame's last instruction has dropped a reference to an object."""
    held = machine.notes.root.of(_References)
    if not held.watches:
        return
    objects = {id(live): (live, source) for live, source in _lives(machine)}
    for key, (live, source) in held.objects.items():
        # A drop is noticed one instruction later, hence `step - 1` and the line from before.
        if key not in objects and not _is_plain_container(machine, live, source):
            reason = Finalizer.of(what=f"the frame drops a {type(live).__name__}")
            raise Restart(Stop(machine.step - 1, reason, held.line))
    held.objects, held.line = objects, machine.root.line()


def names_kept_bound(machine: Interpreter) -> frozenset[str]:
    """Return the variables that stay bound after a graph break even if they are not read again."""
    held = machine.notes.root.of(_References)
    # Eager keeps variables bound until the frame returns. Liveness would drop an object with a
    # finalizer after its last read.
    if not held.watches and not isinstance(machine.stop and machine.stop.reason, Finalizer):
        return frozenset()
    slots = machine.root.slots.items()
    return frozenset(name for name, value in slots if not _may_end_here(machine, value))


def passes_last_reference(machine: Interpreter) -> bool:
    """Return whether the call that ends the graph takes the frame's last reference to an object.

    Then the object dies when the callee drops it. A hooked callee would be too late: the
    interpreter holds the arguments on its stack for the whole call of the stub.
    """
    if not machine.notes.root.of(_References).watches or "CALL" not in machine.root.instruction.op:
        return False
    stack = [value for value in machine.root.stack if value is not None]
    objects = [live for value in stack if (live := _held_object(machine, value)) is not None]
    kept = {id(_held_object(machine, value)) for value in machine.root.slots.values()}
    return any(
        id(live) not in kept and (type(live) in _CONTAINERS or hasattr(type(live), "__del__"))
        for live in objects
    )


def is_plain_tensor(value: object) -> bool:
    """Return whether the object is a tensor that may be freed as soon as it is not read again."""
    return type(value) is torch.Tensor


def may_be_freed(machine: Interpreter, value: Value) -> bool:
    """Return whether the trace need not make a value that is not read again: it would cost
    memory, or is a generator, which cannot be made.
    """
    if isinstance(value, Lazy):  # an object of the frame: to read its type would be a guard
        return False
    kind = value.python_type(machine)
    return isinstance(value, GeneratorValue | NumberValue) or kind is torch.Tensor


def _may_end_here(machine: Interpreter, value: Value) -> bool:
    if _is_plain(machine, value):
        return True
    if not isinstance(value, Lazy) or value.real is None or value.real.is_changed(machine):
        return False
    assert value.source is not None
    return _is_plain_container(machine, value.obj, value.source)


def _lives(machine: Interpreter) -> Iterator[tuple[object, Source]]:
    """Yield objects from before the call that the root frame references and whose death shows."""
    for value in (*machine.root.slots.values(), *machine.root.stack):
        for one in (value, _contents(value)):
            live = None if one is None else _held_object(machine, one)
            if live is not None and one is not None and one.source is not None:
                yield live, one.source


def _held_object(machine: Interpreter, value: Value) -> object:
    """Return the live object of a value if the frame may hold its last reference, else None.

    An object inside an argument is referenced by its container, until that is mutated.
    """
    if value.source is None or _is_plain(machine, value):
        return None
    live: object = value.obj if isinstance(value, Lazy) else getattr(value, "live", None)
    if isinstance(value.source, Argument | CellContents):
        return live
    # Once the program has changed an object, a container that was taken out of it may be referenced
    # by the frame alone.
    taken_out = type(live) in _CONTAINERS and machine.effects.mutated
    # CPython looks for `__del__` on the class (tp_finalize), so one in the instance's dictionary
    # does not count.
    tells = taken_out or hasattr(type(live), "__del__")
    return live if tells and isinstance(value.source.root, Argument) else None


def _contents(value: Value | None) -> Value | None:
    """Return the contents of a cell that the trace has read or written; None for other values."""
    cell = value.real if isinstance(value, Lazy) else value
    return cell.contents if isinstance(cell, CellValue) else None


def _is_plain(machine: Interpreter, value: Value) -> bool:
    if isinstance(value, Lazy):
        return _is_plain_object(machine, value.obj, value.source)
    return isinstance(value, ConstantValue) or value.python_type(machine) in _PLAIN


def _is_plain_object(machine: Interpreter, obj: object, source: Source | None) -> bool:
    if type(obj) not in _PLAIN:
        return False
    if source is not None:
        machine.guard(TypeIs(source, type(obj)))
    return True


def _is_plain_container(machine: Interpreter, obj: object, source: Source) -> bool:
    """Return whether it is a list or tuple of guarded length whose items may all die unnoticed."""
    if not isinstance(obj, list | tuple) or type(obj) not in (list, tuple):
        return False
    # Without that guard the list of a later call may hold other items, such as an object with a
    # finalizer.
    if not machine.relies_on(LengthIs(source, len(obj))):
        return False
    items = enumerate(obj)
    return all(_is_plain_object(machine, item, Item(source, index)) for index, item in items)
