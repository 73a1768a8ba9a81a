"""The result of a trace: graph, guards, effects and exit, as frozen, printable data.

    Trace  = Trace(code_name, graph, inputs, guards, effects, exit, instructions, ..., draws)
    Exit   = Return(value: Recipe) | Break(reason, ...)
    Recipe = a Python value that is made when the compiled graph has run:
             FromSource(source)            read it from the frame again
           | FromGraph(index)              the index-th output of the graph
           | Constant(value)               an immutable constant or a process-wide object (a class)
           | BuildTuple/BuildList/BuildSet(items) | BuildDict(keys, values) | BuildSlice(items)
           | BuildCell(contents | None)    a fresh closure cell
           | BuildFunction(code, globals, name, defaults, kwdefaults, closure, annotations)
           | NewInstance(cls)              object.__new__(cls); its attributes arrive as effects
           | Invoke(callee, args, kwargs)  callee(*args, **kwargs): ranges, iterators, contexts, ...
    Recipes are compared by identity: one object of the traced program is one recipe object, so that
    the emitter makes it once and every holder sees the same object.
    Effect = a change of an object from before the call, replayed in program order:
             SetAttr(object, name, value) | DelAttr | SetItem(object, key, value) | DelItem
           | SetCell(cell, value)
           | ReplaceList(target, items) | ReplaceDict(target, keys, values)   new contents, in place
           | Perform(callee, args, kwargs)   a call made for its effect (a context's __enter__, ...)

    Draw   = random numbers of Python or numpy, drawn in program order before the graph runs

Sources describe the frame at entry: every FromSource is read before the first effect is performed.
SetAttr stores past properties, and for plain classes only; others get Perform(object.__setattr__,
...).

The tracer never compiles and never changes a live object: all that is left to do is in here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from enum import Enum
from types import CodeType
from typing import Any, ClassVar, Literal

import torch

from ..call_warnings import CallWarning
from ..errors import UserLine
from ..graph.wrappers.wrapping import Rewrap
from ..guards.guard import Guard
from ..guards.source import Argument, Drawn, Source
from ..lazy_dataclass import dataclass, field
from ..spec import TensorSpec

__all__ = [
    "NOWHERE",
    "Break",
    "BreakReason",
    "BuildCell",
    "BuildDict",
    "BuildFunction",
    "BuildList",
    "BuildSet",
    "BuildSlice",
    "BuildTuple",
    "CannotEmit",
    "Constant",
    "DelAttr",
    "DelItem",
    "Draw",
    "Effect",
    "Exit",
    "FromGraph",
    "FromSource",
    "GraphInput",
    "InputKind",
    "Invoke",
    "NewInstance",
    "OpenLoop",
    "Perform",
    "Recipe",
    "ReplaceDict",
    "ReplaceList",
    "Return",
    "SeenLoops",
    "SetAttr",
    "SetCell",
    "SetItem",
    "Specialized",
    "Trace",
    "WrapperPart",
    "sources_read",
]


class Recipe:
    """Base of the recipes; identity matters, see the module head."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)
class FromSource(Recipe):
    source: Source


@dataclass(frozen=True, slots=True, eq=False)
class FromGraph(Recipe):
    index: int


@dataclass(frozen=True, slots=True, eq=False)
class Constant(Recipe):
    value: object


@dataclass(frozen=True, slots=True, eq=False)
class BuildTuple(Recipe):
    items: tuple[Recipe, ...]


@dataclass(frozen=True, slots=True, eq=False)
class BuildList(Recipe):
    items: tuple[Recipe, ...]


@dataclass(frozen=True, slots=True, eq=False)
class BuildSet(Recipe):
    items: tuple[Recipe, ...]


@dataclass(frozen=True, slots=True, eq=False)
class BuildDict(Recipe):
    keys: tuple[Recipe, ...]
    values: tuple[Recipe, ...]


@dataclass(frozen=True, slots=True, eq=False)
class BuildSlice(Recipe):
    items: tuple[Recipe, Recipe, Recipe]


@dataclass(frozen=True, slots=True, eq=False)
class BuildCell(Recipe):
    contents: Recipe | None  # None: an empty cell (a SetCell effect may fill it later)


@dataclass(frozen=True, slots=True, eq=False)
class BuildFunction(Recipe):
    code: CodeType
    globals: Recipe
    name: str
    qualname: str
    defaults: Recipe | None
    kwdefaults: Recipe | None
    closure: tuple[Recipe, ...]
    annotations: Recipe | None


@dataclass(frozen=True, slots=True, eq=False)
class NewInstance(Recipe):
    cls: Recipe


@dataclass(frozen=True, slots=True, eq=False)
class Invoke(Recipe):
    callee: Recipe
    args: tuple[Recipe, ...] = ()
    kwargs: tuple[tuple[str, Recipe], ...] = ()


