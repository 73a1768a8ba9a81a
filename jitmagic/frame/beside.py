"""beside: how tagged code and torch.compile leave each other alone.

Comes in: the code of our stubs and of our own Python that others' frames call. Goes out: marks on
it, by which torch.compile's evaluator lets those frames and all below them run as they are; the
native dispatchers switch that evaluator off on their thread. What it compiled itself is known by
the module its wrappers come from (library.py) and runs with all it calls as plain Python. Only
torch._C is used, which every torch process has loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any

import torch

from .. import _frame

__all__ = ["hide", "hide_stub", "torch_compile_set_aside", "twin_of"]

_evaluator: Any = torch._C._dynamo.eval_frame
_skip: Any = _evaluator._FrameAction.SKIP
_ALL_BELOW = _evaluator._FrameExecStrategy(_skip, _skip)

_frame.set_other_evaluator(_evaluator.set_eval_frame)


def hide(code: CodeType) -> CodeType:
    """The same code; torch.compile passes over its frames and what they call."""
    _evaluator.set_code_exec_strategy(code, _ALL_BELOW)
    return code


class _UnlessExporting:
    """True, but while torch.export traces."""

    def __bool__(self) -> bool:
        return not torch.compiler.is_exporting()


_UNLESS_EXPORTING = _UnlessExporting()


_MARKS = ("_torchdynamo_disable", "_torchdynamo_inline")


class _Unshared(dict[str, Any]):
    """The `__dict__` of a stub. functools.wraps copies what it iterates over to the wrapper, which
    must not get the marks: torch would trace the original in its place.
    """

    def __iter__(self) -> Iterator[str]:
        return (name for name in super().__iter__() if name not in _MARKS)

    def keys(self) -> Any:
        return list(self)


def twin_of(stub: FunctionType) -> FunctionType:
    """The function that torch.export inlines in place of a stub."""
    twin: FunctionType = stub._torchdynamo_inline  # type: ignore[attr-defined]
    return twin


def hide_stub(stub: FunctionType, original: FunctionType) -> None:
    """Return what torch.compile traces ends before a call of the stub, which is then made as it
    stands. torch.export's strict mode, which traces by the same means and may not break, inlines
    the original: a twin of it carries the mark, as the user's own function stays unmarked.
    """
    stub.__dict__ = _Unshared(stub.__dict__)
    twin = FunctionType(
        original.__code__,
        original.__globals__,
        original.__name__,
        original.__defaults__,
        original.__closure__,
    )
    twin.__kwdefaults__ = original.__kwdefaults__
    for function in (stub, twin):
        function._torchdynamo_disable = _UNLESS_EXPORTING  # type: ignore[attr-defined]
    stub._torchdynamo_inline = twin  # type: ignore[attr-defined]


@contextmanager
def torch_compile_set_aside() -> Iterator[None]:
    """torch.compile's evaluator lets every frame of this thread pass inside."""
    callback = _evaluator.set_eval_frame(None)
    try:
        yield
    finally:
        _evaluator.set_eval_frame(callback)
