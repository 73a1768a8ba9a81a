"""CPython 3.14: borrowed loads, LOAD_SMALL_INT, LOAD_SPECIAL, subscripts by BINARY_OP, POP_ITER."""

from __future__ import annotations

from . import v313

__all__ = ["TABLE"]

# END_ASYNC_FOR has a plain int here: only sys.monitoring reads the distance, to name the loop in an
# event. In the rewritten code of a coroutine that name may be of another instruction.
TABLE = v313.TABLE.changed(
    version=(3, 14),
    removed=["BINARY_SUBSCR", "RETURN_CONST"],
    caches={"BINARY_OP": 5, "CALL_KW": 3},
    aliases={"BINARY_SUBSCR": "BINARY_OP"},
    operators=(*v313.TABLE.operators, "[]"),
    values={
        "LOAD_SMALL_INT": range(256),
        "LOAD_COMMON_CONSTANT": (AssertionError, NotImplementedError, tuple, all, any),
    },
    borrowed={
        "LOAD_FAST_BORROW": ("LOAD_FAST",),
        "LOAD_FAST_BORROW_LOAD_FAST_BORROW": ("LOAD_FAST", "LOAD_FAST"),
    },
    expansions={
        "BEFORE_WITH": (  # object -> exit, NULL or self, entered; special methods: exit 1, enter 0
            ("COPY", 1),
            ("LOAD_SPECIAL", 1),
            ("SWAP", 2),
            ("SWAP", 3),
            ("LOAD_SPECIAL", 0),
            ("CALL", 0),
        ),
    },
    effects={"BEFORE_WITH": 2},
    loop_landing=("END_FOR", "POP_ITER"),
)