class Effect:
    """Base of the effects; replayed in order after the graph ran."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)
class SetAttr(Effect):
    object: Recipe
    name: str
    value: Recipe


@dataclass(frozen=True, slots=True, eq=False)
class DelAttr(Effect):
    object: Recipe
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class SetItem(Effect):
    object: Recipe
    key: Recipe
    value: Recipe


@dataclass(frozen=True, slots=True, eq=False)
class DelItem(Effect):
    object: Recipe
    key: Recipe


@dataclass(frozen=True, slots=True, eq=False)
class SetCell(Effect):
    cell: Recipe
    value: Recipe | None  # None: the cell is emptied


@dataclass(frozen=True, slots=True, eq=False)
class ReplaceList(Effect):
    target: Recipe
    items: tuple[Recipe, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ReplaceDict(Effect):
    target: Recipe
    keys: tuple[Recipe, ...]
    values: tuple[Recipe, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Perform(Effect):
    callee: Recipe
    args: tuple[Recipe, ...] = ()
    kwargs: tuple[tuple[str, Recipe], ...] = ()


@dataclass(frozen=True, slots=True)
class Draw:
    """A call of a random number generator, `perform(generator)`; its result is a `Drawn` source."""

    generator: Recipe
    perform: Callable[[object], object]


class InputKind(Enum):
    """The kind of value that a call passes for an input of the graph."""

    TENSOR = "tensor"
    SCALAR = "scalar"
    DRAWN = "drawn"


@dataclass(frozen=True, slots=True)
class Specialized:
    """A varying number that had to be a constant: its origin and name, the reason, and the line.

    A trip count has a `loop` if that loop could have ended the graph instead of being unrolled.
    """

    origin: Hashable
    name: str
    why: str
    where: UserLine | None
    loop: int | None = None  # the root's instruction with the loop whose trip count it is


NOWHERE: Source = Argument(-1, "computed")
"""The source of inputs that are computed in the frame instead of passed by the call."""


@dataclass(frozen=True, slots=True)
class WrapperPart:
    """The number of an inner tensor in the wrapper at `source`, which the graph makes again.

    `parent`: the part of another wrapper that this wrapper is, if any.
    """

    source: Source
    number: int
    rewrap: Rewrap
    parent: WrapperPart | None = None


@dataclass(frozen=True, slots=True)
class GraphInput:
    """One placeholder of the graph: the source of its value, and its spec in the traced call."""

    name: str
    source: Source
    spec: TensorSpec
    kind: InputKind = InputKind.TENSOR
    wrapper: WrapperPart | None = None
    """Set for an inner tensor whose gradient is part of that of a wrapper subclass."""

    @property
    def is_scalar(self) -> bool:
        """Return whether it is a Python float or int, which the graph takes as a 0-dim tensor."""
        return self.kind is InputKind.SCALAR

    @property
    def is_drawn(self) -> bool:
        """Return whether its value does not exist before the call, because the frame draws it."""
        return self.kind is InputKind.DRAWN or isinstance(self.source, Drawn)

    @property
    def is_memory(self) -> bool:
        """Return whether it is a tensor whose memory the caller may hold too."""
        return self.kind is InputKind.TENSOR


@dataclass(frozen=True, slots=True)
class BreakReason:
    """The reason why a graph ended; subclasses in trace/breaks.py have the texts."""

    message: str
    hint: str = ""
    rests_on: ClassVar[Literal["nothing", "types", "values"]] = "types"
    """The facts that led to the break: none, the types of the operands, or also their values."""
    whole_frame: ClassVar[bool] = False
    """All instructions of the frame would meet it, so the frame runs as eager."""
    plain_rest: ClassVar[bool] = False
    """With whole_frame: the code after a cut is left to plain Python too."""
    spreads: ClassVar[bool] = False
    """Results computed from the operand would break too, so the rest is left to eager."""
    whole_loop: ClassVar[bool] = False
    """Python runs the loop that the instruction is the head of, not that instruction alone."""
    hooks_callees: ClassVar[bool] = True
    """Functions that Python calls there are compiled by themselves."""
    expected: ClassVar[bool] = False
    """The user requested it, or sees the error that is raised there."""

    @property
    def kind(self) -> str:
        """A stable short name for reports: the name of the class."""
        return type(self).__name__


class Exit:
    """Base of the two ways in which a trace ends."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Return(Exit):
    value: Recipe


