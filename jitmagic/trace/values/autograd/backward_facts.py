"""Records the facts about Python state that the backward of an autograd function relies on.

Input: the values that the forward stored on `ctx`, and the class. Output: separate Values for the
backward, whose sources are the objects that a call saves for it (`SavedRef`, guards/source/), and
the facts read from them. These are guards of the frame and of each run of the backward. If one
fails when the backward runs, the user's own backward runs, on a rebuilt `ctx` (rebuilt_objects.py).

An object has one Value in the frame and another in the backward, because facts that the frame read
may not hold later. The backward's model does not see writes of the frame: if they change a fact,
its guard fails. Tensors have the same Value in both. A list, cell or function created by the frame
is copied; it must not change afterwards, nor escape from the frame.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import fields, replace
from typing import Any

import torch

from ....guards.guard import (
    Guard,
    InRange,
    NoOverlap,
    NumbersRelate,
    SameObject,
    SizesRelate,
    TensorMatch,
)
from ....guards.kinds import KINDS
from ....guards.source import (
    Builtin,
    Global,
    Globals,
    ImportedModule,
    SavedRef,
    Source,
    describe,
)
from ...breaks import BackwardRefused, GraphBreak
from ...knowledge import Knowledge
from ...state import GuardBook
from ..base import Builder, CannotRebuild, Lazy, Machine, Value
from ..containers.mappings import DictValue, entries_of_live
from ..containers.sequences import ListValue, TupleValue
from ..containers.sets import SetValue
from ..modules.new_modules import NewModuleValue
from ..numbers.number import NumberValue
from ..objects.callables import BuiltinValue
from ..objects.class_facts import attribute_of_class
from ..objects.classes import ClassValue
from ..objects.constants import ConstantValue
from ..objects.functions import BoundMethodValue, CellValue, FunctionValue
from ..objects.instances import InstanceValue
from ..objects.namespaces import frame_globals, module_names
from ..objects.partials import PartialValue
from ..tensors.tensor import TensorValue
from .traced_backwards import SavedObjects, TracedBackwards

__all__ = ["BackwardFacts", "unwrapped"]

# Facts about tensors and sizes hold for the whole call, so that only the frame guards them.
_OF_CALL = (TensorMatch, SizesRelate, NumbersRelate, NoOverlap, InRange)
_ROOTS = (SavedRef, Global, Globals, Builtin, ImportedModule)


class BackwardFacts:
    """The facts of one call of an autograd function, or of a recomputed region."""

    def __init__(self, machine: Machine, name: str) -> None:
        self.known = Knowledge()
        with _looking(machine, self.known, self):
            frame_globals(machine, machine.snapshot.globals)
        self.guards: tuple[Guard, ...] = ()  # set when the backward has been traced
        # Autograd functions whose backwards are being traced, the outermost first.
        self.functions: list[type] = []
        self._machine, self._name, self._born = machine, name, machine.step
        self._frame: Knowledge = machine.known
        self._numbers: frozenset[Source] | None = machine.symbols.varying
        self._held = machine.notes.root.of(SavedObjects)
        self._values: dict[int, tuple[Value, Value]] = {}  # by the id of the frame's value
        # Objects created by the frame, and copies of them, with their contents when copied.
        self._own: list[tuple[Value, list[Value]]] = []
        self._copies: list[tuple[Value, list[Value]]] = []
        machine.notes.root.of(TracedBackwards).append(self)
        machine.at_exit(self._check_exit)

    # -- values of the backward ------------------------------------------------------------------

    def rebind(self, value: Value) -> Value:
        """Return the backward's Value for a Value of the frame; the same one each time."""
        value = unwrapped(value)
        if id(value) not in self._values:
            self._values[id(value)] = value, self._new_value(value)
        return self._values[id(value)][1]

    def _new_value(self, value: Value) -> Value:
        # A number that the forward saved cannot change, so the frame's symbol is still valid. Read
        # anew as a constant, 10 values gave 10 graphs (now 2).
        if isinstance(value, TensorValue) or (isinstance(value, NumberValue) and value.is_plain):
            if isinstance(value, TensorValue) and value.live is not None and value.source:
                self._held.index(value.source)  # the backward checks its version counter
            elif isinstance(value, TensorValue):
                # torch checks versions only in save_for_backward, not of attributes of ctx.
                self._own.append((value, []))
            return value
        if value.source is not None:
            held = self._held.index(value.source)
            live = self._object_of(value)
            return self._machine.lazy(live, SavedRef(held, describe(value.source)))
        return self._of_frame(value)

    def _of_frame(self, value: Value) -> Value:
        """Return the backward's value for an object without a Source: the frame created it, or it
        is a constant.
        """
        machine = self._machine
        match value:
            case ConstantValue() | BuiltinValue():
                return value
            case ClassValue():
                return machine.class_of(value.live, None)  # type: ignore[no-any-return]
            case BoundMethodValue():
                return BoundMethodValue(self.rebind(value.function), self.rebind(value.owner))
            case FunctionValue():
                return value if value.live is not None else self._function(value)
            case CellValue():
                contents = value.load(machine)
                return self._copy(value, CellValue(contents and self.rebind(contents)))
            case TupleValue():
                made = copy(value)
                made.items = [self.rebind(item) for item in value.items]
                return made
            case PartialValue():
                args = [self.rebind(arg) for arg in value.args]
                named = {name: self.rebind(arg) for name, arg in value.kwargs.items()}
                return PartialValue(self.rebind(value.function), args, named)
            case ListValue():
                return self._copy(value, ListValue([self.rebind(item) for item in value.items]))
            case DictValue() if value.kind in (dict, OrderedDict) and value.names is None:
                pairs = [(self.rebind(key), self.rebind(one)) for key, one in value.pairs.values()]
                return self._copy(value, DictValue.of(machine, pairs, value.kind))
            case SetValue() if value.kind is set:
                return self._copy(value, SetValue.of(machine, map(self.rebind, value.parts())))
            case InstanceValue() if _can_be_made(value):
                return self._copy(value, self._instance(value))
        if value.is_constant(machine):
            return machine.constant(value.as_constant(machine))
        raise self.refused(f"the forward saves a {value.describe()} for it")

    def _function(self, value: FunctionValue) -> FunctionValue:
        made = FunctionValue(value.code, self._names(value.globals))
        made.name, made.qualname = value.name, value.qualname
        made.defaults, made.kwdefaults = (
            self.rebind(value.defaults),
            self.rebind(value.kwdefaults),
        )
        made.closure = tuple(self.rebind(cell) for cell in value.closure)
        return made

    def _instance(self, value: InstanceValue) -> InstanceValue:
        made = copy(value)
        made.cls = self.rebind(value.cls).realize(self._machine)  # type: ignore[assignment]
        made.slots = {name: one and self.rebind(one) for name, one in value.slots.items()}
        if value.names is not None:
            pairs = [(key, self.rebind(one)) for key, one in value.names.pairs.values()]
            made.names = DictValue.of(self._machine, pairs)
        return made

    def _names(self, names: DictValue) -> DictValue:
        live = names.store.live
        if names.by_identity:  # of the frame or of a module
            return self._machine.globals_of(live, lambda: self._module_names(live))  # type: ignore[no-any-return]
        assert names.source is not None
        held = SavedRef(self._held.index(names.source), "globals()")
        return entries_of_live(self._machine, live, held)

    def _module_names(self, live: dict[str, object]) -> DictValue:
        name = live.get("__name__")
        module = sys.modules.get(name) if isinstance(name, str) else None
        if module is None or vars(module) is not live:
            raise self.refused("it reads globals that no function refers to")
        return module_names(self._machine, module, ImportedModule(str(name)))

    def _copy(self, value: Value, made: Value) -> Value:
        self._own.append((value, _contents(value)))
        self._copies.append((made, _contents(made)))
        return made

    def _object_of(self, value: Value) -> Any:
        if isinstance(value, Lazy):
            return value.obj
        if isinstance(value, ConstantValue):
            return value.value
        live = getattr(value, "live", None) or self._frame.object_of(value)
        if live is None:
            raise self.refused(f"the forward saves a {value.describe()} for it")
        return live

    def shared(self, obj: object, source: Source) -> Value | None:
        """Return the frame's Value of a tensor, or of a varying number that the call saves.

        None for any other object. No write can change such a number; for a tensor, a guard of the
        backward checks that its source still reads the same tensor.
        """
        is_number = isinstance(source, SavedRef) and type(obj) in (int, float)
        if not is_number and not isinstance(obj, torch.Tensor):
            return None
        path = self._moved(source)
        with _looking(self._machine, self._frame, None), self._varying(self._numbers):
            value = self._machine.wrap(obj, path)
        if is_number:
            return value if isinstance(value, NumberValue) else None
        # User code may rebind the path to another tensor before the backward runs.
        held = SavedRef(self._held.index(path), describe(path))
        if source != held:
            self._machine.guard(SameObject(source, held))
        return value

    # -- facts -----------------------------------------------------------------------------------

    def book_for(self, guard: Guard) -> GuardBook:
        """Return the guard book, the frame's or the backward's, that a new guard belongs to."""
        sources = KINDS[type(guard)].sources(guard)
        roots = [source.root for source in sources]
        # InRange guards are about sizes of the call, which are fixed, or a saved object's length.
        if isinstance(guard, _OF_CALL) and not any(isinstance(root, SavedRef) for root in roots):
            return self._frame.book
        for source, root in zip(sources, roots, strict=True):
            if not isinstance(root, _ROOTS):
                raise self.refused(f"it reads {describe(source)}")
        return self.known.book

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Make reads in this block (the trace of the backward) facts, also guards of the frame."""
        machine, mark = self._machine, len(self._frame.book)
        # A number read in the backward may differ from the one that the forward used.
        none = None if self._numbers is None else frozenset[Source]()
        try:
            with _looking(machine, self.known, self), self._varying(none):
                yield
        except GraphBreak as broken:
            broken.mark = mark
            raise
        finally:
            machine.guard(*self._close())

    @contextmanager
    def _varying(self, numbers: frozenset[Source] | None) -> Iterator[None]:
        """Allow these numbers to be symbols in this block."""
        symbols = self._machine.symbols
        before, symbols.varying = symbols.varying, numbers
        try:
            yield
        finally:
            symbols.varying = before

    def _close(self) -> tuple[Guard, ...]:
        """Finish the list of facts, and return them as guards on the frame's sources."""
        for guard in self.known.unread():
            self.known.book.add(guard, self._machine.where)
        _, *guards = self.known.book.finish(self._machine.entry_state)
        self.guards = tuple(guards)
        return tuple(self._moved(guard) for guard in guards)

    def _moved(self, part: object) -> Any:
        """Return a guard or Source with the frame's sources in place of SavedRefs."""
        if isinstance(part, SavedRef):
            return list(self._held)[part.index]
        if isinstance(part, Guard | Source):
            moved = {field.name: self._moved(getattr(part, field.name)) for field in fields(part)}
            return replace(part, **moved)
        return tuple(map(self._moved, part)) if type(part) is tuple else part

    def check_copies(self) -> None:
        """Raise GraphBreak if the backward has changed an object that the frame created."""
        if any(_has_changed(made, contents) for made, contents in self._copies):
            raise self.refused("it has side effects")
        inputs = self._machine.notes.root.inputs.values()
        if any(isinstance(entry.source.root, SavedRef) for entry in inputs):
            raise self.refused("it reads the memory of an array")

    def give_up(self) -> None:
        """Forget the facts of a backward that is not traced after all."""
        self.known = Knowledge()
        self._own.clear()
        self._copies.clear()

    def refused(self, why: str) -> GraphBreak:
        return GraphBreak(BackwardRefused.of(name=self._name, why=why))

    def _check_exit(self, builder: Builder) -> None:
        """Raise CannotRebuild if an object created by the frame has changed since, or escapes."""
        if (value := self.escaping(builder)) is not None:
            why = f"the forward saves a {value.describe()} for it, which may change later"
            reason = BackwardRefused.of(name=self._name, why=why)
            raise CannotRebuild("what a backward reads", self._born, reason)

    def escaping(self, builder: Builder) -> Value | None:
        """Return an object created by the frame that has changed since, or that escapes."""
        pairs = ((v, c) for v, c in self._own if _has_changed(v, c) or builder.is_live(v))
        return next((value for value, _ in pairs), None)

    @property
    def is_stale(self) -> bool:
        """Return whether the frame has written to state that the backward has read."""
        mutated = self._machine.effects.mutated
        return self._frame.has_written(self.known, mutated) or any(
            _has_changed(value, contents) for value, contents in self._own
        )


