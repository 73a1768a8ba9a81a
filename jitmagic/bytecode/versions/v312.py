"""CPython 3.12: END_FOR, inlined comprehensions, RETURN_CONST, LOAD_ATTR with a method bit."""

from __future__ import annotations

from . import v311

__all__ = ["TABLE"]

_CONDITIONS = ("TRUE", "FALSE", "NONE", "NOT_NONE")

TABLE = v311.TABLE.changed(
    version=(3, 12),
    removed=[
        "PRECALL",
        "LOAD_METHOD",
        "LOAD_CLASSDEREF",
        *(f"JUMP_IF_{c}_OR_POP" for c in _CONDITIONS),
        *(f"POP_JUMP_{way}_IF_{c}" for c in _CONDITIONS for way in ("FORWARD", "BACKWARD")),
    ],
    consts={"RETURN_CONST"},
    names={"LOAD_ATTR": 1, "LOAD_SUPER_ATTR": 2, "LOAD_FROM_DICT_OR_GLOBALS": 0},
    locals={"LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR"},
    cells={"LOAD_FROM_DICT_OR_DEREF"},
    directions={f"POP_JUMP_IF_{c}": (f"POP_JUMP_IF_{c}", None) for c in _CONDITIONS},
    inversions={
        "POP_JUMP_IF_TRUE": "POP_JUMP_IF_FALSE",
        "POP_JUMP_IF_FALSE": "POP_JUMP_IF_TRUE",
        "POP_JUMP_IF_NONE": "POP_JUMP_IF_NOT_NONE",
        "POP_JUMP_IF_NOT_NONE": "POP_JUMP_IF_NONE",
    },
    no_fallthrough={"RETURN_CONST", "INTERPRETER_EXIT"},
    caches={
        "BINARY_SUBSCR": 1,
        "FOR_ITER": 1,
        "LOAD_ATTR": 9,
        "COMPARE_OP": 1,
        "LOAD_GLOBAL": 4,
        "SEND": 1,
        "LOAD_SUPER_ATTR": 1,
        "CALL": 3,
    },
    compare_shift=4,
    loop_landing=("END_FOR",),
    spellings={"CALL": ("CALL",), "LOAD_FAST_CHECK": ("LOAD_FAST_CHECK",)},
)
