"""What a trace carries along: frames under interpretation, and the facts it relies on.

`Frame` is the state of one Python frame (the root or an inlined callee): slots, operand stack,
position. `GuardBook` collects the guards in the order the facts were read; the thread's torch state
becomes the one GlobalState guard of a trace. Nothing here interprets anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from types import CodeType
from typing import Any, TypeGuard

import torch

from ..bytecode.decode import decode
from ..bytecode.instruction import Body, Instruction
from ..bytecode.loops import loops_in
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
from .library_files import is_library
from .result import BreakReason
from .values.base import Lazy, Machine, Value

__all__ = ["Frame", "GuardBook", "Program", "kind_only", "program_of", "user_lines"]


class GuardBook:
    """The guards of one trace, without duplicates, in the order the facts were read."""

    def __init__(self) -> None:
        self._guards: dict[object, Guard] = {}
        self._facts: dict[object, dict[ClassFact | NameFact, None]] = {}  # by owner

    def add(self, guard: Guard, where: Callable[[], UserLine]) -> None:
        """Rely on `guard`; the first line that did is the one remembered."""
        key = _key(guard)
        if isinstance(guard, ClassFacts | NamespaceFacts):
            self._facts.setdefault(key, {}).update(dict.fromkeys(guard.facts))
        if key not in self._guards:
            self._guards[key] = guard if guard.where else replace(guard, where=where())

    def __len__(self) -> int:
        return len(self._guards)

    def since(self, mark: int) -> list[Guard]:
        """The guards after the first `mark` ones."""
        return list(self._guards.values())[mark:]

    def between(self, first: int, last: int) -> list[Guard]:
        """Return the guards numbered from `first` up to `last`."""
        return self.since(first)[: last - first]

    def __contains__(self, guard: Guard) -> bool:
        return self._guards.get(_key(guard)) == guard

    def led_to(self, reason: BreakReason, step: int, mark: int) -> tuple[Guard, ...]:
        """The next attempt ends before it reads what led to the break. Without these facts its
        entry would fit calls that can be compiled, after one odd first call.

        They are what the instruction itself read (behind the first `mark` guards), and what the
        root's instruction read (behind `step`) of its arguments; not all that inlined calls read on
        their way, which may differ in every call.
        """
        if reason.rests_on == "nothing":
            return ()
        facts = [g for g in self.since(step) if isinstance(getattr(g, "source", None), Argument)]
        facts += self.since(max(mark, step))
        if reason.rests_on == "values":
            return tuple(facts)
        return tuple(kind for guard in facts if (kind := kind_only(guard)) is not None)

    def finish(self, state: StateFacts) -> tuple[Guard, ...]:
        """All guards, one for each class, namespace and table of empty entries; a TypeIs and an
        InRange implied by a sharper guard of the same source are left out."""
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
        """A class's or a namespace's guard with all that was relied on."""
        if not isinstance(guard, ClassFacts | NamespaceFacts):
            return guard
        return replace(guard, facts=tuple(self._facts[key]))  # type: ignore[arg-type]


def _one_for_each_table(guards: list[Guard]) -> Iterator[Guard]:
    """Return what is relied on of the entries of one dictionary, together: one step natively, which
    costs a comparison of two numbers while the dictionary has not changed.
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
    """Whether another of the ranges of its source lies in it: a trace narrows them step by step."""
    return any(
        other is not guard
        and guard.low <= other.low
        and other.high <= guard.high
        and (other.whole or not guard.whole)
        for other in ranges
        if other.source == guard.source
    )


def kind_only(guard: Guard) -> Guard | None:
    """What a guard says of the kind of an object, whichever of its kind it is; None: nothing."""
    match guard:
        case TypeIs() | TensorKind() | IdentityIs() | CacheLacks():
            return guard
        case TensorMatch(source=source, spec=spec):
            return TypeIs(source, spec.cls, where=guard.where)
        case ValueEquals(source=source, value=value):
            return TypeIs(source, type(value), where=guard.where)
    return None


