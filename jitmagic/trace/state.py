"""State of a trace: the frames that are interpreted, and the facts that it relies on.

`Frame` is the state of one Python frame (the root or an inlined callee): slots, operand stack,
position. `GuardBook` collects guards in the order in which facts were read; the thread's torch
state becomes the one GlobalState guard of a trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from types import CodeType
from typing import Any, TypeGuard

import torch

from ..bytecode.decode import decode
from ..bytecode.instruction import Body, Instruction
from ..bytecode.loops import loops_in
from ..bytecode.suspension import LEAVES
from ..errors import ModulePath, UserLine
from ..guards.guard import (
    CacheLacks,
    ClassFact,
    ClassFacts,
    DictKeysAre,
    EntriesEmpty,
    GlobalState,
    Guard,
    IdentityIs,
    InRange,
    KeyAbsent,
    NameFact,
    NamespaceFacts,
    StateFacts,
    TensorKind,
    TensorMatch,
    TypeIs,
    ValueEquals,
)
from ..guards.source import Argument, FunctionPart, Source, describe
from ..lazy_dataclass import dataclass, field, replace
from ..protocols import Protocol
from .library_files import is_library
from .restarts import Stop
from .result import BreakReason
from .values.base import Lazy, Machine, ObservedError, Value

__all__ = [
    "Frame", "GuardBook", "Interpreter", "Program", "Returned", "Signal", "Yielded", "kind_only",
    "program_of", "user_lines",
]  # fmt: skip


class GuardBook:
    """The guards of one trace, without duplicates, in the order in which the facts were read."""

    def __init__(self) -> None:
        self._guards: dict[object, Guard] = {}
        self._facts: dict[object, dict[ClassFact | NameFact, None]] = {}  # by owner

    def add(self, guard: Guard, where: Callable[[], UserLine]) -> None:
        """Add `guard` unless it is there; `where` of the first reader of the fact stays."""
        key = _key(guard)
        if isinstance(guard, ClassFacts | NamespaceFacts):
            self._facts.setdefault(key, {}).update(dict.fromkeys(guard.facts))
        if key not in self._guards:
            self._guards[key] = guard if guard.where else replace(guard, where=where())

    def __len__(self) -> int:
        return len(self._guards)

    def since(self, mark: int) -> list[Guard]:
        """Return the guards after the first `mark` ones."""
        return list(self._guards.values())[mark:]

    def between(self, first: int, last: int) -> list[Guard]:
        """Return the guards numbered from `first` up to `last`."""
        return self.since(first)[: last - first]

    def __contains__(self, guard: Guard) -> bool:
        return self._guards.get(_key(guard)) == guard

    def led_to(self, reason: BreakReason, step: int, mark: int) -> tuple[Guard, ...]:
        """Return the guards on the facts that led to a break.

        The next attempt ends before it reads these facts. Without guards on them, the entry of an
        unusual first call would also serve calls that can be compiled further. They are the facts
        that the breaking instruction read (guards after `mark`), and those on arguments of the
        frame that the root's instruction read (guards after `step`). Other facts that inlined calls
        read in between are left out: they may differ in every call.
        """
        if reason.rests_on == "nothing":
            return ()
        facts = [g for g in self.since(step) if isinstance(getattr(g, "source", None), Argument)]
        facts += self.since(max(mark, step))
        if reason.rests_on == "values":
            return tuple(facts)
        return tuple(kind for guard in facts if (kind := kind_only(guard)) is not None)

    def finish(self, state: StateFacts) -> tuple[Guard, ...]:
        """Return all guards, merged for each class, namespace and table of empty entries.

        A TypeIs or InRange that a sharper guard of the same source implies is left out.
        """
        sharper: set[Source] = {
            guard.source
            for guard in self._guards.values()
            if isinstance(guard, ValueEquals | IdentityIs | TensorMatch)
        }
        sharper |= {source.base for source in sharper if _is_code(source)}
        ranges = [guard for guard in self._guards.values() if isinstance(guard, InRange)]
        kept = (
            self._whole(key, guard)
            for key, guard in self._guards.items()
            if not (isinstance(guard, TypeIs) and guard.source in sharper)
            and not (isinstance(guard, InRange) and _is_implied(guard, ranges))
        )
        return (GlobalState(facts=state), *_one_for_each_table(list(kept)))

    def _whole(self, key: object, guard: Guard) -> Guard:
        """Return a class's or namespace's guard with all facts that were relied on."""
        if not isinstance(guard, ClassFacts | NamespaceFacts):
            return guard
        return replace(guard, facts=tuple(self._facts[key]))  # type: ignore[arg-type]


def _one_for_each_table(guards: list[Guard]) -> Iterator[Guard]:
    """Yield the guards, with those about the entries of one dictionary merged into one.

    Natively that is one step, which compares two version numbers while the dictionary is unchanged.
    """
    tables: dict[Source, list[EntriesEmpty | KeyAbsent]] = {
        guard.source: [] for guard in guards if isinstance(guard, EntriesEmpty)
    }
    for guard in guards:
        if isinstance(guard, EntriesEmpty | KeyAbsent) and guard.source in tables:
            tables[guard.source].append(guard)
    for guard in guards:
        if not isinstance(guard, EntriesEmpty | KeyAbsent) or guard.source not in tables:
            yield guard
        elif guard is tables[guard.source][0]:
            yield _merged(tables[guard.source])


def _merged(parts: list[EntriesEmpty | KeyAbsent]) -> EntriesEmpty:
    empty: dict[str, None] = {}
    absent: dict[object, None] = {}
    for part in parts:
        if isinstance(part, EntriesEmpty):
            empty |= dict.fromkeys(part.keys)
            absent |= dict.fromkeys(part.absent)
        else:
            absent[part.key] = None
    return EntriesEmpty(parts[0].source, tuple(empty), tuple(absent), where=parts[0].where)


def _is_implied(guard: InRange, ranges: Iterable[InRange]) -> bool:
    """Return whether a narrower range of its source is guarded too."""
    return any(
        other is not guard
        and guard.low <= other.low
        and other.high <= guard.high
        and (other.whole or not guard.whole)
        for other in ranges
        if other.source == guard.source
    )


def kind_only(guard: Guard) -> Guard | None:
    """Return the weaker guard on the type alone that a guard implies, or None."""
    match guard:
        case TypeIs() | TensorKind() | IdentityIs() | CacheLacks():
            return guard
        case TensorMatch(source=source, spec=spec):
            return TypeIs(source, spec.cls, where=guard.where)
        case ValueEquals(source=source, value=value):
            return TypeIs(source, type(value), where=guard.where)
    return None


def _is_code(source: Source) -> TypeGuard[FunctionPart]:
    """Return whether the source is a function's code, which only a function has."""
    return isinstance(source, FunctionPart) and source.part == "__code__"


