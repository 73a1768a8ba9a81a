"""The Value protocol: what the machine computes with, and how the torch side plugs in.

A Value stands for one Python object of the traced program. It has a `source` when the object
existed before the call, none when the traced code made it. Values are compared by identity: one
live object is one Value (`Machine.wrap` keeps a memo by id), so mutating the machine's model of a
list is seen by everyone who holds it. No Value method changes a live object.

Conventions of every method below
  * `machine` comes first: it takes guards, breaks, effects, and runs inlined Python functions.
  * Reading a fact about a sourced object installs the guard there and then: `machine.guard(...)`.
  * What cannot be followed raises `GraphBreak(reason)` (breaks.py); what the traced program would
    raise itself is `raise machine.error(KeyError, key)`. Both are safe at any point.
  * Arguments, items of containers, locals may be `Lazy`: an object not looked at yet, hence
    without guards. Call `value.realize(machine)` before any `isinstance`; it is `self` for all
    others. `Frame.pop()` and `@handles` realize for you; `items` of containers, and kwargs deeper
    down, do not.

How other modules plug in (each module is named once in trace/inventory.py, which imports it)
  * `wrap.wraps(type, ..., subclasses=False)`  decorates `(machine, obj, source) -> Value`: how live
    objects of these types become values. Exact type first, then the MRO among those with
    subclasses=True.
  * `wrap.intercepts(type, ...)`               decorates `(machine, obj, source) -> Value | None`,
    asked before `wraps` for objects of exactly these types (FunctionType, BuiltinFunctionType,
    type, ...), which keeps torch functions written in Python from being inlined. None: not mine.
  * `builtins.registry.handles(callable, ...)` decorates `(machine, args, kwargs) -> Value`: how a
    call of exactly that live callable is followed; everything else in C is an `UnknownCFunction`
    break.
  * `machine.constant(obj)`                    the Value of a Python constant the trace made
    (torch.Size, dtype and device included).
  * context managers override `Value.enter`, see there.
  * `machine.at_exit(hook)`: `hook(builder)` runs once when the exit is described; it may call
    `builder.effect(...)`, e.g. to bring the thread's grad mode to what the trace has at a break.
  * `machine.graph`: the GraphBuilder of `jitmagic/graph/builder.py` that calls go to, made anew by
    each attempt; `machine.notes`: what the tracer knows of it (graph_notes.py). Who follows a
    function into a graph of its own changes the notes for that time, and the graph with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn, Protocol

from ...bytecode import FrameSnapshot
from ...errors import UserLine
from ...graph.builder import GraphBuilder
from ...guards.guard import AutocastDetails, Guard, StateFacts
from ...guards.source import Drawn, Source
from ...options import Options
from ..aliased_dicts import AliasedDicts
from ..breaks import GraphBreak, UnknownObject, UnsupportedOperation
from ..graph_notes import GraphNotes
from ..result import BreakReason, Effect, FromGraph, Recipe
from ..varying.symbolic import Symbols

__all__ = [
    "Args",
    "Builder",
    "Kwargs",
    "Lazy",
    "Machine",
    "ObservedError",
    "Unrestorable",
    "Value",
]


class Builder(Protocol):
    """Describes an exit: values to recipes (one recipe object per value), effects in order."""

    def __call__(self, value: Value) -> Recipe:
        """The recipe of a value, made once."""

    def tells(self, value: Value) -> bool:
        """Whether the exit hands the value on, by itself or within another."""

    def constant(self, value: object) -> Recipe:
        """A Constant recipe."""

    def invoke(self, callee: object, args: tuple[Recipe, ...], **kwargs: Recipe) -> Recipe:
        """`callee(*args, **kwargs)` where `callee` is an object of the process."""

    def call(self, callee: Recipe, *args: Recipe) -> Recipe:
        """`callee(*args)` where `callee` is made by a recipe."""

    def set_attr(
        self, target: Value, name: str, value: Value, setter: object | None = None
    ) -> Effect:
        """The effect that sets an attribute, past any `__setattr__` of the class, or by this
        one."""

    def set_state(self, iterator: Recipe, index: int) -> None:
        """Advance a rebuilt list, tuple or range iterator, after all other effects."""

    def output(self, value: Value, node: Any) -> FromGraph:
        """`node` of the graph becomes an output, once; the recipe that reads it."""

    def effect(self, effect: Effect) -> None:
        """Append an effect."""


class Effects(Protocol):
    """The log of side effects (effects.py): the order of the program, contents as of the exit."""

    mutated: dict[int, Value]  # values with a source that were changed, by id
    changes: int  # how often anything was written or called
    gradients: int  # how many of them stored the `.grad` of a tensor
    readings: list[Value]  # of clocks, done behind the graph, in this order

    def set_attr(
        self, target: Value, name: str, value: Value, setter: object | None = None
    ) -> None: ...
    def del_attr(self, target: Value, name: str) -> None: ...
    def set_global(self, namespace: Value, name: str, value: Value | None) -> None: ...
    def contents(self, container: Any) -> None:
        """A container that existed before has new contents: `container.replace(builder)` says
        which."""

    def perform(
        self, callee: Value, args: Sequence[Value] = (), kwargs: Mapping[str, Value] | None = None
    ) -> None:
        """A call made for its effect alone."""

    def call_cache(self, cached: Value, args: Sequence[Value], kwargs: Mapping[str, Value]) -> None:
        """A call of a functools.lru_cache, which counts and keeps; its result is known."""

    def tells_more_than_gradients(self) -> bool:
        """Return whether more than gradients was written, or than draws and caches called."""

    def writes_more_than_gradients(self) -> bool:
        """Return whether anything but gradients was written."""

    @property
    def count(self) -> int:
        """How many effects there are so far."""

    def draw(self, generator: Value, perform: Callable[[Any], object], name: str) -> Drawn:
        """`perform(generator)`, done before the graph runs: it gives random numbers and does
        nothing else. What it gave is read at the source."""

    @property
    def drawn(self) -> int:
        """How many draws there are so far."""

    def take_back_calls(self, count: int) -> bool:
        """Forget the effects after the first `count`, if all of them are calls."""


class Machine(Protocol):
    """What a value may ask of the machine (trace/machine.py)."""

    options: Options
    snapshot: FrameSnapshot  # the root frame's live arguments
    notes: GraphNotes  # of the graph that calls go to
    symbols: Symbols  # numbers that vary, and what the trace takes for granted of them
    aliased_dicts: AliasedDicts  # dictionaries that are the attributes of something as well
    owners: dict[int, Any]  # whose attributes a TableStore holds, by its id; no cycle of values
    entry_state: StateFacts  # what the entry is guarded with
    frames: list[Any]  # the Python frames being followed, the root first
    known: Any  # the Knowledge of objects that are looked at
    later: Any  # the BackwardFacts of what runs later, while that is followed
    autocast: (
        AutocastDetails | None
    )  # what the traced code has made of it (trace/builtins/pytorch/autocast.py)

    @property
    def graph(self) -> GraphBuilder:
        """The graph that calls go to."""

    @property
    def effects(self) -> Effects:
        """Where changes of objects that existed before are noted."""

    def guard(self, *guards: Guard) -> None:
        """Rely on facts; the machine adds the user's line and drops duplicates."""

    def where(self) -> UserLine:
        """The user's line being interpreted."""

    def lines(self) -> tuple[UserLine, ...]:
        """The same and the lines it was inlined from, innermost first; torch's own code is left
        out."""

    def wrap(self, obj: object, source: Source, make: Callable[..., Value] = ...) -> Value:
        """The Value of a live object, guarded by its type; of one that was not reached before, what
        `make` gives."""

    def lazy(self, obj: object, source: Source, *, certain: bool = True) -> Value:
        """A live object not looked at yet. certain=False: the guards so far do not imply that
        the source can be read at all (an attribute, a global); passing it through then guards its
        type."""

    def constant(self, obj: object) -> Value:
        """The Value of a Python constant made by the trace (no source)."""

    def keep_apart(self, value: Value) -> None:
        """The value is a key by its identity: guard that no other such key is the same object."""

    def catches(self) -> bool:
        """Whether some `try` of the program is around what is being followed."""

    def error(self, kind: type[BaseException], *args: object, exact: bool = False) -> ObservedError:
        """To be raised: the traced program raises kind(*args). exact=False: the text may differ
        from CPython's, so a program that looks at it breaks."""

    def inline(self, function: Value, args: Args, kwargs: Kwargs) -> Value:
        """Interpret a call of a Python function."""

    def globals_of(self, namespace: dict[str, object], make: Callable[[], Any]) -> Any:
        """The one GlobalsValue of a namespace dictionary; `make` is asked the first time."""

    def class_of(self, kind: type, source: Source | None) -> Any:
        """The one ClassValue of a class whose identity is guarded already (TypeIs of an
        instance)."""

    def rely_on_autocast(self) -> AutocastDetails:
        """Guard what the thread keeps of autocast besides what is on, as it is now."""

    def at_exit(self, hook: Callable[[Builder], None]) -> None:
        """Have `hook` called when the exit is described."""

    @property
    def step(self) -> int:
        """When a value is born: the instruction of the root frame to break at to keep it from
        being."""


