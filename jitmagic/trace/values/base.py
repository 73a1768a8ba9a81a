"""Defines the Value protocol, the abstract domain of the tracer, and how other modules extend it.

A Value models one Python object of the traced program, as TorchDynamo's VariableTracker does. A
live object (from before the call) has a `source`: the path that reads it in any call. An object
that the traced code creates has None. `Machine.wrap` returns one Value per live object, by id, so a
mutation shows through every reference. No Value method changes a live object.

An exit is where the trace ends: a return or a graph break. There the recipe of a Value says how to
read or build the object, and effects replay the side effects (trace/result.py).

Conventions
  * The first parameter is the machine: it holds the guards, the effects and the graph of the trace.
  * A method that reads a fact about a sourced object calls `machine.guard(...)` at once.
  * Code that cannot be traced raises `GraphBreak(reason)` (breaks.py). An exception of the traced
    program itself is raised with `raise machine.error(KeyError, key)`.
  * Arguments, container items and locals may be `Lazy`: objects not yet inspected, hence without
    guards. Call `value.realize(machine)` before any `isinstance`; it is a no-op for other values.
    `Frame.pop()` and `@handles` realize their values; items of containers and nested kwargs are
    not realized.

Extension points (their tables import modules at the first lookup, see late_tables.py)
  * `wrap.wraps(type, ..., subclasses=False)` decorates `(machine, obj, source) -> Value`, which
    wraps live objects of these types. The exact type is looked up first, then its MRO among the
    types registered with subclasses=True.
  * `wrap.intercepts(type, ...)` decorates `(machine, obj, source) -> Value | None`, which runs
    before `wraps` for objects of exactly these types. It keeps torch functions that are written in
    Python from being inlined. None passes the object on.
  * `builtins.registry.handles(callable, ...)` decorates `(machine, args, kwargs) -> Value`, which
    traces a call of exactly that callable; `calls` registers short ones. Other C functions break.
  * `machine.constant(obj)` returns the Value of a new constant (int, torch.Size, dtype, device).
  * Context managers override `Value.enter`.
  * `machine.at_exit(hook)` runs `hook(builder)` once when an exit is described. It may call
    `builder.effect(...)`, for example to set the thread's grad mode at a graph break.
  * `machine.graph` is the GraphBuilder (graph/builder.py) of the current attempt, and
    `machine.notes` the tracer's data about it (graph_notes.py). Code that traces a function into a
    subgraph replaces the notes, and the graph with them, for that time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn

from ...bytecode import FrameSnapshot
from ...errors import UserLine
from ...graph.builder import GraphBuilder
from ...guards.guard import AutocastDetails, Guard, StateFacts
from ...guards.source import Drawn, Source
from ...options import Options
from ...protocols import Protocol
from ..assumptions import Assumptions
from ..breaks import GraphBreak, UnknownObject, UnsupportedOperation
from ..graph_notes import GraphNotes
from ..result import BreakReason, Effect, FromGraph, Recipe
from ..varying.attempt_symbols import Symbols

__all__ = [
    "Args", "Builder", "CannotRebuild", "Kwargs", "Lazy", "Machine", "ObservedError", "Value",
]  # fmt: skip


class Builder(Protocol):
    """Describes an exit: makes one recipe for each live value and lists the effects in order."""

    def __call__(self, value: Value) -> Recipe:
        """Return the recipe of a value; calls with the same value return the same recipe."""

    def is_live(self, value: Value) -> bool:
        """Return whether the value, or another one that contains it, is live at the exit."""

    def constant(self, value: object) -> Recipe: ...
    def invoke(self, callee: object, args: tuple[Recipe, ...], /, **kwargs: Recipe) -> Recipe:
        """Return the recipe that calls `callee(*args, **kwargs)`, for a live callee."""

    def call(self, callee: Recipe, *args: Recipe) -> Recipe:
        """Return the recipe that calls `callee(*args)`, for a callee that a recipe builds."""

    def set_attr(
        self, target: Value, name: str, value: Value, setter: object | None = None
    ) -> Effect:
        """Return the effect that sets an attribute (by `object.__setattr__` or `setter`)."""

    def set_state(self, iterator: Recipe, index: int) -> None:
        """Advance a rebuilt list, tuple or range iterator, after all other effects."""

    def output(self, value: Value, node: Any) -> FromGraph:
        """Make `node` an output of the graph, once, and return the recipe that reads it."""

    def rewrapped(self, wrapper: Any) -> Recipe:
        """Return the recipe that rebuilds a wrapper subclass around inner tensors of the graph."""

    def effect(self, effect: Effect) -> None: ...
    def only_writes(self) -> bool: ...  # whether no effect runs code of the program


class Effects(Protocol):
    """The log of side effects (effects.py), in program order, with contents as of the exit."""

    mutated: dict[int, Value]  # mutated values with a source, by id
    changes: int  # number of writes and calls
    gradients: int  # number of these that stored the `.grad` of a tensor
    lock: object  # a live lock, held while the graph runs and effects are performed
    readings: list[Value]  # clock readings, which run after the graph in this order

    def set_attr(
        self, target: Value, name: str, value: Value, setter: object | None = None
    ) -> None: ...
    def del_attr(self, target: Value, name: str) -> None: ...
    def contents(self, container: Any) -> None:
        """Record new contents of a live container; `container.replace(builder)` has the effect."""

    def perform(
        self, callee: Value, args: Sequence[Value] = (), kwargs: Mapping[str, Value] | None = None
    ) -> None:
        """Record a call that is made for its side effect alone."""

    def call_cache(self, cached: Value, args: Sequence[Value], kwargs: Mapping[str, Value]) -> None:
        """Record a call of a functools.lru_cache, whose result is known but which counts hits."""

    def has_effects_besides_gradients(self) -> bool:
        """Return whether there are effects other than writes of `.grad`, draws and cache calls."""

    def writes_more_than_gradients(self) -> bool:
        """Return whether there are writes to anything but the `.grad` of tensors."""

    @property
    def count(self) -> int:
        """The number of effects so far."""

    def draw(self, generator: Value, perform: Callable[[Any], object], name: str) -> Drawn:
        """Record `perform(generator)`, which runs before the graph, and return its result's source.

        It usually draws random numbers; reads of caches and of numbers are recorded the same way.
        """

    @property
    def drawn(self) -> int:
        """The number of draws so far."""

    def take_back_calls(self, count: int) -> bool:
        """Forget the effects after the first `count`, if all of them are calls."""


class Machine(Protocol):
    """The interface of the interpreter (trace/machine.py) that values use."""

    options: Options
    snapshot: FrameSnapshot  # the root frame's live arguments
    notes: GraphNotes  # of the current graph
    symbols: Symbols  # symbolic numbers, and the assumptions of the trace about them
    owners: dict[int, Any]  # TableStore id -> the object with these attributes (a reference cycle)
    entry_state: StateFacts  # global state that guards the entry
    frames: list[Any]  # the Python frames (state.Frame) being traced, the root first
    root: Any  # the first of them
    stop: Any  # the restarts.Stop at which this attempt ends, or None
    literals: dict[int, Value]  # of mutable constants in code, by their ids
    assumed: Assumptions  # the facts and choices that the trace starts from
    watch: Any  # the LoopWatch (python_loops/plain.py)
    instructions: int  # number of interpreted instructions
    known: Any  # the Knowledge: maps each live object to its one Value
    backward_facts: Any  # the BackwardFacts of a user backward while it is traced, else None
    autocast: AutocastDetails | None  # set by traced code (trace/builtins/pytorch/autocast.py)

    @property
    def graph(self) -> GraphBuilder:
        """The graph that records calls."""

    @property
    def frame(self) -> Any: ...  # the Frame being interpreted

    @property
    def guards(self) -> Any: ...  # the GuardBook of the trace

    @property
    def effects(self) -> Effects:
        """The log of changes to objects that existed before the call."""

    def guard(self, *guards: Guard) -> None:
        """Install guards; the machine adds the user's line and drops duplicates."""

    def where(self) -> UserLine: ...  # the user's line being interpreted

    def lines(self) -> tuple[UserLine, ...]:
        """The user's lines of the current call stack, innermost first; torch's code is left out."""

    def wrap(self, obj: object, source: Source, make: Callable[..., Value] = ...) -> Value:
        """Return the Value of a live object, guarded by its type; `make` creates a new one."""

    def lazy(self, obj: object, source: Source, *, certain: bool = True) -> Value:
        """Return a Lazy value of a live object.

        certain=False: the guards so far do not imply that the source can be read (an attribute, a
        global). Its type is then guarded even if it is only passed on.
        """

    def constant(self, obj: object) -> Value: ...  # without a source

    def guard_distinct_key(self, value: Value) -> None:
        """Guard that a value used as a key by identity is a different object from other keys."""

    def catches(self) -> bool:
        """Return whether a `try` of the program encloses the current instruction."""

    def error(self, kind: type[BaseException], *args: object, exact: bool = False) -> ObservedError:
        """Return the exception to raise when the traced program raises `kind(*args)`.
        exact=False: the text may differ from CPython's, so code that reads it breaks the graph."""

    def inline(self, function: Value, args: Args, kwargs: Kwargs) -> Value:
        """Interpret a call of a Python function."""

    def globals_of(self, namespace: dict[str, object], make: Callable[[], Any]) -> Any:
        """Return the DictValue of a namespace that every call shares; `make` creates it."""

    def class_of(self, kind: type, source: Source | None) -> Any:
        """Return the one ClassValue of a class whose identity is guarded already."""

    def rely_on_autocast(self) -> AutocastDetails:
        """Guard the thread's autocast dtypes and cache setting as they are now."""

    def at_exit(self, hook: Callable[[Builder], None]) -> None:
        """Call `hook` with the Builder when an exit is described."""

    @property
    def step(self) -> int:
        """The number of instructions of the root frame begun so far; see `created_at_step`."""