def _can_be_made(value: InstanceValue) -> bool:
    """Return whether the frame created a plain object, whose state is its attributes only."""
    is_plain = type(value) in (InstanceValue, NewModuleValue) and value.source is None
    return is_plain and attribute_of_class(value.cls.live, "__new__") is object.__new__


@contextmanager
def _looking(machine: Machine, known: Knowledge, later: BackwardFacts | None) -> Iterator[None]:
    before = machine.known, machine.backward_facts
    machine.known, machine.backward_facts = known, later
    try:
        yield
    finally:
        machine.known, machine.backward_facts = before


def unwrapped(value: Value) -> Value:
    """Return the realized value of a Lazy, if it has one; other values unchanged."""
    return value.real if isinstance(value, Lazy) and value.real is not None else value


def _contents(value: Value) -> list[Value]:
    """Return the values in a container, cell or object of the frame."""
    return list(_parts(value))


def _has_changed(value: Value, contents: Sequence[Value]) -> bool:
    now = _contents(value)
    pairs = zip(now, contents, strict=False)
    return len(now) != len(contents) or any(unwrapped(a) is not unwrapped(b) for a, b in pairs)


def _parts(value: Value) -> Iterator[Value]:
    yield from value.parts()
    if isinstance(value, DictValue):
        yield from value.keys()
