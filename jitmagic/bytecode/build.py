"""Builds instructions for the running interpreter, behind one interface for all versions.

Input: names, values, counts, jump targets. Output: a fresh `list[Instruction]` to splice into a
Body; positions are left empty (`placed` fills them). Invariant: each docstring states the stack
effect (before -> after, top on the right), which is the same on every version. These functions hide
where a version puts the NULL of a call, PRECALL, KW_NAMES or CALL_KW, and TO_BOOL.

Calls. `push_callable_then(callable, *arguments)` is a whole call. In pieces: `push_callable(code)`,
then push the arguments, then `call_function(n)`. With the arguments on the stack already:
`call_stacked(callable, n)`.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Sequence

from .instruction import Instruction, Position
from .versions import RUNNING

__all__ = [
    "binary_op",
    "binary_subscr",
    "build_list",
    "build_map",
    "build_set",
    "build_slice",
    "build_string",
    "build_tuple",
    "call_ex",
    "call_function",
    "call_kw",
    "call_method",
    "call_stacked",
    "compare_op",
    "contains_op",
    "copy",
    "delete_attr",
    "delete_deref",
    "delete_fast",
    "delete_global",
    "delete_subscr",
    "dict_update",
    "for_loop",
    "format_simple",
    "get_iter",
    "is_op",
    "jump",
    "list_extend",
    "load_attr",
    "load_closure",
    "load_const",
    "load_deref",
    "load_fast",
    "load_global",
    "load_method",
    "make_cell",
    "make_function",
    "nop",
    "placed",
    "pop_jump_if_false",
    "pop_jump_if_none",
    "pop_jump_if_not_none",
    "pop_jump_if_true",
    "pop_top",
    "prologue",
    "push_callable",
    "push_callable_then",
    "raise_varargs",
    "return_value",
    "rotate_down",
    "rotate_up",
    "store_attr",
    "store_deref",
    "store_fast",
    "store_global",
    "store_subscr",
    "swap",
    "unary_invert",
    "unary_negative",
    "unary_not",
    "unpack_ex",
    "unpack_sequence",
]

Code = list[Instruction]

_CLOSURE = 8  # MAKE_FUNCTION / SET_FUNCTION_ATTRIBUTE: a tuple of cells


def placed(code: Iterable[Instruction], position: Position | None) -> Code:
    """Return the same instructions; those without a position get `position`."""
    result = list(code)
    for instruction in result:
        if instruction.position is None:
            instruction.position = position
    return result


# -------------------------------------------------------------------------------------- variables


def load_const(value: object) -> Code:
    """Push a constant: -> value.

    Any object is allowed. One that is not hashable, or whose hash runs user code, is put into a
    _Box, because debuggers, profilers and IPython's tracebacks hash code objects, and that hashes
    the constants.
    """
    if _hashes_plainly(value):
        return [Instruction("LOAD_CONST", value)]
    return [Instruction("LOAD_CONST", _Box(value)), *load_attr("value")]


class _Box:
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
    return [
        Instruction("LOAD_FAST" if bound or not RUNNING.checked_loads else "LOAD_FAST_CHECK", name)
    ]


def store_fast(name: str) -> Code:
    """Store a local: value ->"""
    return [Instruction("STORE_FAST", name)]


def delete_fast(name: str) -> Code:
    """Unbind a local: ->. It raises UnboundLocalError if there is no value."""
    return [Instruction("DELETE_FAST", name)]


def load_global(name: str, *, push_null: bool = False) -> Code:
    """Push a global: -> value, or with `push_null` the callable of a call (see `push_callable`)."""
    return [Instruction("LOAD_GLOBAL", name, flag=push_null)]


def store_global(name: str) -> Code:
    """Store a global: value ->"""
    return [Instruction("STORE_GLOBAL", name)]


def delete_global(name: str) -> Code:
    """Delete a global: ->"""
    return [Instruction("DELETE_GLOBAL", name)]


def load_deref(name: str) -> Code:
    """Push the contents of a cell: -> value. It raises NameError if the cell is empty."""
    return [Instruction("LOAD_DEREF", name)]


def store_deref(name: str) -> Code:
    """Set the contents of a cell: value ->"""
    return [Instruction("STORE_DEREF", name)]


def delete_deref(name: str) -> Code:
    """Empty a cell: ->"""
    return [Instruction("DELETE_DEREF", name)]


def load_closure(name: str) -> Code:
    """Push the cell itself: -> cell"""
    return [Instruction("LOAD_CLOSURE", name)]


def make_cell(name: str) -> Code:
    """Move the slot's value, if any, into a new cell in that slot: ->"""
    return [Instruction("MAKE_CELL", name)]


def prologue(freevars: Sequence[str] = (), cellvars: Sequence[str] = ()) -> Code:
    """Return the first instructions of every body."""
    code = [Instruction("COPY_FREE_VARS", len(freevars))] if freevars else []
    code += [Instruction("MAKE_CELL", name) for name in cellvars]
    return [*code, Instruction("RESUME", 0)]


