"""Writes calls of scalar operations in C++, and defines operations registered at run time.

In: op names, operand texts, dtypes. Out: strings. The functions of jitmagic's own operations are in
include/jitmagic/; those of operations that were registered at run time are defined at the head of a
unit, by their line of C++.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import torch

from ...operators.scalar import SCALARS, ScalarOperation, line_of

__all__ = ["INFIX", "call_text", "functions_of", "is_infix"]

INFIX: Mapping[str, str] = {"add": "+", "sub": "-", "mul": "*", "truediv": "/"}
# On bools, the functions of bits are those of logic.
_LOGIC = {r.of_bools: r.name for r in SCALARS.values() if r.of_bools and r.operands == "integers"}
_NAMESPACE = "jm::registered"
_TOKEN = re.compile(
    r"\s+|\{(?:\d|t)\}|[-+*/(),]|(?P<number>\d+(?:\.\d*)?(?:e[+-]?\d+)?)|(?P<called>[a-z]\w*)(?=\()"
)
_LANES = """\
JM_FOR_SCALAR(is_scalar<T>) {result} {name}({scalars}) {{ return {result}({text}); }}
JM_FOR_VEC auto {name}({vectors}) {{
    T {lanes};
    {result} out[N];
    {stores}
    for (int i = 0; i < N; ++i) out[i] = {name}({each});
    return Vec<{result}, N>::load(out);
}}"""


def is_infix(op: str, dtype: torch.dtype) -> bool:
    """Return whether an operation is written with an operator, whose operands must be closed."""
    return dtype in (torch.float32, torch.float64) and (op in INFIX or op == "neg")


def call_text(op: str, args: list[str], dtype: torch.dtype, operands: torch.dtype) -> str:
    """Return one Compute node over operand texts (all vectors or all scalars), which are closed if
    it is infix.
    """
    if is_infix(op, dtype):
        return f"-{args[0]}" if op == "neg" else f"{args[0]} {INFIX[op]} {args[1]}"
    if operands == torch.bool:
        op = _LOGIC.get(op, op)
    space = "jm" if SCALARS[op].texts is None else _NAMESPACE
    return f"{space}::{op}({', '.join(args)})"


def functions_of(names: Iterable[str]) -> list[str]:
    """Return the lines that define registered operations."""
    written = [_function(SCALARS[name]) for name in sorted(names)]
    return [f"namespace {_NAMESPACE} {{", *written, "}", ""] if written else []


def _function(row: ScalarOperation) -> str:
    template = line_of(row.name, "cpp")
    names = [f"a{position}" for position in range(row.arity)]
    vectors = _of_vectors(template, row.operands == "floats")
    if vectors is not None:
        parameters = ", ".join(f"V {name}" for name in names)
        body = vectors.format(*names, t="V")
        return f"template <class V> JM_INLINE auto {row.name}({parameters}) {{ return {body}; }}"
    return _LANES.format(
        name=row.name,
        result="bool" if row.boolean else "T",
        text=template.format(*names, t="T"),
        scalars=", ".join(f"T {name}" for name in names),
        vectors=", ".join(f"Vec<T, N> {name}" for name in names),
        lanes=", ".join(f"{name}_lanes[N]" for name in names),
        stores=" ".join(f"{name}.store({name}_lanes);" for name in names),
        each=", ".join(f"{name}_lanes[i]" for name in names),
    )


def _of_vectors(template: str, divides: bool) -> str | None:
    """Return the expression over vectors, with each number as one; None if it has other parts.
    Vectors of integers have no division.
    """
    parts, at = [], 0
    while at < len(template):
        token = _TOKEN.match(template, at)
        if token is None or (token[0] == "/" and not divides):
            return None
        called = token["called"]
        if called and (called not in SCALARS or SCALARS[called].texts is not None):
            return None
        parts.append(f"V({token['number']})" if token["number"] else token[0])
        at = token.end()
    return "".join(parts)
