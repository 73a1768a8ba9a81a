"""Binds what an exported program is made of: torch.export's classes and torch's own symbols.

Only exporting/ imports this module, at its first use, because parts of it import sympy.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from sympy import Ge as _Ge
from torch.export import Dim, ExportedProgram, ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)

from .table import private

__all__ = [
    "ConstantArgument", "Dim", "DimDynamic", "ExportGraphSignature", "ExportedProgram",
    "FakeTensorMode", "InputKind", "InputSpec", "ModuleCallEntry", "ModuleCallSignature",
    "OutputKind", "OutputSpec", "PythonReferenceAnalysis", "ShapeEnv", "SymBoolArgument",
    "SymFloatArgument", "SymIntArgument",
    "TensorArgument", "ValueRanges", "expression_of", "extent_of_dim", "int_oo", "plain_checks",
    "symbolic_size", "sympy_interp",
]  # fmt: skip

FakeTensorMode: Callable[..., Any] = private("torch._subclasses.fake_tensor.FakeTensorMode")
ShapeEnv: Callable[..., Any] = private("torch.fx.experimental.symbolic_shapes.ShapeEnv")
DimDynamic: Any = private("torch.fx.experimental.symbolic_shapes.DimDynamic")
ValueRanges: Callable[..., Any] = private("torch.utils._sympy.value_ranges.ValueRanges")
int_oo: Any = private("torch.utils._sympy.numbers.int_oo")
sympy_interp: Callable[..., Any] = private("torch.utils._sympy.interp.sympy_interp")
PythonReferenceAnalysis: Any = private("torch.utils._sympy.reference.PythonReferenceAnalysis")
_Source: Any = private("torch._guards.Source")
_GuardSource: Any = private("torch._guards.GuardSource")
_ShapeGuard: Callable[..., Any] = private("torch._guards.ShapeGuard")
_Line: Callable[..., Any] = private("torch._guards.SLoc")
_UNCHECKED = (-(2**62), 2)
"""Lower bounds in this range are not checked by an exported program, unless they are guards."""


class _Named(_Source):  # type: ignore[misc]
    """The place of a size in the arguments, as the text by which an exported program reads it."""

    def __init__(self, text: str) -> None:
        object.__setattr__(self, "_text", text)

    @property
    def _name_template(self) -> str:
        return self._text  # type: ignore[no-any-return, attr-defined]

    @property
    def name(self) -> str:
        return self._text  # type: ignore[no-any-return, attr-defined]

    @property
    def guard_source(self) -> Any:
        return _GuardSource.LOCAL

    def __hash__(self) -> int:
        return hash(self._text)  # type: ignore[attr-defined]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Named) and other.name == self.name


def symbolic_size(env: Any, place: str, hint: int, low: int, high: int | None) -> torch.SymInt:
    """Return a new symbol of torch's for the size that is read at `place` in the arguments."""
    source = _Named(place)
    symbol = env.create_symbol(
        hint, source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None,
        positive=None, do_not_specialize_zero_one=True,
    )  # fmt: skip
    env.constrain_symbol_range(symbol, low, int_oo if high is None else high)
    if _UNCHECKED[0] < low <= _UNCHECKED[1]:
        env.guards.append(_ShapeGuard(_Ge(symbol, low, evaluate=False), _Line("", ""), False))
    made: torch.SymInt = env.create_symintnode(symbol, hint=hint, source=source)
    return made


def expression_of(size: Any) -> Any:
    """Return torch's expression of a SymInt or SymFloat, in terms of its symbols."""
    return size.node.expr


def extent_of_dim(value: object) -> tuple[int | None, int | None, str, bool] | None:
    """Return (smallest, largest, name, whether it must vary) of a torch.export.Dim or Dim.AUTO;
    None for any other object. Dim.STATIC has the name "static".
    """
    kind = getattr(getattr(value, "type", None), "name", None)
    if kind in ("AUTO", "DYNAMIC", "STATIC"):
        name = "static" if kind == "STATIC" else ""
        low, high = getattr(value, "min", None), getattr(value, "max", None)
        return low, high, name, kind == "DYNAMIC"
    if type(value) is not Dim:
        return None
    high = None if value.max == int_oo else int(value.max)  # type: ignore[attr-defined]
    return value.min, high, value.__name__, True  # type: ignore[attr-defined]


def plain_checks(checks: Any) -> Any:
    """Return the function that checks the arguments of an exported module, without the wrapper
    that sets an option of torch.compile around each call.
    """
    return inspect.getclosurevars(checks).nonlocals.get("func", checks)
