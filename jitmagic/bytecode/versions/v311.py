"""CPython 3.11, complete: the base that the tables of later versions change."""

from __future__ import annotations

from .table import VersionTable

__all__ = ["TABLE"]

_OPERATORS = ("+", "&", "//", "<<", "@", "*", "%", "|", "**", ">>", "-", "/", "^")
_CONDITIONS = ("TRUE", "FALSE", "NONE", "NOT_NONE")
_CONDITIONAL = {
    name: (f"POP_JUMP_FORWARD_IF_{condition}", f"POP_JUMP_BACKWARD_IF_{condition}")
    for condition in _CONDITIONS
    for name in (
        f"POP_JUMP_IF_{condition}",
        f"POP_JUMP_FORWARD_IF_{condition}",
        f"POP_JUMP_BACKWARD_IF_{condition}",
    )
}

TABLE = VersionTable(
    version=(3, 11),
    consts=frozenset({"LOAD_CONST", "KW_NAMES"}),
    names={
        "STORE_NAME": 0,
        "DELETE_NAME": 0,
        "LOAD_NAME": 0,
        "STORE_ATTR": 0,
        "DELETE_ATTR": 0,
        "LOAD_ATTR": 0,
        "LOAD_METHOD": 0,
        "STORE_GLOBAL": 0,
        "DELETE_GLOBAL": 0,
        "LOAD_GLOBAL": 1,
        "IMPORT_NAME": 0,
        "IMPORT_FROM": 0,
    },
    locals=frozenset({"LOAD_FAST", "STORE_FAST", "DELETE_FAST"}),
    cells=frozenset(
        {
            "MAKE_CELL",
            "LOAD_CLOSURE",
            "LOAD_DEREF",
            "STORE_DEREF",
            "DELETE_DEREF",
            "LOAD_CLASSDEREF",
        }
    ),
    directions={
        **_CONDITIONAL,
        "JUMP": ("JUMP_FORWARD", "JUMP_BACKWARD"),
        "JUMP_FORWARD": ("JUMP_FORWARD", "JUMP_BACKWARD"),
        "JUMP_BACKWARD": ("JUMP_FORWARD", "JUMP_BACKWARD"),
        "JUMP_BACKWARD_NO_INTERRUPT": ("JUMP_FORWARD", "JUMP_BACKWARD_NO_INTERRUPT"),
        "JUMP_IF_FALSE_OR_POP": ("JUMP_IF_FALSE_OR_POP", None),
        "JUMP_IF_TRUE_OR_POP": ("JUMP_IF_TRUE_OR_POP", None),
        "FOR_ITER": ("FOR_ITER", None),
        "SEND": ("SEND", None),
    },
    inversions={},
    no_fallthrough=frozenset(
        {
            "RETURN_VALUE",
            "RAISE_VARARGS",
            "RERAISE",
            "JUMP",
            "JUMP_FORWARD",
            "JUMP_BACKWARD",
            "JUMP_BACKWARD_NO_INTERRUPT",
        }
    ),
    caches={
        "BINARY_SUBSCR": 4,
        "STORE_SUBSCR": 1,
        "UNPACK_SEQUENCE": 1,
        "STORE_ATTR": 4,
        "LOAD_ATTR": 4,
        "COMPARE_OP": 2,
        "LOAD_GLOBAL": 5,
        "BINARY_OP": 1,
        "LOAD_METHOD": 10,
        "PRECALL": 1,
        "CALL": 4,
    },
    superinstructions={},
    compare_shift=0,
    compare_coerces=False,
    aliases={},
    operators=_OPERATORS + tuple(f"{sign}=" for sign in _OPERATORS),
    values={},
    borrowed={},
    expansions={},
    loop_landing=(),
    effects={"RETURN_GENERATOR": 1},
    null_first=True,
    call_kw=False,
    spellings={"CALL": ("PRECALL", "CALL"), "LOAD_FAST_CHECK": ("LOAD_FAST",), "TO_BOOL": ()},
)