# ------------------------------------------------------------------------------------------ calls


def push_callable(code: Code) -> Code:
    """Push the callable of a call: -> callable slot. `code` pushes one value, the callable."""
    null = Instruction("PUSH_NULL")
    return [null, *code] if RUNNING.null_first else [*code, null]


def call_function(count: int, kw_names: tuple[str, ...] = ()) -> Code:
    """Call: callable slot, `count` arguments (the last ones named by `kw_names`) -> result"""
    if kw_names and RUNNING.call_kw:
        return [*load_const(kw_names), Instruction("CALL_KW", count)]
    names = [Instruction("KW_NAMES", kw_names)] if kw_names else []
    precall = [Instruction("PRECALL", count)] if RUNNING.precall else []
    return [*names, *precall, Instruction("CALL", count)]


def call_kw(count: int, names: tuple[str, ...]) -> Code:
    """Call with keyword arguments; `count` is all arguments, positional and named."""
    return call_function(count, names)


def push_callable_then(callable_: Code, *arguments: Code, kw_names: tuple[str, ...] = ()) -> Code:
    """Push the callable and the arguments, and call: -> result"""
    pushed = [instruction for argument in arguments for instruction in argument]
    return [*push_callable(callable_), *pushed, *call_function(len(arguments), kw_names)]


def call_stacked(callable_: Code, count: int) -> Code:
    """Call with arguments from the stack; the callable is pushed after them: arguments -> result"""
    # CALL wants the callable below its arguments; moving one tuple takes fewer swaps.
    return [*build_tuple(count), *push_callable(callable_), *rotate_up(3), *call_ex()]


def call_ex(*, kwargs: bool = False) -> Code:
    """Call callable(*tuple, **dict): callable slot, tuple[, dict if `kwargs`] -> result"""
    return [Instruction("CALL_FUNCTION_EX", int(kwargs))]


def load_method(name: str) -> Code:
    """Look up a method: object -> callable slot with the object bound, for `call_method`"""
    return [
        Instruction("LOAD_METHOD", name)
        if RUNNING.precall
        else Instruction("LOAD_ATTR", name, flag=True)
    ]


def call_method(count: int, kw_names: tuple[str, ...] = ()) -> Code:
    """Call a method: callable slot of `load_method`, `count` arguments -> result"""
    return call_function(count, kw_names)


def make_function(code: types.CodeType, closure: Sequence[str] = ()) -> Code:
    """Make a function of `code`, this frame's globals and the named cells: -> function"""
    cells = [i for name in closure for i in load_closure(name)]
    tuple_ = [*cells, *build_tuple(len(closure))] if closure else []
    if not RUNNING.function_attributes:
        return [
            *tuple_,
            *load_const(code),
            Instruction("MAKE_FUNCTION", _CLOSURE if closure else 0),
        ]
    attribute = [Instruction("SET_FUNCTION_ATTRIBUTE", _CLOSURE)] if closure else []
    return [*tuple_, *load_const(code), Instruction("MAKE_FUNCTION"), *attribute]


# ------------------------------------------------------------------------------------------ stack


def pop_top() -> Code:
    """Drop the top: value ->"""
    return [Instruction("POP_TOP")]


def copy(depth: int = 1) -> Code:
    """Push the value at `depth` from the top again (1: the top itself)."""
    return [Instruction("COPY", depth)]


def swap(depth: int = 2) -> Code:
    """Exchange the top with the value `depth` from the top (2: the one below)."""
    return [Instruction("SWAP", depth)] if depth > 1 else []


def rotate_up(count: int) -> Code:
    """Move the lowest of `count` values to the top: a, b, ..., z -> b, ..., z, a"""
    return [Instruction("SWAP", depth) for depth in range(2, count + 1)]


def rotate_down(count: int) -> Code:
    """Move the top below the other `count` - 1 values: a, ..., y, z -> z, a, ..., y"""
    return [Instruction("SWAP", depth) for depth in range(count, 1, -1)]


# ------------------------------------------------------------------------------------- containers


def build_tuple(count: int) -> Code:
    """Build a tuple: `count` values -> tuple"""
    return [Instruction("BUILD_TUPLE", count)]


def build_list(count: int) -> Code:
    """Build a list: `count` values -> list"""
    return [Instruction("BUILD_LIST", count)]


def build_set(count: int) -> Code:
    """Build a set: `count` values -> set"""
    return [Instruction("BUILD_SET", count)]


def build_map(count: int) -> Code:
    """Build a dict: key, value, key, value, ... (`count` pairs) -> dict"""
    return [Instruction("BUILD_MAP", count)]


def build_string(count: int) -> Code:
    """Concatenate: `count` strings -> str"""
    return [Instruction("BUILD_STRING", count)]


