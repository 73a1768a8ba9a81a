"""Rewrites instructions that push a callable as a pair: with a NULL, or as (function, self).

A NULL cannot be the argument of a resume function, and the code after a break expects the stack in
the form that the trace had, which has bound methods. So the instructions that Python runs itself
load the bound method, and the NULL is pushed at a place that the trace knows. From 3.14 on a `with`
block keeps its `__exit__` on the stack in this form.
"""

from __future__ import annotations

from typing import Any

from ...bytecode import Body, Instruction, build
from ...bytecode.versions import RUNNING
from .resume import Root

__all__ = [
    "absent_null",
    "bind_method",
    "bind_methods",
    "load_plainly",
    "nothing",
    "null_slots",
    "pop_null",
    "pushes_pair",
]

_LOADS_FOR_CALLS = frozenset({"LOAD_GLOBAL", "LOAD_ATTR", "LOAD_SUPER_ATTR"})
_ENTER = RUNNING.expansions.get("BEFORE_WITH")


def pushes_pair(instruction: Instruction) -> bool:
    """Return whether the instruction pushes a pair, one of which may be a NULL."""
    return (
        instruction.op == "LOAD_METHOD"
        or _enters(instruction)
        or (instruction.op in _LOADS_FOR_CALLS and instruction.flag)
    )


def _enters(instruction: Instruction) -> bool:
    return instruction.op == "BEFORE_WITH" and _ENTER is not None


def absent_null(instruction: Instruction, depth: int) -> int:
    """Return the stack index of the NULL of its pair, for the stack depth after the instruction."""
    # `with`: `__exit__`, NULL, the result of `__enter__`.
    below = RUNNING.null_first or _enters(instruction)
    return depth - 2 if below else depth - 1


def null_slots(root: Root, source: Instruction) -> frozenset[int]:
    """Return the stack indices of the NULLs of the `with` blocks around an instruction."""
    found: set[int] = set()
    region = root.regions.get(source)
    while region is not None and _ENTER is not None:
        if root.following[region.target].op == "WITH_EXCEPT_START":
            found.add(region.depth - 1)
        region = root.regions.get(region.target)
    return frozenset(found)


def load_plainly(body: Body, instruction: Instruction) -> Instruction:
    """Edit: push only the bound value, without a NULL; return the last instruction of the load."""
    if instruction.op == "LOAD_METHOD":
        instruction.op = "LOAD_ATTR"
    instruction.flag = False
    if not _enters(instruction):
        return instruction
    assert _ENTER is not None
    bound = build.push_callable_then(build.load_const(_exit_of), build.copy(3))
    enter = [Instruction(op, argument) for op, argument in _ENTER[-2:]]
    rest = build.placed([*bound, *build.swap(2), *enter], instruction.position)
    instruction.op = "NOP"  # the target of jumps
    after = body.instructions.index(instruction) + 1
    body.instructions[after:after] = rest
    for region in body.regions:
        if region.end_inclusive is instruction:
            region.end_inclusive = rest[-1]
    return rest[-1]


def bind_methods(body: Body, *, calls: bool) -> None:
    """Edit: load bound methods and a NULL, never the pair (function, self).

    A loop or a handler may lead back to the breaking instruction. Without `calls` only the entries
    of `with` blocks are changed: no call is underway where Python leaves the code.
    """
    for load in [i for i in body.instructions if pushes_pair(i) and i.op != "LOAD_GLOBAL"]:
        if not calls and not _enters(load):
            continue
        bind_method(body, load)


def bind_method(body: Body, load: Instruction) -> None:
    """Edit: make one instruction load a bound method and a NULL."""
    # 3.13 has the callable and then the NULL or self above it; before, the NULL came first.
    order = build.swap(2) if RUNNING.null_first or _enters(load) else []
    after = body.instructions.index(load_plainly(body, load)) + 1
    body.instructions[after:after] = build.placed([Instruction("PUSH_NULL"), *order], load.position)


def pop_null() -> list[Instruction]:
    """Return code that pops a NULL; CPython's POP_TOP would crash on it, so a call consumes it."""
    order = [] if RUNNING.null_first else build.swap(2)
    return [
        *build.load_const(nothing),
        *order,
        *build.call_function(0),
        *build.pop_top(),
    ]


def nothing() -> None:
    """Do nothing; called to consume a NULL."""


def _exit_of(manager: Any) -> Any:
    """Return the bound `__exit__` of the object, as the interpreter looks it up for `with`."""
    kind = type(manager)
    for base in kind.__mro__:
        if "__exit__" in vars(base):
            found = vars(base)["__exit__"]
            return found.__get__(manager, kind) if hasattr(type(found), "__get__") else found
    with manager:  # raises the interpreter's TypeError
        return None
