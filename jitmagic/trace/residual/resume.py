"""FlatCode: the code of a tagged function or of a resume function, as the tracer sees it.

It is flat: every value that the dispatcher passes is a plain parameter, even a closure cell. Every
instruction maps to one of the *root*, the tagged function's own body. Resume functions are cut from
the root, never from another resume function, so that a loop with a break in it has finitely many.

    resume code = parameters: live variables of the root, then stack values
                  prologue:   move the stack values onto the stack (NULL where the root had NULL),
                              jump to the instruction to resume at
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from types import CodeType

from ...bytecode import (
    RUNNING,
    Body,
    ExceptionRegion,
    Instruction,
    assemble,
    build,
    decode,
    liveness,
    loops_in,
    secure_loads,
    with_signature,
)
from ...bytecode.decode import instruction_count
from ...bytecode.flow import loop_landings, reached_from, regions_by_instruction, successors
from ...errors import BytecodeError
from ...guards.source import UNNAMED
from ...lazy_dataclass import dataclass, field
from .resume_facts import ResumeFacts

__all__ = [
    "STORES",
    "FlatCode",
    "ResumeKey",
    "Root",
    "call_release",
    "carries_stack",
    "flatten",
    "item_name",
    "spell_out_super",
]

_SUPER_ARGUMENTS = 2


@dataclass(frozen=True, slots=True)
class ResumeKey:
    """Identifies a resume function: where it begins, its variables, the NULLs on its stack."""

    instruction: Instruction
    names: tuple[str, ...]
    nulls: tuple[bool, ...]
    release: Callable[[], None] | None = None  # first call in it, see FrameScope.release


@dataclass(eq=False)
class Root:
    """A tagged function's body, its liveness and resume functions, and what traces found in it.

    The sets hold instructions that later traces of the function treat specially.
    """

    body: Body
    live: Mapping[Instruction, frozenset[str]]
    handlers: frozenset[Instruction]  # instructions that run while an exception is being handled
    rolled: set[Instruction] = field(default_factory=set)  # loop heads: one iteration is compiled
    unrolled: set[Instruction] = field(default_factory=set)  # loop heads: cannot be rolled
    plain: set[Instruction] = field(default_factory=set)  # loop heads: Python runs the whole loop
    calling: set[Instruction] = field(default_factory=set)  # those of `plain` with compiled callees
    recording: set[Instruction] = field(default_factory=set)  # heads of loops with tensor work
    counting: set[Instruction] = field(default_factory=set)  # calls that return lists of any length
    resume_facts: ResumeFacts = field(default_factory=ResumeFacts)
    callees_read_locals: bool | None = None  # by callees (frame_readers.py); None: not known yet
    loops: dict[Instruction, frozenset[Instruction]] = field(default_factory=dict)  # by head
    releases_arguments: bool = (
        False  # its resume functions hold the only references to their arguments
    )
    is_suspended: bool = False  # the body of a generator, whose frame calls the pieces of it
    resumes: dict[ResumeKey, Callable[..., object]] = field(default_factory=dict)

    @classmethod
    def of(cls, body: Body) -> Root:
        return cls(body, liveness(body), _handler_instructions(body), loops=loops_in(body))

    def resume(
        self, key: ResumeKey, make: Callable[[FlatCode], Callable[..., object]]
    ) -> Callable[..., object]:
        """Return the dispatcher of the resume function for `key`; `make` makes a new one."""
        if key not in self.resumes:
            self.resumes[key] = make(_resume_code(self, key))
        return self.resumes[key]

    @cached_property
    def _ways(self) -> dict[Instruction, list[Instruction]]:
        return successors(self.body)

    @cached_property
    def regions(self) -> dict[Instruction, ExceptionRegion]:
        """The innermost exception region around each instruction that has one."""
        return regions_by_instruction(self.body)

    @cached_property
    def following(self) -> dict[Instruction, Instruction]:
        """The instruction after each but the last."""
        return dict(itertools.pairwise(self.body.instructions))

    @cached_property
    def before(self) -> dict[Instruction, Instruction]:
        """The instruction before each but the first."""
        return {after: first for first, after in self.following.items()}

    def reached_from(self, starts: Iterable[Instruction]) -> set[Instruction]:
        """Return all instructions that control can reach from these."""
        found = reached_from(self._ways, starts)
        return found | loop_landings(self.body, found)


@dataclass(frozen=True, eq=False)
class FlatCode:
    """A code object to trace.

    `parameters` are the dispatcher's arguments in order. `at` maps the index of an instruction of
    `code` to the root's instruction (a resume prologue has none). If the parameter `item` is the
    result of the instruction that broke the graph, `head` is that instruction: the head of a rolled
    loop, a call that contains such a loop, or a call that reads tensor data.
    """

    code: CodeType
    parameters: tuple[str, ...]
    root: Root
    at: dict[int, Instruction]
    head: Instruction | None = None
    item: str | None = None
    release: Callable[[], None] | None = None

    @classmethod
    def of(cls, code: CodeType) -> FlatCode:
        """Return the flat form of a tagged function's own code."""
        body = decode(code)
        at = dict(enumerate(body.instructions))
        spell_out_super(body)
        return cls(code, (*body.parameters, *body.freevars), Root.of(body), at)

    def resume(
        self, key: ResumeKey, make: Callable[[FlatCode], Callable[..., object]]
    ) -> Callable[..., object]:
        """Return the dispatcher of the resume function for `key`; `make` makes a new one."""
        return self.root.resume(key, make)