def _key(guard: Guard) -> object:
    """Return the key under which equal guards are merged.

    A source has one value, so values need not be compared or hashed.
    """
    if isinstance(guard, ValueEquals | IdentityIs | DictKeysAre):
        return type(guard), guard.source
    if isinstance(guard, ClassFacts):
        return type(guard), guard.cls
    if isinstance(guard, NamespaceFacts):
        return type(guard), id(guard.table)
    return guard


# Opcodes of an `except` handler, which tests the exception or ends it. A `finally` has neither.
_HANDLING = ("CHECK_E", "POP_EXCEPT", "RETURN", "YIELD", "SEND")
_LEAVING = ("JUMP_FORWARD", "JUMP_BACKWARD", "RAISE_VARARGS")


@dataclass(frozen=True, slots=True)
class ExceptionHandler:
    """An entry of the exception table: the handler of instructions first..last, by index."""

    first: int
    last: int
    target: int
    depth: int
    lasti: bool


@dataclass(eq=False, slots=True)
class Program:
    """A decoded body with its instructions numbered."""

    code: CodeType
    body: Body
    index: dict[Instruction, int]
    handlers: list[ExceptionHandler]
    loops: dict[int, frozenset[int]] | None = None  # by heads; None: not computed yet

    def loops_of(self) -> dict[int, frozenset[int]]:
        """Return the loops by the indices of their heads."""
        if self.loops is None:
            self.loops = {
                self.index[head]: frozenset(map(self.index.__getitem__, loop))
                for head, loop in loops_in(self.body).items()
            }
        return self.loops

    def handler_at(self, index: int) -> ExceptionHandler | None:
        """Return the innermost handler of an instruction."""
        covering = [handler for handler in self.handlers if handler.first <= index <= handler.last]
        return min(covering, key=lambda handler: handler.last - handler.first, default=None)

    def catches_at(self, index: int) -> bool:
        """Return whether the user's code handles exceptions raised there.

        The end of a `with` does not count, nor does a `finally` that lets the exception pass.
        """
        targets = [
            handler.target for handler in self.handlers if handler.first <= index <= handler.last
        ]
        return any(self._handles(target) for target in targets)

    def _handles(self, target: int) -> bool:
        """Return whether some path through a handler does not re-raise the exception."""
        first, second = self.body.instructions[target : target + 2]
        if first.op != "PUSH_EXC_INFO" or second.op == "WITH_EXCEPT_START":
            return False
        waiting, seen = [target + 1], set[int]()
        while waiting:
            at = waiting.pop()
            instruction = self.body.instructions[at]
            if instruction.op.startswith(_HANDLING):
                return True
            if at in seen or instruction.op == "RERAISE":
                continue
            seen.add(at)
            if instruction.target is not None:
                waiting.append(self.index[instruction.target])
            if not instruction.op.startswith(_LEAVING):
                waiting.append(at + 1)
        return False

    def closes_at(self, index: int) -> bool:
        """Return whether a generator suspended here has code to run when it is closed."""
        handler = self.handler_at(index)
        if handler is None:
            return False
        return (
            self.body.instructions[handler.target].op != "CALL_INTRINSIC_1"
        )  # the wrapper for StopIteration


