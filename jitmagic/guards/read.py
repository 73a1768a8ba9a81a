"""Reads the object at a Source in a live frame, in Python; runs no user code."""

from __future__ import annotations

from typing import Any

from ..bytecode import FrameSnapshot
from .source import Source

__all__ = ["UNREADABLE", "read_source"]

UNREADABLE = (KeyError, IndexError, AttributeError, ValueError, TypeError)
"""Exceptions raised when a source leads to nothing in the frame."""


def read_source(source: Source, frame: FrameSnapshot) -> Any:
    """Return the object at a source; raises one of UNREADABLE if the frame has none."""
    return source.read(frame)
