"""Binds what keeps torch.compile and jitmagic apart, and torch's registry of logs.

Only torch._C and modules that `import torch` loads anyway: torch._dynamo takes 1.8 s.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

from .table import private

__all__ = [
    "LOGS",
    "FrameAction",
    "FrameExecStrategy",
    "exclude_from_dynamo",
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