def _is_code(source: Source) -> TypeGuard[FunctionPart]:
    """Whether only a function has such a part."""
    return isinstance(source, FunctionPart) and source.part == "__code__"


def _key(guard: Guard) -> object:
    """What makes two guards one. A source has one value, so values need not be compared (or
    hashed)."""
    if isinstance(guard, ValueEquals | IdentityIs | DictKeysAre):
        return type(guard), guard.source
    if isinstance(guard, ClassFacts):
        return type(guard), guard.cls
    if isinstance(guard, NamespaceFacts):
        return type(guard), id(guard.table)
    return guard


# Of a handler: `except` asks which exception it is, or is done with it. A `finally` does neither.
_HANDLING = ("CHECK_E", "POP_EXCEPT", "RETURN", "YIELD", "SEND")
_LEAVING = ("JUMP_FORWARD", "JUMP_BACKWARD", "RAISE_VARARGS")


@dataclass(frozen=True, slots=True)
class Handler:
    """Where an exception raised at instructions first..last goes, by instruction index."""

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
    handlers: list[Handler]
    loops: dict[int, frozenset[int]] | None = None  # by heads; None: not looked for yet

    def loops_of(self) -> dict[int, frozenset[int]]:
        """The loops, by the numbers of their heads."""
        if self.loops is None:
            self.loops = {
                self.index[head]: frozenset(map(self.index.__getitem__, loop))
                for head, loop in loops_in(self.body).items()
            }
        return self.loops

    def handler_at(self, index: int) -> Handler | None:
        """The innermost handler of an instruction."""
        covering = [handler for handler in self.handlers if handler.first <= index <= handler.last]
        return min(covering, key=lambda handler: handler.last - handler.first, default=None)

    def catches_at(self, index: int) -> bool:
        """Whether the user's code handles what is raised there; the end of a `with` does not
        count, nor does a `finally` that lets it go on."""
        targets = [
            handler.target for handler in self.handlers if handler.first <= index <= handler.last
        ]
        return any(self._handles(target) for target in targets)

    def _handles(self, target: int) -> bool:
        """Whether some way through a handler does not end in raising the same again."""
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
        """Whether a generator suspended here has code to run when it is closed."""
        handler = self.handler_at(index)
        if handler is None:
            return False
        return (
            self.body.instructions[handler.target].op != "CALL_INTRINSIC_1"
        )  # StopIteration's own


class _Identity:
    """A key that is equal where the code is the same object. Code objects that are equal are not
    told apart by what is in their constants' containers, and take long to compare.
    """

    __slots__ = ("code",)

    def __init__(self, code: CodeType) -> None:
        self.code = code

    def __hash__(self) -> int:
        return id(self.code)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.code is other.code


def program_of(code: CodeType, users: dict[CodeType, Program]) -> Program:
    """A code object, decoded for interpretation; nobody changes it. A library's serves all traces.
    `users`: what is decoded for one: functions that are defined anew are dropped, as their code is.
    """
    if is_library(code.co_filename):
        return _of_library(_Identity(code))
    if code not in users:
        users[code] = _decoded(code)
    return users[code]


@lru_cache(maxsize=512)  # torch's modules are inlined again and again; 5 MB where it is full
def _of_library(key: _Identity) -> Program:
    return _decoded(key.code)


def _decoded(code: CodeType) -> Program:
    body = decode(code)
    index = {instruction: number for number, instruction in enumerate(body.instructions)}
    handlers = [
        Handler(
            index[region.start],
            index[region.end_inclusive],
            index[region.target],
            region.depth,
            region.lasti,
        )
        for region in body.regions
    ]
    return Program(code, body, index, handlers)