Args = Sequence["Value"]
Kwargs = Mapping[str, "Value"]


class ObservedError(Exception):
    """The traced program raised `error` (a values.exceptions.ExceptionValue)."""

    def __init__(self, error: Any) -> None:
        super().__init__()
        self.error = error
        self.mark: int | None = None  # number of guards before the instruction, set by the machine


class CannotRebuild(Exception):
    """Raised when a live value has no recipe; the graph break moves to the value's creation."""

    def __init__(self, what: str, created_at_step: int, reason: BreakReason | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.created_at_step = created_at_step  # Machine.step when the value was made
        self.reason = reason  # for the break; None: the standard one, that it cannot be rebuilt


class Value:
    """Models one Python object; a method that a subclass does not override breaks the graph."""

    __slots__ = ("source",)
    varies: ClassVar[bool] = False  # a symbolic number, whose identity is unknown
    by_identity: ClassVar[bool] = False  # guarded by IdentityIs: functions, classes, modules
    holds_data: ClassVar[bool] = False  # a tensor or a numpy array
    opaque: ClassVar[bool] = False  # its contents are unknown
    always_true: ClassVar[bool] = False  # its class has neither `__bool__` nor `__len__`

    def __init__(self, source: Source | None = None) -> None:
        self.source = source

    # -- identity and type -----------------------------------------------------------------------

    def observe(self, machine: Machine) -> None:
        """Guard the object's own type, once the program uses more of it than its entries."""

    def as_dictionary(self, machine: Machine) -> Any:
        """Return the DictValue that models a dict, or an instance of a subclass; else None."""
        return None

    @property
    def is_value_guarded(self) -> bool:
        """True if a guard fixes the value, so that an exit need not read it from its source."""
        return False

    def realize(self, machine: Machine) -> Value:
        """Return the value itself, or the inspected one of a Lazy."""
        return self

    def python_type(self, machine: Machine) -> type:
        """Return the exact type, which `realize` has already guarded."""
        raise GraphBreak(UnknownObject.of(what="the type", type=type(self).__name__))

    def is_constant(self, machine: Machine) -> bool:
        """Return whether `as_constant` works: for atoms and containers of atoms. Adds no guard."""
        return False

    def as_constant(self, machine: Machine) -> Any:
        """Return the Python constant (a new object for a container); installs ValueEquals."""
        self.refuse(machine, "its value")

    def operand(self, machine: Machine) -> Value:
        """Return the value that torch uses for this operand: a number for a numpy scalar."""
        return self

    def as_index(self, machine: Machine) -> Value:
        """Return the value that torch uses when this is an index of a tensor."""
        return self

    def as_array(self, machine: Machine) -> Value:
        """Return the value that numpy's functions take: a 0-dim array for a float of numpy."""
        return self

    def identity(self) -> object:
        """Return the live object if it is known by identity (function, class, module), else self.
        Two values are the same object exactly if their identities are the same object."""
        return self

    def guard_identity(self, machine: Machine) -> None:
        """Guard the object's identity, because a result depends on it."""

    def hash_key(self, machine: Machine) -> object:
        """Return the key for this value in the model of a dict or set."""
        self.refuse(machine, "hash()")

    # -- attributes ------------------------------------------------------------------------------

    def get_attr(self, machine: Machine, name: str) -> Value:
        """Return `self.name`; raise `machine.error(AttributeError, ...)` where Python does."""
        self.refuse(machine, f"attribute {name!r}")

    def super_attr(self, machine: Machine, start: type, name: str) -> Value | None:
        """Return `super(start, self).name` if the value models it itself, else None."""
        return None

    def set_attr(self, machine: Machine, name: str, value: Value) -> None:
        self.refuse(machine, f"setting attribute {name!r}")

    def del_attr(self, machine: Machine, name: str) -> None:
        self.refuse(machine, f"deleting attribute {name!r}")

    def set_entry(self, machine: Machine, name: str, value: Value | None) -> None:
        """Do `vars(self)[name] = value`, or delete the existing entry if `value` is None."""
        self.refuse(machine, "changing attributes through __dict__")

    def attribute_effect(self, builder: Builder, name: str, value: Value | None) -> Effect | None:
        """Return the effect that sets an attribute, or deletes it if `value` is None; None if the
        entry must be written through `self.__dict__` instead."""
        return None

    # -- containers ------------------------------------------------------------------------------

    def get_item(self, machine: Machine, key: Value) -> Value:
        self.refuse(machine, "indexing")

    def get_item_lazily(self, machine: Machine, key: Value) -> Value:
        """Return `self[key]`; a Lazy key may stay unrealized, hence without a value guard."""
        return self.get_item(machine, key.realize(machine))

    def set_item(self, machine: Machine, key: Value, value: Value) -> None:
        self.refuse(machine, "item assignment")

    def del_item(self, machine: Machine, key: Value) -> None:
        self.refuse(machine, "item deletion")

    def contains(self, machine: Machine, item: Value) -> Value:
        """Return `item in self`, a bool constant or a tensor."""
        self.refuse(machine, "`in`")

    def contains_lazily(self, machine: Machine, item: Value) -> Value:
        """Return `item in self`; a Lazy item may stay unrealized, hence without a value guard."""
        return self.contains(machine, item.realize(machine))

    def length(self, machine: Machine) -> int:
        self.refuse(machine, "len()")

    def as_sourced_int(self, machine: Machine) -> tuple[int, Source] | None:
        """Return (hint, source) of a symbolic int that is read from a source, else None."""
        return None

    def length_value(self, machine: Machine) -> Value:
        """Return `len(self)`, which may be symbolic for a live container."""
        return machine.constant(self.length(machine))

    def iterate(self, machine: Machine) -> Value:
        """Return `iter(self)`."""
        self.refuse(machine, "iteration")

    def next(self, machine: Machine) -> Value | None:
        """Return the next item of an iterator, or None if it is exhausted."""
        self.refuse(machine, "next()")

    # -- operators -------------------------------------------------------------------------------

    def binary(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        """Return `self op other`, or `other op self` if reflected; None for NotImplemented."""
        return None

    def inplace(self, machine: Machine, op: str, other: Value) -> Value | None:
        """Return `self op= other` (op is "+", not "+="); None if there is no in-place form."""
        return None

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        """Return `self op other` for == != < <= > >= (swapped by the caller if reflected), or
        None for NotImplemented."""
        return None

    def unary(self, machine: Machine, op: str) -> Value:
        """Return `-x`, `+x` or `~x`; `not` uses `truth`."""
        self.refuse(machine, f"unary {op}")

    def truth(self, machine: Machine) -> bool:
        """Return `bool(self)`; a tensor breaks with TensorBranch."""
        return self.always_true or self.refuse(machine, "bool()")

    # -- calls and contexts ----------------------------------------------------------------------

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        """Return `self(*args, **kwargs)`."""
        self.refuse(machine, "a call")

    def format_operand(self, machine: Machine) -> Value:
        """Return the value that an f-string formats for this one."""
        return self

    def call_method(self, machine: Machine, name: str, args: Args, kwargs: Kwargs) -> Value:
        """Return `self.name(*args, **kwargs)` without creating the bound method."""
        return self.get_attr(machine, name).realize(machine).call(machine, args, kwargs)

    def enter(self, machine: Machine) -> tuple[Value, Value]:
        """Enter `with self`; return (the bound `__exit__`, the result of `__enter__`).

        At a graph break within the block, the recipe of that `__exit__` must build a callable
        that ends the block at run time.
        """
        self.refuse(machine, "with")

    # -- exits -----------------------------------------------------------------------------------

    def recipe(self, builder: Builder) -> Recipe:
        """Return how to build a sourceless object at an exit; called once per exit.
        Raises `CannotRebuild(what, created_at_step)` if it cannot be built; such a class saves
        `machine.step` at creation. An exit reads a value with a source from that source instead.
        """
        raise NotImplementedError(type(self).__name__)

    def fill(self, builder: Builder) -> Iterable[Effect]:
        """Yield the effects that a new object needs after its recipe has built it."""
        return ()

    def empty_recipe(self) -> Recipe | None:
        """Return the recipe of an empty container, to build one that contains itself, or None."""
        return None

    def parts(self) -> Iterable[Value]:
        """Return the values that it refers to, which are live wherever it is."""
        return ()

    def is_changed(self, machine: Machine) -> bool:
        """Return whether the traced code has changed the live object."""
        return id(self) in machine.effects.mutated

    # -- helpers ---------------------------------------------------------------------------------

    def refuse(self, machine: Machine, what: str) -> NoReturn:
        """Break the graph: the operation `what` is not modelled for this kind of value."""
        raise GraphBreak(UnsupportedOperation.of(what=what, types=self.describe()))

    def describe(self) -> str:
        """Return a short name for messages."""
        return type(self).__name__.removesuffix("Value").lower()

    def __repr__(self) -> str:
        return f"<{self.describe()} {self.source}>" if self.source else f"<{self.describe()}>"


class Lazy(Value):
    """A live object that the trace has not inspected, and so has not guarded.

    Moves (LOAD_FAST, STORE_FAST, building a tuple, passing an argument, returning) keep it lazy;
    any other use realizes it.
    """

    __slots__ = ("_real", "certain", "obj")

    def __init__(self, obj: object, source: Source, certain: bool) -> None:
        super().__init__(source)
        self.obj = obj
        self.certain = certain
        self._real: Value | None = None

    def realize(self, machine: Machine) -> Value:
        if self._real is None:
            assert self.source is not None
            self._real = machine.wrap(self.obj, self.source)
        return self._real

    @property
    def real(self) -> Value | None:
        """The realized value, or None."""
        return self._real

    def describe(self) -> str:
        return type(self.obj).__name__