class _Identity:
    """A key that compares code objects by identity.

    Equality of code objects takes long, and ignores differences in the containers among their
    constants.
    """

    __slots__ = ("code",)

    def __init__(self, code: CodeType) -> None:
        self.code = code

    def __hash__(self) -> int:
        return id(self.code)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.code is other.code


def program_of(code: CodeType, users: dict[CodeType, Program]) -> Program:
    """Return a code object decoded for interpretation; it is never modified.

    Programs of libraries are shared by all traces. `users` caches the rest for one trace, so that
    functions which are defined anew do not keep their old code alive.
    """
    if is_library(code.co_filename):
        return _of_library(_Identity(code))
    if code not in users:
        users[code] = _decoded(code)
    return users[code]


@lru_cache(maxsize=512)  # torch's modules are inlined in many traces; 5 MB when full
def _of_library(key: _Identity) -> Program:
    return _decoded(key.code)


def _decoded(code: CodeType) -> Program:
    body = decode(code)
    index = {instruction: number for number, instruction in enumerate(body.instructions)}
    handlers = [
        ExceptionHandler(
            index[region.start],
            index[region.end_inclusive],
            index[region.target],
            region.depth,
            region.lasti,
        )
        for region in body.regions
        if region.target.arg is not LEAVES  # Python has to raise what such a handler passes on
    ]
    return Program(code, body, index, handlers)


