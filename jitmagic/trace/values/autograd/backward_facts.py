"""Facts of Python's state that the backward of an autograd function relies on when it runs.

Comes in: what the forward left on `ctx`, and the class. Goes out: the same as values that are
looked at anew, from the objects that a call saves for backwards (`SavedRef`, guards/source.py), and
the facts that were read of them: guards of the frame as well as of each backward. Where such a fact
does not hold the backward that the program wrote runs, with a `ctx` made again
(rebuilt_objects.py).

The same object is another value in a backward than in the frame: what the frame has read of it says
nothing of a later time. What the frame writes is not seen: a fact that it changes does not hold
later. A tensor is one value to both. A list, cell or function that the frame made is copied; it may
not change any more, nor may the program see it after the frame.
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
from ....guards.source import Builtin, Global, ImportedModule, SavedRef, Source, describe
from ...breaks import BackwardRefused, GraphBreak
from ...graph_notes import GraphNotes
from ...knowledge import Knowledge
from ...state import GuardBook
from ..base import Builder, Lazy, Machine, Unrestorable, Value
from ..containers.mappings import DictValue
from ..containers.sequences import ListValue, TupleValue
from ..containers.sets import SetValue
from ..modules.new_modules import MadeModuleValue
from ..numbers.dimensions import DimensionValue
from ..numbers.scalars import ScalarValue
from ..objects.callables import BuiltinValue
from ..objects.class_facts import attribute_of_class
from ..objects.classes import ClassValue
from ..objects.constants import ConstantValue
from ..objects.functions import BoundMethodValue, CellValue, FunctionValue, PartialValue
from ..objects.instances import InstanceValue
from ..objects.namespaces import GlobalsValue
from ..tensors.tensor import TensorValue

__all__ = ["BackwardFacts", "HeldObjects", "check_read_state", "forget_facts", "known"]

# What is relied on of tensors and sizes is a fact of the call: it is the frame's alone.
_OF_CALL = (TensorMatch, SizesRelate, NumbersRelate, NoOverlap, InRange)
_ROOTS = (SavedRef, Global, Builtin, ImportedModule)


class HeldObjects(dict[Source, int]):
    """The objects that a call of the frame holds: where they are read, and their places."""

    def index(self, source: Source) -> int:
        return self.setdefault(source, len(self))


class _AllFacts(list["BackwardFacts"]):
    """Facts of the autograd functions of one frame."""


class BackwardFacts:
    """Facts of one call of an autograd function, or of a region that is computed again."""

    def __init__(self, machine: Machine, name: str) -> None:
        self.known = Knowledge()
        live = machine.snapshot.globals
        self.known.globals[id(live)] = GlobalsValue.of_root(live)
        self.guards: tuple[Guard, ...] = ()  # what a backward relies on, at the end
        self._machine, self._name, self._born = machine, name, machine.step
        self._frame: Knowledge = machine.known
        self._numbers: frozenset[Source] | None = machine.symbols.varying
        self._held = machine.notes.root.of(HeldObjects)
        self._anew: dict[int, tuple[Value, Value]] = {}  # by the frame's value
        self._own: list[tuple[Value, list[Value]]] = []  # made by the frame: contents when copied
        self._copies: list[tuple[Value, list[Value]]] = []
        machine.notes.root.of(_AllFacts).append(self)
        machine.at_exit(self._check_exit)

    # -- values of the backward ------------------------------------------------------------------

    def anew(self, value: Value) -> Value:
        """Return what a value of the frame is in the backward."""
        value = known(value)
        if id(value) not in self._anew:
            self._anew[id(value)] = value, self._made_anew(value)
        return self._anew[id(value)][1]

    def _made_anew(self, value: Value) -> Value:
        if isinstance(value, TensorValue | DimensionValue | ScalarValue):
            if isinstance(value, TensorValue) and value.live is not None and value.source:
                self._held.index(value.source)  # its version is looked at
            elif isinstance(value, TensorValue):
                self._own.append((value, []))  # torch looks at no version of what is just on ctx
            return value
        if value.source is not None:
            held = self._held.index(value.source)
            live = self._object_of(value)
            return self._machine.lazy(live, SavedRef(held, describe(value.source)))
        return self._of_frame(value)

    def _of_frame(self, value: Value) -> Value:
        """Return the value of an object that the frame made, or that a fact about its class
        identifies.
        """
        machine = self._machine
        match value:
            case ConstantValue() | BuiltinValue():
                return value
            case ClassValue():
                return machine.class_of(value.live, None)  # type: ignore[no-any-return]
            case BoundMethodValue():
                return BoundMethodValue(self.anew(value.function), self.anew(value.owner))
            case FunctionValue():
                return value if value.live is not None else self._function(value)
            case CellValue():
                contents = value.load(machine)
                return self._copy(value, CellValue(contents and self.anew(contents)))
            case TupleValue():
                made = copy(value)
                made.items = [self.anew(item) for item in value.items]
                return made
            case PartialValue():
                args = [self.anew(arg) for arg in value.args]
                named = {name: self.anew(arg) for name, arg in value.kwargs.items()}
                return PartialValue(self.anew(value.function), args, named)
            case ListValue():
                return self._copy(value, ListValue([self.anew(item) for item in value.items]))
            case DictValue() if value.kind in (dict, OrderedDict) and not value.attributes:
                pairs = [(self.anew(key), self.anew(one)) for key, one in value.pairs.values()]
                return self._copy(value, DictValue.of(machine, pairs, value.kind))
            case SetValue() if value.kind is set:
                return self._copy(value, SetValue.of(machine, map(self.anew, value.parts())))
            case InstanceValue() if _can_be_made(value):
                return self._copy(value, self._instance(value))
        if value.is_constant(machine):
            return machine.constant(value.as_constant(machine))
        raise self.refused(f"the forward leaves it a {value.describe()}")

    def _function(self, value: FunctionValue) -> FunctionValue:
        names = self._machine.globals_of(value.globals.live, lambda: self._names(value.globals))
        made = FunctionValue(value.code, names)
        made.name, made.qualname = value.name, value.qualname
        made.defaults, made.kwdefaults = self.anew(value.defaults), self.anew(value.kwdefaults)
        made.closure = tuple(self.anew(cell) for cell in value.closure)
        return made

    def _instance(self, value: InstanceValue) -> InstanceValue:
        made = copy(value)
        made.cls = self.anew(value.cls).realize(self._machine)  # type: ignore[assignment]
        made.slots = {name: one and self.anew(one) for name, one in value.slots.items()}
        if value.names is not None:
            pairs = [(key, self.anew(one)) for key, one in value.names.pairs.values()]
            made.names = DictValue.of(self._machine, pairs)
        return made

    def _names(self, names: GlobalsValue) -> GlobalsValue:
        if names.source is None:  # of a module that the frame knows as such
            name = names.live.get("__name__")
            module = sys.modules.get(name) if isinstance(name, str) else None
            if module is None or vars(module) is not names.live:
                raise self.refused("it reads globals that no function leads to")
            return GlobalsValue.of_module(module, ImportedModule(str(name)))
        held = SavedRef(self._held.index(names.source), "globals()")
        return GlobalsValue.at(names.live, held)

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
            raise self.refused(f"the forward leaves it a {value.describe()}")
        return live

    def shared(self, obj: object, source: Source) -> Value | None:
        """Return the frame's value of a tensor that the backward comes across, or of a number that
        varies and that the call itself holds, which no write changes; None: it is neither. The path
        must lead to that very tensor later.
        """
        is_number = isinstance(source, SavedRef) and type(obj) in (int, float)
        if not is_number and not isinstance(obj, torch.Tensor):
            return None
        path = self._moved(source)
        with _looking(self._machine, self._frame, None), self._varying(self._numbers):
            value = self._machine.wrap(obj, path)
        if is_number:
            return value if isinstance(value, ScalarValue) else None
        held = SavedRef(self._held.index(path), describe(path))
        if source != held:
            self._machine.guard(SameObject(source, held))
        return value

    # -- facts -----------------------------------------------------------------------------------

    def book_for(self, guard: Guard) -> GuardBook:
        """Return the guard book for a fact that the backward relies on."""
        sources = KINDS[type(guard)].sources(guard)
        roots = [_root(source) for source in sources]
        # A range is of the call's sizes and numbers, or of the length of an object that is held.
        if isinstance(guard, _OF_CALL) and not any(isinstance(root, SavedRef) for root in roots):
            return self._frame.book
        for source, root in zip(sources, roots, strict=True):
            if not isinstance(root, _ROOTS):
                raise self.refused(f"it reads {describe(source)}")
        return self.known.book

    @contextmanager
    def followed(self) -> Iterator[None]:
        """A block that follows what runs later. The facts that it reads are the frame's too."""
        machine, mark = self._machine, len(self._frame.book)
        # A number that is read anew may differ from the one that the forward computed with.
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
        """A block in which these numbers may be symbols."""
        symbols = self._machine.symbols
        before, symbols.varying = symbols.varying, numbers
        try:
            yield
        finally:
            symbols.varying = before

    def _close(self) -> tuple[Guard, ...]:
        """The facts, as guards of the frame."""
        for guard in self.known.unread():
            self.known.book.add(guard, self._machine.where)
        _, *guards = self.known.book.finish(self._machine.entry_state)
        self.guards = tuple(guards)
        return tuple(self._moved(guard) for guard in guards)

    def _moved(self, part: Any) -> Any:
        """A guard or source with paths from the frame in place of those from what a call holds."""
        if isinstance(part, SavedRef):
            return list(self._held)[part.index]
        if isinstance(part, Guard | Source):
            moved = {field.name: self._moved(getattr(part, field.name)) for field in fields(part)}
            return replace(part, **moved)
        return tuple(map(self._moved, part)) if type(part) is tuple else part

    def check_copies(self) -> None:
        """Raise GraphBreak where the backward has changed an object that the frame made."""
        if any(_has_changed(made, contents) for made, contents in self._copies):
            raise self.refused("it has side effects")
        if any(_root(entry.source) is not None and isinstance(_root(entry.source), SavedRef)
               for entry in self._machine.notes.root.inputs.values()):  # fmt: skip
            raise self.refused("it reads the memory of an array")

    def refused(self, why: str) -> GraphBreak:
        return GraphBreak(BackwardRefused.of(name=self._name, why=why))

    def _check_exit(self, builder: Builder) -> None:
        """Raise Unrestorable where an object that the frame made has changed since, or may."""
        for value, contents in self._own:
            if _has_changed(value, contents) or builder.describes(value):
                why = f"the forward leaves it a {value.describe()} that may change later"
                reason = BackwardRefused.of(name=self._name, why=why)
                raise Unrestorable("what a backward reads", self._born, reason)

    @property
    def is_stale(self) -> bool:
        """Return whether the frame has changed what the backward has read."""
        mutated = self._machine.effects.mutated
        return self._frame.has_written(self.known, mutated) or any(
            _has_changed(value, contents) for value, contents in self._own
        )


