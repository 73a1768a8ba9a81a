"""Compiles recorded batches: the ATen calls inside `jitmagic.lazy()`, in the order of the program.

Input: a batch as `_lazy` describes it. Output: a callable of its inputs and varying numbers, which
returns the final contents of its outputs. It is a tagged function (program.py), so what differs
between its calls becomes an input: numbers as 0-dim tensors with the type promotion of numbers,
sizes as symbols. If a stage fails, it runs as plain Python, after a warning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakSet

from ..api import tag_once
from ..extension import lazy_module
from ..frame.handle import Handle
from ..frame.native import Entry
from ..frame.tag import tagged_handle
from ..records import COMPILED, CompileRecord
from ..torch_types import AnyFunction
from .program import Batch, Program

__all__ = ["compile_batch", "compile_records", "forget"]

_handles: WeakSet[Handle] = WeakSet()


def compile_batch(described: tuple[Any, Any, Any]) -> AnyFunction:
    """Return the function of a batch; each call of it may compile a variant."""
    program = Program(Batch.of(described))
    # Its plain form is no code of the user, so there is nothing to compare a variant's time with,
    # and nothing to run meanwhile.
    options = {"keep": "compiled", "background": False}
    made = tag_once(program.function(), {"dynamic": program.declared, "options": options})
    handle = tagged_handle(made)
    family = handle.family
    family.compiler = replace(family.compiler, compile=partial(_counted, family.compiler.compile))
    _handles.add(handle)
    return made


def _counted(compile_: Callable[..., Any], *call: Any) -> Any:
    """Compile a variant for `lazy.counts()` to count."""
    made = compile_(*call)
    if isinstance(made, Entry) and made.notes.outcome == COMPILED and not made.notes.is_loaded:
        lazy_module().count_compile()
    return made


def compile_records() -> list[CompileRecord]:
    """Return the records of all compiles whose graphs are still cached."""
    return [record for handle in _handles for record in handle.journal]


def forget() -> None:
    """Forget all compiled batches."""
    lazy_module().forget()
