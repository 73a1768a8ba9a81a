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

__all__ = ["hide", "hide_stub", "torch_compile_set_aside"]

_evaluator: Any = torch._C._dynamo.eval_frame
_skip: Any = _evaluator._FrameAction.SKIP
_ALL_BELOW = _evaluator._FrameExecStrategy(_skip, _skip)

_frame.set_other_evaluator(_evaluator.set_eval_frame)


def hide(code: CodeType) -> CodeType:
    """The same code; torch.compile passes over its frames and what they call."""
    _evaluator.set_code_exec_strategy(code, _ALL_BELOW)
    return code


def hide_stub(stub: FunctionType) -> None:
    """What torch.compile traces ends before a call of the stub, which is then made as it stands."""
    stub._torchdynamo_disable = True  # type: ignore[attr-defined]


@contextmanager
def torch_compile_set_aside() -> Iterator[None]:
    """torch.compile's evaluator lets every frame of this thread pass inside."""
    callback = _evaluator.set_eval_frame(None)
    try:
        yield
    finally:
        _evaluator.set_eval_frame(callback)
