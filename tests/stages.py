"""Where stages are called, for tests in which one fails."""

from __future__ import annotations

from types import ModuleType

from jitmagic.compile import executable, pipeline, tracing

__all__ = ["caller_of"]


def caller_of(stage: str) -> ModuleType:
    """The module that calls a stage, by the name of its function."""
    return next(module for module in (tracing, pipeline, executable) if hasattr(module, stage))
