"""Defines a row per scalar operation of the loop IR, and the table that finds rows by name.

A scalar operation maps numbers to a number: `exp`, `add`, `lt`. Its row holds the facts that more
than one stage asks; lowerings, decompositions and texts stay in their stages. A new operation is
its row in a family's file (arithmetic, elementary, predicates) and a line in each renderer:
`codegen/triton/ops.py`, `codegen/numba/ops.py`, and a function in `include/jitmagic/` for C++.

Code outside the package adds one at run time, with its lines as expressions:

    register(
        ScalarOperation("softsign", 1, torch.nn.functional.softsign, "floats", cost=5),
        cpp="{0} / (1 + abs({0}))",          # scalar C++; {t} is the operand's type
        triton="{0} / (1.0 + tl.abs({0}))",
        numba="{0} / ({t}(1) + abs({0}))",
    )

`loops.values.compute("softsign", x)` then applies it in a lowering. The C++ expression is
vectorised where it consists of operands, numbers, + - * / and calls of scalar operations by name;
any other expression runs lane by lane. A renderer that gets no expression raises CannotRender for
a kernel that contains the operation, and the next tier takes over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from ..errors import CannotRender, UsageError
from ..lazy_dataclass import KW_ONLY, dataclass, replace

__all__ = [
    "INFINITY",
    "LANGUAGES",
    "ORDERS",
    "REDUCTIONS",
    "SCALARS",
    "SCANS",
    "ScalarOperation",
    "define",
    "line_of",
    "of_aten",
    "register",
    "unregister",
]

INFINITY = float("inf")
LANGUAGES = ("cpp", "triton", "numba")


@dataclass(frozen=True, slots=True)
class ScalarOperation:
    """Describes a scalar operation. `rule`, `packet` and `overloads` say how ATen has it."""

    name: str
    arity: int
    reference: Callable[..., torch.Tensor]  # on tensors, for the reference interpreter
    operands: str = "numbers"  # or "any" (also bool), "floats", "integers", "bools"
    _: KW_ONLY
    boolean: bool = False  # the result is a bool, otherwise it has the dtype of the operands
    conditional: bool = False  # the first operand is a bool, which chooses
    cost: int = 1  # in additions of a vector
    ulp: float = 0  # largest error of the C++ kernel of float32; 0: the bits that eager computes
    of_bools: str | None = None  # the operation that it is on bools
    of_whole: bool | str | None = None  # its result on integers and bools; "same": the operand
    symbol: str | None = None  # infix form in printed programs, and for comparisons of intervals
    packet: str | None = None  # the ATen packet that computes it
    rule: str = "arith"  # promotion, a name in loops/promotion.py
    overloads: tuple[str, ...] = ()  # "aten.exp.default": lowered to this operation alone
    bounds: tuple[float, float] | None = None  # an interval that contains every exact result
    domain: tuple[float, float] = (-INFINITY, INFINITY)  # with bounds: operands without nan result
    texts: Mapping[str, str] | None = None  # by language, if it was registered at run time
    languages: tuple[str, ...] = LANGUAGES  # of the renderers that have a line

    def takes(self, dtype: torch.dtype) -> bool:
        """Return whether operands may have this dtype."""
        if dtype is torch.bool:
            return self.operands in ("any", "bools")
        kinds = ("floats",) if dtype.is_floating_point else ("integers",)
        return self.operands in ("any", "numbers", *kinds)


def of_aten(name: str, arity: int, *overloads: str, **facts: Any) -> ScalarOperation:
    """Return the row of an operation that torch and ATen have under the same name. Overloads are
    of that packet, or of the packet that they name.
    """
    full = (each if "." in each else f"{name}.{each}" for each in overloads)
    named = tuple(f"aten.{each}" for each in full)
    facts = {"packet": name, "overloads": named, **facts}
    return ScalarOperation(name, arity, getattr(torch, name), **facts)


_ROWS: dict[str, ScalarOperation] = {}
SCALARS: Mapping[str, ScalarOperation] = MappingProxyType(_ROWS)

REDUCTIONS: Mapping[str, str] = {
    **{"sum": "add", "prod": "mul", "any": "logical_or", "all": "logical_and"},
    **dict.fromkeys(("max", "argmax"), "maximum"),
    **dict.fromkeys(("min", "argmin"), "minimum"),
    "max_number": "fmax",  # which skips NaN
    "logsumexp": "logaddexp",
}
"""Reductions of the loop IR, each with the scalar operation that combines two values."""

SCANS = frozenset({"sum", "prod", "max", "min", "logsumexp"})
"""Reductions whose results up to each point are the values of a scan."""

ORDERS = frozenset({"ascending", "descending"})
"""Reductions whose result is a row in order, of which a Pick is an element."""


def define(*rows: ScalarOperation) -> None:
    """Add rows to the table. Raises UsageError if a name is taken."""
    for row in rows:
        if row.name in _ROWS:
            raise UsageError(f"there is a scalar operation {row.name!r} already")
        _ROWS[row.name] = row


def register(row: ScalarOperation, texts: Mapping[str, str]) -> None:
    """Add an operation with its expression in each language, in which {0}, {1} and {2} are the
    operands and {t} is their type. Functions that were compiled before keep their kernels. Raises
    UsageError if the name is taken or no identifier, or if an expression does not format.
    """
    if not row.name.isidentifier():
        raise UsageError(f"the name of a scalar operation is an identifier, not {row.name!r}")
    for language, text in texts.items():
        try:
            text.format(*"abc"[: row.arity], t="t")
        except (LookupError, ValueError) as error:
            raise UsageError(f"{language} of {row.name!r}: {text!r}: {error!r}") from error
    define(replace(row, texts=MappingProxyType({**texts})))


def unregister(name: str) -> bool:
    """Remove an operation that `register` added; return whether there was one."""
    return name in _ROWS and _ROWS[name].texts is not None and bool(_ROWS.pop(name))


def line_of(name: str, language: str, *tables: Mapping[str, str]) -> str:
    """Return a renderer's expression of a scalar operation, with {0}, {1} and {2} for operands: its
    line in the first of the renderer's tables that has one, or what it was registered with. Raises
    CannotRender.
    """
    if (texts := _ROWS[name].texts) is not None:
        tables = ({name: texts[language]},) if language in texts else ()
    for table in tables:
        if name in table:
            return table[name]
    raise CannotRender(language, name)