@dataclass(frozen=True, slots=True)
class Break(Exit):
    """The graph ends before instruction number `index` of the traced code, as decode counts them.

    Not a byte offset, because both halves of a superinstruction have the same one.

    The residual restores `locals`, `cells` and `stack` (bottom first; None is a NULL pushed by
    PUSH_NULL-like instructions), executes that one instruction as plain Python
    (inside the user's exception handlers) and continues in the resume function of the edge taken.
    """

    reason: BreakReason
    where: UserLine
    index: int
    stack: tuple[Recipe | None, ...]
    locals: Mapping[str, Recipe]  # plain fast locals that are bound
    cells: Mapping[str, Recipe]  # cell and free variables: recipes of the cells themselves
    held: frozenset[str] = frozenset()  # variables that stay bound even if they are not read again
    line: UserLine | None = None  # of the instruction; `where` may be in a function that it calls
    callee_holds: bool = False  # the call takes the last reference to an object: hook no callees


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """A loop that contains the graph break at the end of a trace.

    Says whether the trace also began inside the loop, whether it reached another iteration, and
    whether it recorded operations there.
    """

    began_inside: bool
    has_iterated: bool
    recorded: bool


@dataclass(frozen=True, slots=True)
class SeenLoops:
    """The loops of the root frame that a trace has met, by their heads."""

    plain: frozenset[int] = frozenset()  # Python runs them as a whole
    plain_callees: tuple[CodeType, ...] = ()  # functions that run for long and record nothing
    idle: Mapping[int, tuple[Guard, ...]] = field(default_factory=dict)
    """Loops that were unrolled and recorded nothing, with the guards of their iterations."""
    open: Mapping[int, OpenLoop] = field(default_factory=dict)
    """Loops that contain the break at the end of the trace."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The result of tracing one frame."""

    name: str
    graph: torch.fx.GraphModule  # torch level; outputs one flat tuple; empty graph: no call_* nodes
    inputs: tuple[GraphInput, ...]
    guards: tuple[Guard, ...]
    effects: tuple[Effect, ...]
    exit: Exit
    instructions: int = 0  # number of interpreted instructions
    mutated: tuple[int, ...] = ()  # the inputs that the graph writes to
    because: tuple[Guard, ...] = ()  # the guards on facts that led to the break at the exit
    specialized: tuple[Specialized, ...] = ()  # varying numbers that had to be constants here
    lock: Any = None  # a lock, held while the graph runs and effects are performed
    draws: tuple[Draw, ...] = ()
    casts: tuple[Recipe, ...] = ()  # leaves whose autocast casts stay cached after the call
    held: tuple[Source, ...] = ()  # objects whose state the backward of an autograd function reads
    has_ones: bool = False  # a varying dimension is or was of size one
    loops: SeenLoops = SeenLoops()
    retraced: tuple[str, ...] = ()  # rules of compile/retracing.py that were tried
    warned: tuple[CallWarning, ...] = ()  # warnings of its calls, which the trace has shown

    @property
    def freed_results(self) -> tuple[int, ...]:
        """Return the graph's outputs whose history a backward in the graph has freed."""
        results: Any = next(iter(reversed(self.graph.graph.nodes))).args[0]
        return tuple(i for i, node in enumerate(results) if node.meta.get("freed"))

    @property
    def wrappers(self) -> dict[Source, WrapperPart]:
        """A part of each wrapper subclass that gets a gradient, which the call passes after the
        inputs; a wrapper comes before those inside it.
        """
        found: dict[Source, WrapperPart] = {}
        for part in [one.wrapper for one in self.inputs if one.wrapper is not None]:
            chain = [part]
            while (parent := chain[-1].parent) is not None:
                chain.append(parent)
            found.update((each.source, each) for each in reversed(chain))
        return found

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources of all values that the executable is called with."""
        return (*(entry.source for entry in self.inputs), *self.wrappers, *self.held)

    @property
    def speculates(self) -> bool:
        """Return whether a data-dependent branch was speculated to go as in the traced call."""
        return any(node.meta.get("speculated") for node in self.graph.graph.nodes)

    @property
    def varying(self) -> frozenset[Source]:
        """The numbers of the call that are symbols."""
        return frozenset(i.source for i in self.inputs if i.is_scalar and not i.is_drawn)

    @property
    def grad_inputs(self) -> tuple[int, ...]:
        return tuple(i for i, entry in enumerate(self.inputs) if entry.spec.requires_grad)

    @property
    def unexpected_break(self) -> Break | None:
        """The break at its end, unless the user requested it or gets an error there."""
        is_one = isinstance(self.exit, Break) and not self.exit.reason.expected
        return self.exit if is_one else None  # type: ignore[return-value]


class CannotEmit(Exception):
    """The frame cannot be cut here (an exception is being handled, say); it runs as eager."""


def sources_read(part: object) -> Iterator[Source]:
    """Yield the sources that recipes, effects, draws and exits read, in their order."""
    if isinstance(part, FromSource):
        yield part.source
    elif isinstance(part, tuple):
        for item in part:
            yield from sources_read(item)
    elif isinstance(part, Recipe | Effect | Exit | Draw) and not isinstance(part, Constant):
        for name in part.__match_args__:  # type: ignore[union-attr]
            yield from sources_read(getattr(part, name))
