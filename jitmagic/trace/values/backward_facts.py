"""What the backward of an autograd function relies on of Python's state when it runs.

Comes in: what the forward left on `ctx`, and the class. Goes out: the same as values that are looked
at anew, from the objects that a call holds for its backwards (`Held`, guards/source.py); the facts
that were read of them, which are guards of the frame as well as of each backward; and how to make
`ctx` again for the backward that the program wrote, which runs where such a fact does not hold.

The same object is another value in a backward than in the frame: what the frame has read of it says
nothing of a later time. What the frame writes is not seen: a fact that it changes does not hold
later. A tensor is one value to both. A list, cell or function that the frame made is copied; it may
not change any more, nor may the program see it after the frame.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import torch

from ...guards.guard import (
    Guard,
    InRange,
    NoOverlap,
    NumbersRelate,
    SameObject,
    SizesRelate,
    TensorMatch,
    TypeIs,
)
from ...guards.kinds import KINDS
from ...guards.source import Builtin, Global, Held, ImportedModule, Source, describe
from ..breaks import BackwardRefused, GraphBreak
from ..state import GuardBook
from .base import Builder, Lazy, Machine, Unrestorable, Value
from .callables import BuiltinValue
from .classes import ClassValue
from .constants import ConstantValue
from .dimensions import DimensionValue
from .functions import BoundMethodValue, CellValue, FunctionValue
from .mappings import DictValue
from .namespaces import GlobalsValue
from .scalars import ScalarValue
from .sequences import ListValue, SizeValue, TupleValue
from .tensor import TensorValue

__all__ = ["BackwardFacts", "check_read_state"]

Make = Callable[[Sequence[Any], tuple[Any, ...]], Any]
"""Makes an object from what a call left on `ctx` and the objects that it holds."""

# What is relied on of tensors and sizes is a fact of the call: it is the frame's alone.
_OF_CALL = (TensorMatch, SizesRelate, NumbersRelate, NoOverlap, InRange)
_ROOTS = (Held, Global, Builtin, ImportedModule)


class HeldObjects(dict[Source, int]):
    """The objects that a call of the frame holds: where they are read, and their places."""

    def index(self, source: Source) -> int:
        return self.setdefault(source, len(self))


class _AllFacts(list["BackwardFacts"]):
    """Of the autograd functions of one frame."""


class BackwardFacts:
    """Those of one call of an autograd function. While the machine looks at objects anew
    (`Machine.look_anew`) the fields up to `found` stand in for its own.
    """

    def __init__(self, machine: Machine, name: str, values: dict[int, object]) -> None:
        """`values`: the objects of the frame's values, by the ids of these."""
        self.memo: dict[int, tuple[object, Value]] = {}
        self.book = GuardBook()
        self.classes: dict[type, ClassValue] = {}
        live = machine.snapshot.globals
        self.globals = {id(live): GlobalsValue.of_root(live)}
        self.keys: dict[int, Value] = {}
        self.found: list[tuple[Lazy, Source]] = []
        self.guards: tuple[Guard, ...] = ()  # what a backward relies on, at the end
        self._machine, self._name, self._values = machine, name, values
        self._born = machine.step
        self._held = machine.notes.root.of(HeldObjects)
        self._anew: dict[int, tuple[Value, Value]] = {}  # by the frame's value
        self._own: list[tuple[Value, list[int]]] = []  # made by the frame: contents when copied
        self._copies: list[tuple[Value, list[int]]] = []
        self._left: list[Any] = []  # tensors and numbers: nodes, or Sizes
        machine.notes.root.of(_AllFacts).append(self)
        machine.at_exit(self._check_exit)

    # -- values of the backward ------------------------------------------------------------------

    def anew(self, value: Value) -> Value:
        """What a value of the frame is in the backward."""
        value = _known(value)
        if id(value) not in self._anew:
            self._anew[id(value)] = value, self._made_anew(value)
        return self._anew[id(value)][1]

    def _made_anew(self, value: Value) -> Value:
        if isinstance(value, TensorValue | DimensionValue | ScalarValue):
            if isinstance(value, TensorValue) and value.live is not None and value.source:
                self._held.index(value.source)  # its version is looked at
            return value
        if value.source is not None:
            held = self._held.index(value.source)
            live = self._object_of(value)
            return self._machine.lazy(live, Held(held, describe(value.source)))
        return self._of_frame(value)

    def _of_frame(self, value: Value) -> Value:
        """Of an object that the frame has made, or that is known by a fact about its class."""
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
            case TupleValue() if type(value) in (TupleValue, SizeValue):
                return type(value)([self.anew(item) for item in value.items])
            case ListValue():
                return self._copy(value, ListValue([self.anew(item) for item in value.items]))
            case DictValue() if value.kind is dict:
                pairs = [(self.anew(key), self.anew(one)) for key, one in value.pairs.values()]
                return self._copy(value, DictValue.of(machine, pairs))
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

    def _names(self, names: GlobalsValue) -> GlobalsValue:
        if names.source is None:  # of a module that the frame knows as such
            name = names.live.get("__name__")
            module = sys.modules.get(name) if isinstance(name, str) else None
            if module is None or vars(module) is not names.live:
                raise self.refused("it reads globals that no function leads to")
            return GlobalsValue.of_module(module, ImportedModule(str(name)))
        held = Held(self._held.index(names.source), "globals()")
        return GlobalsValue.at(names.live, held)

    def _copy(self, value: Value, copy: Value) -> Value:
        self._own.append((value, _contents(value)))
        self._copies.append((copy, _contents(copy)))
        return copy

    def _object_of(self, value: Value) -> Any:
        if isinstance(value, Lazy):
            return value.obj
        if isinstance(value, ConstantValue):
            return value.value
        if id(value) not in self._values:
            raise self.refused(f"the forward leaves it a {value.describe()}")
        return self._values[id(value)]

    def tensor(self, obj: object, source: Source) -> Value | None:
        """A tensor that the backward comes across is the frame's; None: it is none. The path must
        lead to that very tensor later.
        """
        if not isinstance(obj, torch.Tensor):
            return None
        path = self._moved(source)
        with self._machine.look_back():
            value = self._machine.wrap(obj, path)
        held = Held(self._held.index(path), describe(path))
        if source != held:
            self._machine.guard(SameObject(source, held))
        return value

    # -- facts -----------------------------------------------------------------------------------

    def book_for(self, guard: Guard, of_frame: GuardBook) -> GuardBook:
        """Where a fact that the backward relies on is noted."""
        if isinstance(guard, _OF_CALL):
            return of_frame
        for source in KINDS[type(guard)].sources(guard):
            if not isinstance(_root(source), _ROOTS):
                raise self.refused(f"it reads {describe(source)}")
        return self.book

    def close(self) -> tuple[Guard, ...]:
        """The facts, as guards of the frame."""
        for found, source in self.found:
            if found.real is None:
                self.book.add(TypeIs(source, type(found.obj)), self._machine.where)
        _, *guards = self.book.finish(self._machine.entry_state)
        self.guards = tuple(guards)
        return tuple(self._moved(guard) for guard in guards)

    def _moved(self, part: Any) -> Any:
        """A guard or source with paths from the frame in place of those from what a call holds."""
        if isinstance(part, Held):
            return list(self._held)[part.index]
        if isinstance(part, Guard | Source):
            moved = {field.name: self._moved(getattr(part, field.name)) for field in fields(part)}
            return replace(part, **moved)
        return tuple(map(self._moved, part)) if type(part) is tuple else part

    def check_copies(self) -> None:
        """Raise GraphBreak where the backward has changed an object that the frame made."""
        if any(_contents(copy) != contents for copy, contents in self._copies):
            raise self.refused("it has side effects")
        if any(_root(entry.source) is not None and isinstance(_root(entry.source), Held)
               for entry in self._machine.notes.root.inputs.values()):  # fmt: skip
            raise self.refused("it reads the memory of an array")

    def refused(self, why: str) -> GraphBreak:
        return GraphBreak(BackwardRefused.of(name=self._name, why=why))

    def _check_exit(self, builder: Builder) -> None:
        """Raise Unrestorable where an object that the frame made has changed since, or may."""
        for value, contents in self._own:
            if _contents(value) != contents or builder.tells(value):
                why = f"the forward leaves it a {value.describe()} that may change later"
                reason = BackwardRefused.of(name=self._name, why=why)
                raise Unrestorable("what a backward reads", self._born, reason)

    @property
    def is_stale(self) -> bool:
        """Whether the frame has changed what the backward has read."""
        return self._machine.has_changed(self.memo, self.globals) or any(
            _contents(value) != contents for value, contents in self._own
        )

    # -- `ctx` of the backward that the program wrote --------------------------------------------

    def original(
        self, cls: ClassValue, attributes: dict[str, Value]
    ) -> tuple[Make, tuple[Any, ...]]:
        """What makes the class and the attributes of `ctx`, and the tensors and sizes that it
        takes for that."""
        function = self._maker(cls)
        makers = {name: self._maker(value) for name, value in attributes.items()}

        def make(left: Sequence[Any], held: tuple[Any, ...]) -> Any:
            named = {name: maker(left, held) for name, maker in makers.items()}
            return function(left, held), named

        return make, tuple(self._left)

    def rebuilt(self, values: Sequence[Value]) -> tuple[Make, tuple[Any, ...]]:
        """What makes a list of these objects, and the tensors and sizes that it takes for that."""
        return self._gathered(list, values), tuple(self._left)

    def _maker(self, value: Value) -> Make:
        value = _known(value)
        if isinstance(value, DimensionValue | ScalarValue):
            return self._number(value)
        if value.source is not None:
            held = self._held.index(value.source)
            return lambda left, held_: held_[held]
        if isinstance(value, TensorValue):
            return self._taken(value.node)
        return self._maker_of_own(value)

    def _number(self, value: DimensionValue | ScalarValue) -> Make:
        if isinstance(value, DimensionValue):
            return self._taken(value.size)
        if value.node is None:
            raise self.refused("the forward leaves it a number")
        take, kind = self._taken(value.node), value.kind
        return lambda left, held: kind(take(left, held))

    def _taken(self, node: Any) -> Make:
        place = len(self._left)
        self._left.append(node)
        return lambda left, held: left[place]

    def _maker_of_own(self, value: Value) -> Make:
        match value:
            case ConstantValue(value=constant) | BuiltinValue(obj=constant):
                return lambda left, held: constant
            case ClassValue(live=live) | FunctionValue(live=live) if live is not None:
                return lambda left, held: live
            case BoundMethodValue():
                return self._combined(types.MethodType, (value.function, value.owner))
            case CellValue(contents=contents):
                return self._combined(types.CellType, () if contents is None else (contents,))
            case FunctionValue():
                return self._maker_of_function(value)
            case TupleValue() if type(value) in (TupleValue, SizeValue):
                return self._gathered(value.kind, value.items)
            case ListValue():
                return self._gathered(list, value.items)
            case DictValue():
                keys, values = (
                    self._gathered(list, value.keys()),
                    self._gathered(list, value.values()),
                )
                return lambda left, held: dict(zip(keys(left, held), values(left, held), strict=True))
        constant = value.as_constant(self._machine)
        return lambda left, held: constant

    def _combined(self, function: Callable[..., Any], parts: Sequence[Value]) -> Make:
        makers = [self._maker(part) for part in parts]
        return lambda left, held: function(*(maker(left, held) for maker in makers))

    def _gathered(self, kind: Callable[..., Any], parts: Sequence[Value]) -> Make:
        makers = [self._maker(part) for part in parts]
        return lambda left, held: kind([maker(left, held) for maker in makers])

    def _maker_of_function(self, value: FunctionValue) -> Make:
        code, names, name = value.code, value.globals.live, value.name
        parts = (value.defaults, value.kwdefaults)
        defaults, named = (self._maker(part) for part in parts)
        cells = self._gathered(tuple, value.closure)

        def make(left: Sequence[Any], held: tuple[Any, ...]) -> Any:
            given = name, defaults(left, held), cells(left, held)
            made = types.FunctionType(code, names, *given)
            made.__kwdefaults__ = named(left, held)
            return made

        return make


def check_read_state(machine: Machine) -> BackwardFacts | None:
    """The facts of a backward that the frame itself has changed; None: there are none."""
    return next((facts for facts in machine.notes.root.of(_AllFacts) if facts.is_stale), None)


def _known(value: Value) -> Value:
    """The value that was looked at, where one was."""
    return value.real if isinstance(value, Lazy) and value.real is not None else value


def _contents(value: Value) -> list[int]:
    """What a container, cell or function of the frame's holds, by identity."""
    return [id(_known(part)) for part in _parts(value)]


def _parts(value: Value) -> Iterator[Value]:
    yield from value.parts()
    if isinstance(value, DictValue):
        yield from value.keys()


def _root(source: Source) -> Source:
    at: Any = source
    while (base := getattr(at, "base", None)) is not None:
        at = base
    return at  # type: ignore[no-any-return]
