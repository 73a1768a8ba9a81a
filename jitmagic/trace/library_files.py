"""Decides which source files belong to a library, whose lines are not shown to the user."""

from __future__ import annotations

import os
import re
from functools import cache

import torch

__all__ = ["is_installed", "is_library"]

# torch, numpy and the standard library
_LIBRARY = re.compile(
    rf"{re.escape(torch.__path__[0])}|.*[/\\]site-packages[/\\]numpy[/\\]"
    rf"|{re.escape(os.path.dirname(os.__file__))}[/\\](?!site-packages)|<frozen "
)
_PACKAGE = re.compile(r".*[/\\](site|dist)-packages[/\\]")


@cache
def is_library(filename: str) -> bool:
    return _LIBRARY.match(filename) is not None


@cache
def is_installed(filename: str) -> bool:
    """Return whether a file belongs to a library or to an installed package."""
    return is_library(filename) or _PACKAGE.match(filename) is not None
