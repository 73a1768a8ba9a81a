"""CPython 3.13: NULL above the callable, CALL_KW, TO_BOOL, superinstructions, no LOAD_CLOSURE."""

from __future__ import annotations

from .table import VersionTable

__all__ = ["TABLE"]

TABLE = VersionTable(
    version=(3, 13),
    consts=frozenset({"LOAD_CONST", "RETURN_CONST"}),
    names={
        "STORE_NAME": 0,
        "DELETE_NAME": 0,
        "LOAD_NAME": 0,
        "STORE_ATTR": 0,
        "DELETE_ATTR": 0,
        "LOAD_ATTR": 1,
        "LOAD_SUPER_ATTR": 2,
        "STORE_GLOBAL": 0,
        "DELETE_GLOBAL": 0,
        "LOAD_GLOBAL": 1,
        "LOAD_FROM_DICT_OR_GLOBALS": 0,
        "IMPORT_NAME": 0,
        "IMPORT_FROM": 0,
    },
    locals=frozenset(
        {
            "LOAD_FAST",
            "LOAD_FAST_CHECK",
            "LOAD_FAST_AND_CLEAR",
            "STORE_FAST",
            "DELETE_FAST",
        }
    ),
    cells=frozenset(
        {
            "MAKE_CELL",
            "LOAD_CLOSURE",
            "LOAD_DEREF",
            "STORE_DEREF",
            "DELETE_DEREF",
            "LOAD_FROM_DICT_OR_DEREF",
        }
    ),
    directions={
        **{
            f"POP_JUMP_IF_{c}": (f"POP_JUMP_IF_{c}", None)
            for c in ("TRUE", "FALSE", "NONE", "NOT_NONE")
        },
        "JUMP": ("JUMP_FORWARD", "JUMP_BACKWARD"),
        "JUMP_FORWARD": ("JUMP_FORWARD", "JUMP_BACKWARD"),
        "JUMP_BACKWARD": ("JUMP_FORWARD", "JUMP_BACKWARD"),
        "JUMP_BACKWARD_NO_INTERRUPT": ("JUMP_FORWARD", "JUMP_BACKWARD_NO_INTERRUPT"),
        "FOR_ITER": ("FOR_ITER", None),
        "SEND": ("SEND", None),
    },
    inversions={
        "POP_JUMP_IF_TRUE": "POP_JUMP_IF_FALSE",
        "POP_JUMP_IF_FALSE": "POP_JUMP_IF_TRUE",
        "POP_JUMP_IF_NONE": "POP_JUMP_IF_NOT_NONE",
        "POP_JUMP_IF_NOT_NONE": "POP_JUMP_IF_NONE",
    },
    no_fallthrough=frozenset(
        {
            "RETURN_VALUE",
            "RETURN_CONST",
            "RAISE_VARARGS",
            "RERAISE",
            "INTERPRETER_EXIT",
            "JUMP",
            "JUMP_FORWARD",
            "JUMP_BACKWARD",
            "JUMP_BACKWARD_NO_INTERRUPT",
        }
    ),
    caches={
        "LOAD_GLOBAL": 4,
        "BINARY_OP": 1,
        "UNPACK_SEQUENCE": 1,
        "COMPARE_OP": 1,
        "CONTAINS_OP": 1,
        "BINARY_SUBSCR": 1,
        "FOR_ITER": 1,
        "LOAD_SUPER_ATTR": 1,
        "LOAD_ATTR": 9,
        "STORE_ATTR": 4,
        "CALL": 3,
        "STORE_SUBSCR": 1,
        "SEND": 1,
        "JUMP_BACKWARD": 1,
        "TO_BOOL": 3,
        "POP_JUMP_IF_TRUE": 1,
        "POP_JUMP_IF_FALSE": 1,
        "POP_JUMP_IF_NONE": 1,
        "POP_JUMP_IF_NOT_NONE": 1,
    },
    superinstructions={
        "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
        "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
        "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
    },
    compare_shift=5,
    compare_coerces=True,
    aliases={"LOAD_CLOSURE": "LOAD_FAST"},
    loop_landing=("END_FOR", "POP_TOP"),
    effects={"RETURN_GENERATOR": 1},
    null_first=False,
    precall=False,
    call_kw=True,
    function_attributes=True,
    explicit_bool=True,
    checked_loads=True,
)
