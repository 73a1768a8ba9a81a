"""Renders a Body as a readable listing.

Input: a Body (or a code object). Output: text with source lines in the margin, labels for all
targets of jumps and handlers, symbolic arguments, and the exception regions by label. Invariant: it
shows everything the assembler encodes except columns; equal bodies give equal text, without
addresses.
"""

from __future__ import annotations

import types

from .decode import decode
from .instruction import Body, Instruction
from .versions import RUNNING, Kind

__all__ = ["show"]

_FLAG_WORDS = {
    "LOAD_GLOBAL": "+ NULL",
    "LOAD_ATTR": "method",
    "LOAD_SUPER_ATTR": "method",
    "COMPARE_OP": "as bool",
}


def show(body: Body | types.CodeType) -> str:
    """Return the listing, ending in a newline."""
    if isinstance(body, types.CodeType):
        body = decode(body)
    labels = _labels(body)
    lines = [_headline(body)]
    lineno: int | None = None
    for instruction in body.instructions:
        margin = ""
        if instruction.lineno is not None and instruction.lineno != lineno:
            margin = str(lineno := instruction.lineno)
        label = f"{labels[instruction]}:" if instruction in labels else ""
        lines.append(f"{margin:>5}  {label:<5} {_text(instruction, labels)}".rstrip())
    if body.regions:
        lines.append("regions:")
        lines.extend(
            f"    {labels[r.start]} .. {labels[r.end_inclusive]} -> {labels[r.target]}"
            f"  depth {r.depth}{' + lasti' if r.lasti else ''}"
            for r in body.regions
        )
    return "\n".join(lines) + "\n"


def _headline(body: Body) -> str:
    words = [
        f"{body.qualname}({', '.join(body.parameters)})",
        f"{body.filename}:{body.firstlineno}",
    ]
    groups = {
        "locals": body.varnames[body.parameter_count :],
        "cells": body.cellvars,
        "free": body.freevars,
    }
    words += [f"{word}: {', '.join(names)}" for word, names in groups.items() if names]
    return "  |  ".join(words)


def _labels(body: Body) -> dict[Instruction, str]:
    """Name the marked instructions L1, L2, ... in the order of the listing."""
    marked = {i.target for i in body.instructions if i.target is not None}
    for region in body.regions:
        marked |= {region.start, region.end_inclusive, region.target}
    ordered = [instruction for instruction in body.instructions if instruction in marked]
    return {instruction: f"L{i}" for i, instruction in enumerate(ordered, 1)}


def _text(instruction: Instruction, labels: dict[Instruction, str]) -> str:
    words = [f"{instruction.op:<26}"]
    kind = RUNNING.kind(instruction.op)
    if kind is Kind.CONST:
        words.append(_constant(instruction.arg))
    elif instruction.target is not None:
        words.append(f"-> {labels[instruction.target]}")
    elif instruction.arg is not None:
        words.append(str(instruction.arg))
    if instruction.flag:
        words.append(_FLAG_WORDS.get(instruction.op, "flag"))
    if instruction.explicit:
        words.append("two arguments")
    return " ".join(words)


def _constant(value: object) -> str:
    """Show values as in source; objects by type and name, since their repr may be an address."""
    if isinstance(value, types.CodeType):
        return f"<code {value.co_qualname}>"
    if isinstance(value, (tuple, frozenset)):
        # The iteration order of a frozenset of str changes with PYTHONHASHSEED.
        parts = [_constant(part) for part in value]
        if isinstance(value, frozenset):
            return f"frozenset({{{', '.join(sorted(parts))}}})"
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
    if value is None or value is ... or isinstance(value, (bool, int, float, complex, str, bytes)):
        return repr(value)
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    return f"<{type(value).__name__} {name}>" if name else f"<{type(value).__name__}>"
