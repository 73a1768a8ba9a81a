"""CPython 3.12: END_FOR, inlined comprehensions, RETURN_CONST, LOAD_ATTR with a method bit."""

from __future__ import annotations

from .table import VersionTable

__all__ = ["TABLE"]

TABLE = VersionTable(
    version=(3, 12),
    consts=frozenset({"LOAD_CONST", "RETURN_CONST", "KW_NAMES"}),
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
        "BINARY_SUBSCR": 1,
        "STORE_SUBSCR": 1,
        "UNPACK_SEQUENCE": 1,
        "FOR_ITER": 1,
        "STORE_ATTR": 4,
        "LOAD_ATTR": 9,
        "COMPARE_OP": 1,
        "LOAD_GLOBAL": 4,
        "BINARY_OP": 1,
        "SEND": 1,
        "LOAD_SUPER_ATTR": 1,
        "CALL": 3,
    },
    superinstructions={},
    compare_shift=4,
    compare_coerces=False,
    aliases={},
    loop_landing=("END_FOR",),
    effects={"RETURN_GENERATOR": 1},
    null_first=True,
    precall=False,
    call_kw=False,
    function_attributes=False,
    explicit_bool=False,
    checked_loads=True,
)