@dataclass(eq=False)
class Frame:
    """One Python frame. Slots hold plain locals, and cells under the names of cell variables."""

    program: Program
    slots: dict[str, Value]
    globals: Any  # a values.namespaces.GlobalsValue
    at: int = 0  # index of the instruction being interpreted
    next: int = 0  # index of the one to go on with; handlers that jump change it
    stack: list[Value | None] = field(default_factory=list)  # None is a NULL
    handling: list[Value] = field(default_factory=list)  # exceptions being handled, innermost last
    names: dict[str, Value] = field(default_factory=dict)  # of a class body
    past_default_device: bool = False  # its mode is off in what it calls
    gradients: set[int] = field(default_factory=set)  # instructions at which backward() ran
    nodes_at: dict[int, int] = field(default_factory=dict)  # of the graph, when a round began
    rolls_at: int | None = None  # the head of a training loop, whose next round is Python's
    keyword_names: tuple[str, ...] = ()  # 3.11, 3.12: set by KW_NAMES for the CALL that follows
    loops: dict[int, Any] = field(default_factory=dict)  # by head: its last run, plain.py
    goes_back: bool = False  # the last instruction was a backward jump

    @property
    def instruction(self) -> Instruction:
        return self.program.body.instructions[self.at]

    def push(self, value: Value | None) -> None:
        self.stack.append(value)

    def peek(self, depth: int, machine: Machine) -> Value:
        """The value `depth` entries from the top (1: the top), realized."""
        value = self.stack[-depth]
        assert value is not None, "a NULL where a value is expected"
        return value.realize(machine)

    def pop_raw(self) -> Value | None:
        """The top of the stack as it is: maybe a NULL, maybe nobody looked at it yet."""
        return self.stack.pop()

    def pop_lazy(self) -> Value:
        """The top of the stack, unrealized: for moves."""
        value = self.stack.pop()
        assert value is not None, "a NULL where a value is expected"
        return value

    def pop(self, machine: Machine) -> Value:
        """The top of the stack, realized: for everything that looks at the value."""
        return self.pop_lazy().realize(machine)

    def pop_pair(self, machine: Machine) -> tuple[Value, Value]:
        """The two topmost values, the deeper one first, realized in that order."""
        upper = self.pop_lazy()
        lower = self.pop(machine)
        return lower, upper.realize(machine)

    def pop_many(self, count: int) -> list[Value]:
        """The topmost `count` values, deepest first, unrealized."""
        if not count:
            return []
        values = self.stack[-count:]
        del self.stack[-count:]
        assert all(value is not None for value in values)
        return values  # type: ignore[return-value]

    def jump(self, target: Instruction | None) -> None:
        """Go on at `target`."""
        assert target is not None
        self.next = self.program.index[target]

    @cached_property
    def module(self) -> ModulePath | None:
        """The module whose method this frame runs; None of a function, or without a source."""
        value = self.slots.get("self")
        if value is None or value.source is None:
            return None
        # The type is asked, never the object: `bool` and `isinstance` would run the user's code.
        live = value.obj if isinstance(value, Lazy) else getattr(value, "live", None)
        if not issubclass(type(live), torch.nn.Module):
            return None
        return ModulePath(describe(value.source), type(live).__name__)

    def line(self, module: ModulePath | None = None) -> UserLine:
        """The user's line of the instruction being interpreted."""
        body = self.program.body
        position = min(self.at, len(body.instructions) - 1)
        lineno = body.instructions[position].lineno or body.firstlineno
        return UserLine(body.filename, lineno, body.name, module)


def user_lines(frames: Sequence[Frame]) -> Iterator[UserLine]:
    """Innermost first, without frames of libraries: what users can do something about. The first
    has the module of a library's frames (an nn.Linear) that run there.
    """
    module: ModulePath | None = None
    is_first = True
    for frame in reversed(frames):
        module = (is_first and module) or frame.module
        if frame is frames[0] or not is_library(frame.program.body.filename):
            yield frame.line(module)
            is_first = False
