"""Builds instructions for the running interpreter, behind one interface for all versions.

Input: names, values, counts, jump targets. Output: a fresh `list[Instruction]` to splice into a
Body; positions are left empty (`placed` fills them). Invariant: the stack effect (before -> after,
top on the right) is the same on every version. These functions hide where a version puts the NULL
of a call, PRECALL, KW_NAMES or CALL_KW, and TO_BOOL. Only instructions that the package writes have
a function here.

Calls. `call(function, *arguments)` and `push_callable_then(callable, *arguments)` are whole calls.
In pieces: `push_callable(code)`, then push the arguments, then `call_function(n)`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Sequence

from .instruction import Instruction, Position
from .versions import RUNNING

__all__ = [
    "binary_subscr",
    "build_list",
    "build_map",
    "build_set",
    "build_slice",
    "build_tuple",
    "call",
    "call_function",
    "copy",
    "delete_attr",
    "delete_fast",
    "delete_subscr",
    "jump",
    "load_attr",
    "load_closure",
    "load_const",
    "load_fast",
    "load_global",
    "nop",
    "placed",
    "pop_jump_if_false",
    "pop_top",
    "prologue",
    "push_callable",
    "push_callable_then",
    "return_value",
    "store_attr",
    "store_fast",
    "store_subscr",
    "swap",
]

Code = list[Instruction]


def placed(code: Iterable[Instruction], position: Position | None) -> Code:
    """Return the same instructions; those without a position get `position`."""
    result = list(code)
    for instruction in result:
        if instruction.position is None:
            instruction.position = position
    return result


def _spelled(op: str, arg: object = None) -> Code:
    """Return this version's instructions for an opcode."""
    return [Instruction(real, arg) for real in RUNNING.spellings.get(op, (op,))]


def _bare(op: str) -> Callable[[], Code]:
    return lambda: [Instruction(op)]


def _named(op: str) -> Callable[[str], Code]:
    return lambda name: [Instruction(op, name)]


def _counted(op: str) -> Callable[[int], Code]:
    return lambda count: [Instruction(op, count)]


# ------------------------------------------------------------------- instructions with one opcode

store_fast = _named("STORE_FAST")  # value ->
delete_fast = _named("DELETE_FAST")  # ->; raises UnboundLocalError if there is no value
load_closure = _named("LOAD_CLOSURE")  # -> cell; the cell itself, not its contents
load_attr = _named("LOAD_ATTR")  # object -> value
store_attr = _named("STORE_ATTR")  # value, object ->
delete_attr = _named("DELETE_ATTR")  # object ->
binary_subscr = _bare("BINARY_SUBSCR")  # container, key -> value
store_subscr = _bare("STORE_SUBSCR")  # value, container, key ->
delete_subscr = _bare("DELETE_SUBSCR")  # container, key ->
build_list = _counted("BUILD_LIST")  # `count` values -> list
build_set = _counted("BUILD_SET")  # `count` values -> set
build_map = _counted("BUILD_MAP")  # key, value, key, value, ... (`count` pairs) -> dict
build_slice = _counted("BUILD_SLICE")  # start, stop[, step if `count` is 3] -> slice
pop_top = _bare("POP_TOP")  # value ->
nop = _bare("NOP")  # ->; a jump target
return_value = _bare("RETURN_VALUE")  # value -> the caller


def copy(depth: int = 1) -> Code:
    """Push the value at `depth` from the top again (1: the top itself)."""
    return [Instruction("COPY", depth)]


def swap(depth: int = 2) -> Code:
    """Exchange the top with the value `depth` from the top (2: the one below)."""
    return [Instruction("SWAP", depth)] if depth > 1 else []


def build_tuple(count: int) -> Code:
    """Make a tuple: `count` values -> tuple"""
    # As the compiler does. 3.14's BUILD_TUPLE takes its result for a mortal object, and the empty
    # tuple is none: each time one is dropped would lower the reference count of the singleton.
    return [Instruction("BUILD_TUPLE", count)] if count else load_const(())


# ---------------------------------------------------------------------------------------- loads


def load_const(value: object) -> Code:
    """Push a constant: -> value.

    Any object is allowed. One that is not hashable, or whose hash runs user code, is put into a
    Box, because debuggers, profilers and IPython's tracebacks hash code objects, and that hashes
    the constants.
    """
    if _hashes_plainly(value):
        return [Instruction("LOAD_CONST", value)]
    return [Instruction("LOAD_CONST", Box(value)), *load_attr("value")]


class Box:
    """Hashes and compares by identity, independent of its content."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


def _hashes_plainly(value: object) -> bool:
    if isinstance(value, tuple):
        return type(value) is tuple and all(map(_hashes_plainly, value))
    return type(value).__hash__ is object.__hash__ or type(value) in _HASHED_BY_VALUE


_HASHED_BY_VALUE = frozenset(
    (
        *(type(None), type(...), bool, int, float, complex, str, bytes),
        *(types.CodeType, types.BuiltinFunctionType, types.MethodDescriptorType),
    )
)


def load_fast(name: str, *, bound: bool = False) -> Code:
    """Push a local: -> value. It raises UnboundLocalError if unbound, unless the caller asserts
    `bound`.
    """
    return [Instruction("LOAD_FAST", name)] if bound else _spelled("LOAD_FAST_CHECK", name)


def load_global(name: str, *, push_null: bool = False) -> Code:
    """Push a global: -> value, or with `push_null` the callable of a call (see `push_callable`)."""
    return [Instruction("LOAD_GLOBAL", name, flag=push_null)]


def prologue(freevars: Sequence[str] = (), cellvars: Sequence[str] = ()) -> Code:
    """Return the first instructions of every body."""
    code = [Instruction("COPY_FREE_VARS", len(freevars))] if freevars else []
    code += [Instruction("MAKE_CELL", name) for name in cellvars]
    return [*code, Instruction("RESUME", 0)]


# ----------------------------------------------------------------------------- calls and jumps


def push_callable(code: Code) -> Code:
    """Push the callable of a call: -> callable slot. `code` pushes one value, the callable."""
    null = Instruction("PUSH_NULL")
    return [null, *code] if RUNNING.null_first else [*code, null]


def call_function(count: int, kw_names: tuple[str, ...] = ()) -> Code:
    """Call: callable slot, `count` arguments (the last ones named by `kw_names`) -> result"""
    if kw_names and RUNNING.call_kw:
        return [*load_const(kw_names), Instruction("CALL_KW", count)]
    names = [Instruction("KW_NAMES", kw_names)] if kw_names else []
    return [*names, *_spelled("CALL", count)]


def push_callable_then(callable_: Code, *arguments: Code, kw_names: tuple[str, ...] = ()) -> Code:
    """Push the callable and the arguments, and call: -> result"""
    pushed = [instruction for argument in arguments for instruction in argument]
    return [*push_callable(callable_), *pushed, *call_function(len(arguments), kw_names)]


def call(function: Callable[..., object], *arguments: Code) -> Code:
    """Call a constant function: -> result"""
    return push_callable_then(load_const(function), *arguments)


def jump(target: Instruction) -> Code:
    """Jump forward or backward; the assembler chooses the opcode."""
    return [Instruction("JUMP", target=target)]


def pop_jump_if_false(target: Instruction) -> Code:
    """Jump if the value is false: value ->"""
    return [*_spelled("TO_BOOL"), Instruction("POP_JUMP_IF_FALSE", target=target)]