def _can_be_made(value: InstanceValue) -> bool:
    """Return whether the frame has made a plain object: a record of attributes and nothing else."""
    is_plain = type(value) in (InstanceValue, MadeModuleValue) and value.source is None
    return is_plain and attribute_of_class(value.cls.live, "__new__") is object.__new__


def forget_facts(notes: GraphNotes) -> None:
    """Let go of the objects, which does not wait for the collector."""
    for facts in notes.root.of(_AllFacts):
        vars(facts).clear()


@contextmanager
def _looking(machine: Machine, known: Knowledge, later: BackwardFacts | None) -> Iterator[None]:
    before = machine.known, machine.later
    machine.known, machine.later = known, later
    try:
        yield
    finally:
        machine.known, machine.later = before


def check_read_state(machine: Machine) -> BackwardFacts | None:
    """The facts of a backward that the frame itself has changed; None: there are none."""
    return next((facts for facts in machine.notes.root.of(_AllFacts) if facts.is_stale), None)


def known(value: Value) -> Value:
    """The value that was looked at, where one was."""
    return value.real if isinstance(value, Lazy) and value.real is not None else value


def _contents(value: Value) -> list[Value]:
    """Return what a container, cell or object of the frame's holds."""
    return list(_parts(value))


def _has_changed(value: Value, contents: Sequence[Value]) -> bool:
    now = _contents(value)
    pairs = zip(now, contents, strict=False)
    return len(now) != len(contents) or any(known(a) is not known(b) for a, b in pairs)


def _parts(value: Value) -> Iterator[Value]:
    yield from value.parts()
    if isinstance(value, DictValue):
        yield from value.keys()


def _root(source: Source) -> Source:
    at: Any = source
    while (base := getattr(at, "base", None)) is not None:
        at = base
    return at  # type: ignore[no-any-return]
