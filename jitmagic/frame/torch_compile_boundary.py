"""Keeps torch.compile and jitmagic from tracing each other's frames.

Input: the code of call stubs and of jitmagic's own Python functions that user frames call. Output:
marks on that code which make torch.compile's frame evaluator skip those frames and all that they
call. The native dispatchers disable that evaluator on their thread. Code that torch.compile has
produced is recognised by the module of its wrappers (library.py) and runs as plain Python, callees
included. Only torch._C is used, which every torch process has loaded, never torch._dynamo.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any

import torch

from .. import _frame
from ..compat.torch_compile import (
    FrameAction,
    FrameExecStrategy,
    set_code_exec_strategy,
    set_eval_frame,
)

__all__ = ["export_twin", "hide", "hide_stub", "torch_compile_disabled"]

_ALL_BELOW = FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP)

_frame.set_other_evaluator(set_eval_frame)


def hide(code: CodeType) -> CodeType:
    """Make torch.compile skip the frames of `code` and everything they call; return `code`."""
    set_code_exec_strategy(code, _ALL_BELOW)
    return code


class _UnlessExporting:
    """True except while torch.export traces."""

    def __bool__(self) -> bool:
        return not torch.compiler.is_exporting()


_UNLESS_EXPORTING = _UnlessExporting()


_MARKS = ("_torchdynamo_disable", "_torchdynamo_inline")


class _DictWithoutMarks(dict[str, Any]):
    """The `__dict__` of a stub, which hides its marks from iteration.

    functools.wraps copies what it iterates over to the wrapper. With the marks on the wrapper,
    torch would trace the original in place of the wrapper.
    """

    def __iter__(self) -> Iterator[str]:
        return (name for name in super().__iter__() if name not in _MARKS)

    def keys(self) -> Any:
        return list(self)


def export_twin(stub: FunctionType) -> FunctionType:
    """Return the function that torch.export inlines in place of a stub."""
    twin: FunctionType = stub._torchdynamo_inline  # type: ignore[attr-defined]
    return twin


def hide_stub(stub: FunctionType, original: FunctionType) -> None:
    """Make torch.compile end its graph before a call of the stub and run the stub unchanged.

    torch.export's strict mode traces by the same means and may not break, so it inlines the
    original: a twin of it carries the mark, because the user's own function stays unmarked.
    """
    stub.__dict__ = _DictWithoutMarks(stub.__dict__)
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
def torch_compile_disabled() -> Iterator[None]:
    """Disable torch.compile's frame evaluator on this thread inside the block."""
    callback = set_eval_frame(None)
    try:
        yield
    finally:
        set_eval_frame(callback)
