"""Binds what keeps torch.compile and jitmagic apart, and torch's registry of logs.

Only torch._C and modules that `import torch` loads anyway: torch._dynamo takes 1.8 s.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any

from .table import private

__all__ = [
    "LOGS",
    "FrameAction",
    "FrameExecStrategy",
    "backends_of_program",
    "exclude_from_dynamo",
    "is_disallowed",
    "mark_of",
    "set_code_exec_strategy",
    "set_eval_frame",
]

FrameAction: Any = private("torch._C._dynamo.eval_frame._FrameAction")
FrameExecStrategy: Callable[..., Any] = private("torch._C._dynamo.eval_frame._FrameExecStrategy")
set_code_exec_strategy: Callable[[CodeType, Any], None] = private(
    "torch._C._dynamo.eval_frame.set_code_exec_strategy"
)
set_eval_frame: Callable[[Any], Any] = private("torch._C._dynamo.eval_frame.set_eval_frame")
exclude_from_dynamo: Callable[..., Any] = private("torch._compile._disable_dynamo")
LOGS: Any = private("torch._logging._internal.log_registry")

_RULES = "torch._dynamo.trace_rules"  # has what programs registered with torch.compiler, by ids
_POLYFILLS = "torch._dynamo.variables"
_BACKENDS = "torch._dynamo.backends.registry"


def is_disallowed(function: object) -> bool:
    """Return whether a call breaks torch.compile's graphs, or a program disallows it.

    That covers torch's graph_break(), which only its id identifies.
    """
    return _is_among("_disallowed_callable_ids", function)


def mark_of(function: object) -> tuple[str, Any] | None:
    """Return how calls of a function are followed, if a program registered it in torch.compiler.

    "constant": `assume_constant_result`; "node": `allow_in_graph` and `nonstrict_trace`;
    "replaced", and a Python function: `substitute_in_graph`. torch's own registrations are left
    out: it has replacements for 100 functions of Python.
    """
    if not isinstance(function, FunctionType | BuiltinFunctionType):
        return None
    if str(function.__module__).startswith("torch."):
        return None
    if getattr(function, "_dynamo_marked_constant", False) is True:
        return "constant", None
    if _is_among("_allowed_callable_ids", function):
        return "node", None
    if _is_among("_polyfilled_function_ids", function):
        kind = getattr(sys.modules.get(_POLYFILLS), "PolyfilledFunctionVariable", None)
        known = kind._get_polyfill_handlers() if kind is not None else {}
        replacement = getattr(known.get(function), "__torch_dynamo_polyfill__", None)
        if not str(getattr(replacement, "__module__", "torch.")).startswith("torch."):
            return "replaced", replacement
    return None


def backends_of_program() -> dict[str, Callable[..., Any]]:
    """Return the backends that a program registered with torch.compile, by name; torch's own are
    left out.
    """
    known: dict[str, Any] = getattr(sys.modules.get(_BACKENDS), "_COMPILER_FNS", {})
    return {name: run for name, run in known.items() if not _is_of_torch(run)}


def _is_of_torch(function: object) -> bool:
    return str(getattr(function, "__module__", "torch")).partition(".")[0] == "torch"


def _is_among(name: str, function: object) -> bool:
    """Return whether a set of torch._dynamo, if that is loaded, has the id of the function."""
    kept = getattr(sys.modules.get(_RULES), name, None)
    return id(function) in (getattr(kept, "function_ids", None) or ())
