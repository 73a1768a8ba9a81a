"""Replaces calls whose C++ reads sizes as ints by the operators that they run, which take SymInts.

Input: a torch function and its arguments, with SymInts among them, while a dispatch mode is active.
Output: its result. The recorded operators are those of a static graph and give eager's results;
torch's own Python decompositions of such calls compute them differently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ...compat.modes import without_innermost_mode
from ...compat.operators import resolve_overload
from ...late_tables import LateTable, object_name
from ...symbols.context import Specialize
from ...torch_types import AnyFunction
from ..attribution import Attribution, call_from
from ..node_meta import tensors_in
from .sym_node import sizes_in, with_hints

__all__ = ["BY_OPERATORS", "call_with_sizes"]

aten = torch.ops.aten
# Rules that run other operators, in sized_operators.py.
BY_OPERATORS: LateTable[object, AnyFunction] = LateTable("sized calls", object_name)


def call_with_sizes(
    line: Attribution,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Call `function(*args, **kwargs)` as if that line called it."""
    by_operator = BY_OPERATORS.get(function)
    if by_operator is not None and (made := by_operator(*args, **kwargs)) is not None:
        return made
    try:
        return call_from(line, function, args, kwargs)
    except Specialize:  # torch's argument parser reads SymInts as ints: torch.linspace(a, b, n)
        is_alone = next(tensors_in((args, kwargs)), None) is None
        if not is_alone or next(sizes_in((args, kwargs)), None) is None:
            raise
        return _made(getattr(function, "__name__", ""), args, kwargs)


def _made(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
    """Run the factory of that name by its operator, dispatched to the mode as C++ does.

    Raises RuntimeError if no overload fits.
    """
    hinted = with_hints(tuple(args)), with_hints(dict(kwargs))
    overload = resolve_overload(f"aten::{name}", *hinted[0], **hinted[1])
    named = {"device": torch.device("cpu"), "pin_memory": False, **kwargs}
    with without_innermost_mode() as mode:
        return mode.__torch_dispatch__(
            getattr(getattr(aten, name), overload), (), tuple(args), named
        )