@dataclass(eq=False)
class Frame:
    """One Python frame. Slots hold plain locals, and cells under the names of cell variables."""

    program: Program
    slots: dict[str, Value]
    globals: Any  # the DictValue of its names
    at: int = 0  # index of the instruction being interpreted
    next: int = 0  # index of the next one; handlers that jump change it
    stack: list[Value | None] = field(default_factory=list)  # None is a NULL
    handling: list[Value] = field(default_factory=list)  # exceptions being handled, innermost last
    names: dict[str, Value] = field(default_factory=dict)  # the namespace of a class body
    past_default_device: bool = False  # callees run without the mode of torch's default device
    gradients: set[int] = field(default_factory=set)  # instructions at which backward() ran
    nodes_at: dict[int, int] = field(default_factory=dict)  # size of the graph at each loop head
    rolls_at: int | None = None  # the head of a training loop whose next iteration Python runs
    keyword_names: tuple[str, ...] = ()  # 3.11, 3.12: set by KW_NAMES for the CALL that follows
    loops: dict[int, Any] = field(default_factory=dict)  # plain.LoopRun by loop head
    goes_back: bool = False  # the last instruction was a backward jump

    @property
    def instruction(self) -> Instruction:
        return self.program.body.instructions[self.at]

    def push(self, value: Value | None) -> None:
        self.stack.append(value)

    def peek(self, depth: int, machine: Machine) -> Value:
        """Return the value `depth` entries from the top (1: the top), realized."""
        value = self.stack[-depth]
        assert value is not None, "a NULL where a value is expected"
        return value.realize(machine)

    def pop_raw(self) -> Value | None:
        """Pop the top of the stack unrealized: it may be a NULL or a Lazy value."""
        return self.stack.pop()

    def pop_lazy(self) -> Value:
        """Pop the top of the stack without realizing it, to move it."""
        value = self.stack.pop()
        assert value is not None, "a NULL where a value is expected"
        return value

    def pop(self, machine: Machine) -> Value:
        """Pop the top of the stack, realized."""
        return self.pop_lazy().realize(machine)

    def pop_pair(self, machine: Machine) -> tuple[Value, Value]:
        """Pop the two topmost values, realized, the deeper one first."""
        upper = self.pop_lazy()
        lower = self.pop(machine)
        return lower, upper.realize(machine)

    def pop_many(self, count: int) -> list[Value]:
        """Pop the topmost `count` values, unrealized, and return them deepest first."""
        if not count:
            return []
        values = self.stack[-count:]
        del self.stack[-count:]
        assert all(value is not None for value in values)
        return values  # type: ignore[return-value]

    def jump(self, target: Instruction | None) -> None:
        """Continue at `target`."""
        assert target is not None
        self.next = self.program.index[target]

    @cached_property
    def module(self) -> ModulePath | None:
        """The module whose method this frame runs; None for a function, or without a source."""
        value = self.slots.get("self")
        if value is None or value.source is None:
            return None
        # Reads the type only: `bool` and `isinstance` of the object could run the user's code.
        live = value.obj if isinstance(value, Lazy) else getattr(value, "live", None)
        if not issubclass(type(live), torch.nn.Module):
            return None
        return ModulePath(describe(value.source), type(live).__name__)

    def line(self, module: ModulePath | None = None) -> UserLine:
        """Return the user's line of the instruction being interpreted."""
        body = self.program.body
        position = min(self.at, len(body.instructions) - 1)
        lineno = body.instructions[position].lineno or body.firstlineno
        return UserLine(body.filename, lineno, body.name, module)


@dataclass(frozen=True, slots=True)
class Returned:
    """The frame has returned this value."""

    value: Value


@dataclass(frozen=True, slots=True)
class Yielded:
    """The frame is suspended at a `yield`; the value sent in is pushed when it resumes."""

    value: Value


Signal = Returned | Yielded | None


class Interpreter(Machine, Protocol):
    """The part of trace.machine.Machine for code that handles frames and exceptions."""

    frames: list[Frame]
    root: Frame
    stop: Stop | None  # the attempt ends there

    @property
    def frame(self) -> Frame: ...
    def handled(self) -> Value | None:
        """Return the exception being handled, which a bare `raise` raises again."""

    def resume(self, frame: Frame) -> Signal:
        """Run a frame until it returns or yields."""

    def execute(self, frame: Frame) -> Signal:
        """Interpret one instruction of a frame."""

    def unwind(self, frame: Frame, observed: ObservedError) -> None:
        """Jump to the handler of the current instruction, or leave the frame."""

    def relies_on(self, guard: Guard) -> bool:
        """Return whether the guards imply a fact."""

    def class_names(self, body: Value) -> dict[str, Value]:
        """Run the body of a class statement; return the names it has bound."""


def user_lines(frames: Sequence[Frame]) -> Iterator[UserLine]:
    """Yield the user's lines, innermost first, without frames of libraries.

    The first has the module of a library's frames (an nn.Linear) that run there.
    """
    module: ModulePath | None = None
    is_first = True
    for frame in reversed(frames):
        module = (is_first and module) or frame.module
        if frame is frames[0] or not is_library(frame.program.body.filename):
            yield frame.line(module)
            is_first = False