def build_slice(count: int = 2) -> Code:
    """Build a slice: start, stop[, step if `count` is 3] -> slice"""
    return [Instruction("BUILD_SLICE", count)]


def format_simple() -> Code:
    """Format without a specification: value -> format(value, "")"""
    simple = "FORMAT_SIMPLE" in RUNNING.opcodes
    return [Instruction("FORMAT_SIMPLE") if simple else Instruction("FORMAT_VALUE", 0)]


def list_extend() -> Code:
    """Extend a list: list, iterable -> list"""
    return [Instruction("LIST_EXTEND", 1)]


def dict_update() -> Code:
    """Update a dict: dict, mapping -> dict"""
    return [Instruction("DICT_UPDATE", 1)]


def unpack_sequence(count: int) -> Code:
    """Unpack: iterable -> its `count` values, the first on top"""
    return [Instruction("UNPACK_SEQUENCE", count)]


def unpack_ex(before: int, after: int) -> Code:
    """Unpack: iterable -> `before` values, a list of the middle, `after` values; first on top"""
    return [Instruction("UNPACK_EX", before | after << 8)]


# ------------------------------------------------------------------ attributes, items, operators


def load_attr(name: str) -> Code:
    """Read an attribute: object -> value"""
    return [Instruction("LOAD_ATTR", name)]


def store_attr(name: str) -> Code:
    """Set an attribute: value, object ->"""
    return [Instruction("STORE_ATTR", name)]


def delete_attr(name: str) -> Code:
    """Delete an attribute: object ->"""
    return [Instruction("DELETE_ATTR", name)]


def binary_subscr() -> Code:
    """Read an item: container, key -> value"""
    return [Instruction("BINARY_SUBSCR")]


def store_subscr() -> Code:
    """Set an item: value, container, key ->"""
    return [Instruction("STORE_SUBSCR")]


def delete_subscr() -> Code:
    """Delete an item: container, key ->"""
    return [Instruction("DELETE_SUBSCR")]


def binary_op(operator: str) -> Code:
    """Apply an operator: left, right -> value; "+=" and its like are the in-place forms"""
    return [Instruction("BINARY_OP", operator)]


def compare_op(operator: str) -> Code:
    """Compare: left, right -> result of the rich comparison"""
    return [Instruction("COMPARE_OP", operator)]


def is_op(*, invert: bool = False) -> Code:
    """Compare identities: left, right -> bool"""
    return [Instruction("IS_OP", int(invert))]


def contains_op(*, invert: bool = False) -> Code:
    """Test membership: item, container -> bool"""
    return [Instruction("CONTAINS_OP", int(invert))]


def unary_not() -> Code:
    """Negate the truth value: value -> bool"""
    return [*_to_bool(), Instruction("UNARY_NOT")]


def unary_negative() -> Code:
    """Negate: value -> -value"""
    return [Instruction("UNARY_NEGATIVE")]


def unary_invert() -> Code:
    """Invert: value -> ~value"""
    return [Instruction("UNARY_INVERT")]


def _to_bool() -> Code:
    return [Instruction("TO_BOOL")] if RUNNING.explicit_bool else []


# ----------------------------------------------------------------------------------------- control


def nop() -> Code:
    """Do nothing; a jump target."""
    return [Instruction("NOP")]


def jump(target: Instruction) -> Code:
    """Jump forward or backward; the assembler chooses the opcode."""
    return [Instruction("JUMP", target=target)]


def pop_jump_if_true(target: Instruction) -> Code:
    """Jump if the value is true: value ->"""
    return [*_to_bool(), Instruction("POP_JUMP_IF_TRUE", target=target)]


def pop_jump_if_false(target: Instruction) -> Code:
    """Jump if the value is false: value ->"""
    return [*_to_bool(), Instruction("POP_JUMP_IF_FALSE", target=target)]


def pop_jump_if_none(target: Instruction) -> Code:
    """Jump if the value is None: value ->"""
    return [Instruction("POP_JUMP_IF_NONE", target=target)]


def pop_jump_if_not_none(target: Instruction) -> Code:
    """Jump unless the value is None: value ->"""
    return [Instruction("POP_JUMP_IF_NOT_NONE", target=target)]


def get_iter() -> Code:
    """Call iter(): iterable -> iterator"""
    return [Instruction("GET_ITER")]


def for_loop(body: Code) -> Code:
    """Run `body` (item ->) for each item: iterator ->"""
    landing = [Instruction(op) for op in RUNNING.loop_landing] or nop()
    head = Instruction("FOR_ITER", target=landing[0])
    return [head, *body, *jump(head), *landing]


def raise_varargs(count: int) -> Code:
    """Raise: [exception[, cause]] -> never"""
    return [Instruction("RAISE_VARARGS", count)]


def return_value() -> Code:
    """Return: value -> the caller"""
    return [Instruction("RETURN_VALUE")]