def flatten(body: Body, parameters: tuple[str, ...]) -> None:
    """Edit: make `parameters` plain positional ones, and all other variables plain locals."""
    others = [name for name in body.slots() if name not in parameters]
    body.varnames = [*parameters, *others]
    body.cellvars, body.freevars = [], []
    body.argcount, body.posonlyargcount, body.kwonlyargcount = len(parameters), 0, 0
    body.flags = inspect.CO_OPTIMIZED | inspect.CO_NEWLOCALS


def stack_name(index: int) -> str:
    """Return the parameter name for a stack value, one that no Python variable can have."""
    return f"{UNNAMED}{index}"


def carries_stack(name: str) -> bool:
    """Return whether a parameter is one of a resume function's stack values."""
    return name.startswith(UNNAMED)


STORES = frozenset({"STORE_DEREF", "STORE_FAST", "STORE_GLOBAL", "STORE_NAME"})


def item_name(root: Root, head: Instruction, depth: int) -> str:
    """Return the parameter name for the next item of a loop, at that depth of the stack."""
    return _stack_names(ResumeKey(root.following[head], (), (False,) * (depth + 1)))[-1]


def _stack_names(key: ResumeKey) -> list[str]:
    """Return a name for each stack value, which guards show to the user.

    A value that is about to be stored, such as a loop's next item, is named after the variable.
    """
    names = [stack_name(index) for index in range(len(key.nulls))]
    following = key.instruction
    if names and following.op in STORES and isinstance(following.arg, str):
        names[-1] = f"new {following.arg}"
    return names


def _resume_code(root: Root, key: ResumeKey) -> FlatCode:
    body, copies = root.body.clone(root.reached_from((key.instruction,)))
    origin = {new: old for old, new in copies.items()}
    on_stack = _stack_names(key)
    carried = [name for name, null in zip(on_stack, key.nulls, strict=True) if not null]
    parameters = (*key.names, *carried)
    flatten(body, parameters)
    prologue = [*build.prologue(), *call_release(key.release)]
    for name, null in zip(on_stack, key.nulls, strict=True):
        null_push = [Instruction("PUSH_NULL")]
        # Moved, not copied: in eager only the stack holds this value, until an opcode consumes it.
        moved = [*build.load_fast(name, bound=True), *build.delete_fast(name)]
        prologue += null_push if null else moved
    prologue += build.jump(copies[key.instruction])
    line = key.instruction.position
    body.instructions = [*build.placed(prologue, line), *body.instructions]
    secure_loads(body)
    code = with_signature(assemble(body), parameters, root.body)
    if instruction_count(code) != len(body.instructions):  # a jump was written as two
        raise BytecodeError(f"{body.qualname}: the instructions of a resume function have moved")
    at = {index: origin[i] for index, i in enumerate(body.instructions) if i in origin}
    head = _head_before(root, key)
    item = on_stack[-1] if head is not None else None
    return FlatCode(code, parameters, root, at, head, item, key.release)


def call_release(release: Callable[[], None] | None) -> list[Instruction]:
    """Return code for `release()`, if the frame must hold the only references to its arguments."""
    if release is None:
        return []
    return [*build.call(release), *build.pop_top()]


def _head_before(root: Root, key: ResumeKey) -> Instruction | None:
    """Return the instruction that has just pushed an item of a rolled loop.

    It may also be a call that contains such a loop, or a call that reads data. None: neither.
    """
    head = root.before.get(key.instruction)
    known = head in root.rolled or head in root.counting or head in root.resume_facts.reads
    return head if known and key.nulls and not key.nulls[-1] else None


def spell_out_super(body: Body) -> None:
    """Edit: turn `super()` into `super(__class__, self)`.

    In 3.11 super() finds both through the layout of its frame, which flat code does not keep. From
    3.12 on the compiler passes them (LOAD_SUPER_ATTR).
    """
    if RUNNING.version >= (3, 12) or "__class__" not in body.freevars or not body.parameters:
        return
    instructions = list(body.instructions)
    for position, instruction in enumerate(instructions):
        if instruction.op != "LOAD_GLOBAL" or instruction.arg != "super":
            continue
        calls = instructions[position + 1 : position + 3]
        if [(i.op, i.arg) for i in calls] != [("PRECALL", 0), ("CALL", 0)]:
            continue
        calls[0].arg = calls[1].arg = _SUPER_ARGUMENTS
        first = body.parameters[0]
        load_self = "LOAD_DEREF" if first in body.cellvars else "LOAD_FAST"
        given = [Instruction("LOAD_DEREF", "__class__"), Instruction(load_self, first)]
        where = body.instructions.index(calls[0])
        body.instructions[where:where] = build.placed(given, instruction.position)


def _handler_instructions(body: Body) -> frozenset[Instruction]:
    """Return the instructions that run with an exception pushed: PUSH_EXC_INFO to POP_EXCEPT."""
    following = dict(zip(body.instructions, body.instructions[1:], strict=False))
    inside: set[Instruction] = set()
    work = [region.target for region in body.regions]
    while work:
        instruction = work.pop()
        if instruction in inside:
            continue
        inside.add(instruction)
        if instruction.op == "POP_EXCEPT":
            continue
        if instruction.target is not None:
            work.append(instruction.target)
        if instruction.op not in RUNNING.no_fallthrough and instruction in following:
            work.append(following[instruction])
    return frozenset(inside)