Args = Sequence["Value"]
Kwargs = Mapping[str, "Value"]


class ObservedError(Exception):
    """The traced program raised `error` (a values.exceptions.ExceptionValue)."""

    def __init__(self, error: Any) -> None:
        super().__init__()
        self.error = error
        self.mark: int | None = None  # set by the machine: guards before the instruction


class Unrestorable(Exception):
    """A value alive at an exit cannot be described by a recipe; the break goes where it was
    born."""

    def __init__(self, what: str, born: int, reason: BreakReason | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.born = born  # Machine.step when the value was made
        self.reason = reason  # of the break there; None: that the value cannot be described


class Value:
    """One Python object of the traced program. The defaults say: not followed (a graph break)."""

    __slots__ = ("source",)
    varies: ClassVar[bool] = False  # a number of any value: which object it is nobody knows
    by_identity: ClassVar[bool] = False  # guarded by IdentityIs: functions, classes, modules
    holds_data: ClassVar[bool] = False  # a tensor, or an array of numpy
    opaque: ClassVar[bool] = False  # nothing is known of its contents, whatever its type

    def __init__(self, source: Source | None = None) -> None:
        self.source = source

    # -- what it is ------------------------------------------------------------------------------

    def observe(self, machine: Machine) -> None:
        """The program uses the object itself; guard what earlier uses did not need."""

    def as_dictionary(self, machine: Machine) -> Any:
        """The DictValue of its entries if it is a dictionary, else None."""
        return None

    @property
    def is_value_guarded(self) -> bool:
        """Whether an exit should use `recipe` although there is a source (a constant guarded by
        value)."""
        return False

    def realize(self, machine: Machine) -> Value:
        """The value itself, looked at (see Lazy)."""
        return self

    def python_type(self, machine: Machine) -> type:
        """The exact type; guarded already when the value was realized."""
        raise GraphBreak(UnknownObject.of(what="the type", type=type(self).__name__))

    def is_constant(self, machine: Machine) -> bool:
        """Whether `as_constant` works: an immutable Python constant (int, str, None, dtype, ...),
        or a tuple, list, slice, ... of constants. Installs no value guard."""
        return False

    def as_constant(self, machine: Machine) -> Any:
        """The Python constant it is (a fresh one where it is a container); installs ValueEquals."""
        self.refuse(machine, "its value")

    def operand(self, machine: Machine) -> Value:
        """What torch takes it for where it computes with it."""
        return self

    def as_index(self, machine: Machine) -> Value:
        """What torch takes it for among the indexes of a tensor."""
        return self

    def identity(self) -> object:
        """The live object if there is one known by identity (function, class, module), else self.

        Two values are the same object exactly if their identities are the same object.
        """
        return self

    def guard_identity(self, machine: Machine) -> None:
        """Guard that the source leads to this very object, where an answer depends on it."""

    def hash_key(self, machine: Machine) -> object:
        """What stands for the value as the key of a dict or set in the machine's model."""
        self.refuse(machine, "hash()")

    # -- attributes ------------------------------------------------------------------------------

    def get_attr(self, machine: Machine, name: str) -> Value:
        """`self.name`; raises `machine.error(AttributeError, ...)` where Python does."""
        self.refuse(machine, f"attribute {name!r}")

    def behind(self, machine: Machine, start: type, name: str) -> Value | None:
        """`super(start, self).name`, known without a path to the class; None: ask the class."""
        return None

    def set_attr(self, machine: Machine, name: str, value: Value) -> None:
        self.refuse(machine, f"setting attribute {name!r}")

    def del_attr(self, machine: Machine, name: str) -> None:
        self.refuse(machine, f"deleting attribute {name!r}")

    def set_entry(self, machine: Machine, name: str, value: Value | None) -> None:
        """`vars(self)[name] = value` (None: `del vars(self)[name]` of an entry that is there)."""
        self.refuse(machine, "changing attributes through __dict__")

    def stores(self, builder: Builder, name: str, value: Value | None) -> Effect | None:
        """The effect that writes (None: deletes) an entry of `self.__dict__` as an attribute."""
        return None

    # -- containers ------------------------------------------------------------------------------

    def get_item(self, machine: Machine, key: Value) -> Value:
        self.refuse(machine, "indexing")

    def get_item_lazily(self, machine: Machine, key: Value) -> Value:
        """`self[key]`, of a key that nothing has looked at yet, and need not be guarded."""
        return self.get_item(machine, key.realize(machine))

    def set_item(self, machine: Machine, key: Value, value: Value) -> None:
        self.refuse(machine, "item assignment")

    def del_item(self, machine: Machine, key: Value) -> None:
        self.refuse(machine, "item deletion")

    def contains(self, machine: Machine, item: Value) -> Value:
        """`item in self` (bool constant, or a tensor result)."""
        self.refuse(machine, "`in`")

    def contains_lazily(self, machine: Machine, item: Value) -> Value:
        """`item in self`, of an item that nothing has looked at yet."""
        return self.contains(machine, item.realize(machine))

    def length(self, machine: Machine) -> int:
        self.refuse(machine, "len()")

    def place(self, machine: Machine) -> tuple[int, Source] | None:
        """Of an int that varies and is given as it is: its value in this call, where it is read."""
        return None

    def counted(self, machine: Machine) -> Value:
        """`len(self)`: of a live container a number that may vary."""
        return machine.constant(self.length(machine))

    def iterate(self, machine: Machine) -> Value:
        """`iter(self)`."""
        self.refuse(machine, "iteration")

    def next(self, machine: Machine) -> Value | None:
        """The next item of an iterator; None: it is exhausted."""
        self.refuse(machine, "next()")

    # -- operators -------------------------------------------------------------------------------

    def binary(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        """`self op other` ("+", "@", ...), or `other op self` if reflected; None:
        NotImplemented."""
        return None

    def inplace(self, machine: Machine, op: str, other: Value) -> Value | None:
        """`self op= other` (op is "+", not "+="); None: there is no in-place form, use `binary`."""
        return None

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        """`self op other` for == != < <= > >=; None: NotImplemented. `op` is swapped by the caller
        when `reflected`, so that `self op other` is always what is asked."""
        return None

    def unary(self, machine: Machine, op: str) -> Value:
        """`-x`, `+x`, `~x` (`not` goes through `truth`)."""
        self.refuse(machine, f"unary {op}")

    def truth(self, machine: Machine) -> bool:
        """`bool(self)`; a tensor breaks with TensorBranch."""
        self.refuse(machine, "bool()")

    # -- calls and contexts ----------------------------------------------------------------------

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        """`self(*args, **kwargs)`."""
        self.refuse(machine, "a call")

    def written_as(self, machine: Machine) -> Value:
        """What a replacement field of an f-string formats in its place."""
        return self

    def call_method(self, machine: Machine, name: str, args: Args, kwargs: Kwargs) -> Value:
        """`self.name(*args, **kwargs)` without making the bound method."""
        return self.get_attr(machine, name).realize(machine).call(machine, args, kwargs)

    def enter(self, machine: Machine) -> tuple[Value, Value]:
        """`with self`: (what stays on the stack as the bound `__exit__`, the result of
        `__enter__`).

        The first is called with (type, value, traceback) or three Nones at the end of the block;
        its recipe, asked at a graph break within the block, must give a callable that ends it
        really.
        """
        self.refuse(machine, "with")

    # -- exits -----------------------------------------------------------------------------------

    def recipe(self, builder: Builder) -> Recipe:
        """How to make the object at an exit. Only for values without a source; asked once per exit.

        Raise `Unrestorable(what, born)` if it cannot be made: such a class keeps `machine.step` of
        its birth. Values with a source are read from the frame again and are not asked."""
        raise NotImplementedError(type(self).__name__)

    def fill(self, builder: Builder) -> Iterable[Effect]:
        """What a new object needs after it was made by its recipe."""
        return ()

    def empty_recipe(self) -> Recipe | None:
        """For containers: the recipe of an empty one, to be filled by `replace`."""
        return None

    def parts(self) -> Iterable[Value]:
        """The values it holds (for reachability: which tensors and iterators an exit keeps
        alive)."""
        return ()

    def is_changed(self, machine: Machine) -> bool:
        """Whether the traced code has changed the object, which existed before."""
        return id(self) in machine.effects.mutated

    # -- helpers ---------------------------------------------------------------------------------

    def refuse(self, machine: Machine, what: str) -> NoReturn:
        """Break: `what` is not modelled for this kind of value."""
        raise GraphBreak(UnsupportedOperation.of(what=what, types=self.describe()))

    def describe(self) -> str:
        """A short name for messages."""
        return type(self).__name__.removesuffix("Value").lower()

    def __repr__(self) -> str:
        return f"<{self.describe()} {self.source}>" if self.source else f"<{self.describe()}>"


class Lazy(Value):
    """A live object that was only moved around so far: no guard. Any look at it realizes it; moves
    (LOAD_FAST, STORE_FAST, building a tuple, passing an argument, returning) do not.
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
        """The realized value, if anyone looked."""
        return self._real

    def describe(self) -> str:
        return type(self.obj).__name__
