"""CPython 3.13: NULL above the callable, CALL_KW, TO_BOOL, superinstructions, no LOAD_CLOSURE."""

from __future__ import annotations

from . import v312

__all__ = ["TABLE"]

TABLE = v312.TABLE.changed(
    version=(3, 13),
    removed=["KW_NAMES"],
    caches={
        "CONTAINS_OP": 1,
        "JUMP_BACKWARD": 1,
        "TO_BOOL": 3,
        **{f"POP_JUMP_IF_{c}": 1 for c in ("TRUE", "FALSE", "NONE", "NOT_NONE")},
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
    null_first=False,
    call_kw=True,
    spellings={"TO_BOOL": ("TO_BOOL",)},
)
