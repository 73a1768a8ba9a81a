"""Reads the object at a Source in a live frame, in Python; runs no user code."""

from __future__ import annotations

from typing import Any

import torch

from ..bytecode import FrameSnapshot
from .source import Argument, ArrayMemory, DictEntry, Item, ItemAt, Source

__all__ = ["UNREADABLE", "is_input_of_call", "read_source"]

UNREADABLE = (KeyError, IndexError, AttributeError, ValueError, TypeError)
"""Exceptions raised when a source leads to nothing in the frame."""


def read_source(source: Source, frame: FrameSnapshot) -> Any:
    """Return the object at a source; raises one of UNREADABLE if the frame has none."""
    return source.read(frame)


def is_input_of_call(source: Source, tensor: torch.Tensor) -> bool:
    """Return whether a tensor is an argument or inside one, and not a parameter.

    The sizes of parameters and of tensors in modules rarely vary.
    """
    at: object = source
    while isinstance(at, Item | ItemAt | DictEntry | ArrayMemory):
        at = at.base
    return isinstance(at, Argument) and not isinstance(tensor, torch.nn.Parameter)
