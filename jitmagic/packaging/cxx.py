"""Saves a function or module as a file that runs without Python (extensions/deploy).

In: a callable and examples of its arguments. Out: a file with one entry for each example, which C++
loads with `jitmagic/run.hpp`. Each entry is compiled for inference. What the call reads from Python
(attributes, globals, numbers) is constant in the file, and so are the weights.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import torch

from ..errors import UsageError
from ..options import Options, make_options
from ..platforms import instruction_sets
from .cxx_entry import compile_entry
from .cxx_file import Writer

__all__ = ["save_cxx"]

_FORMAT = 1


def save_cxx(
    fn: Callable[..., Any],
    path: str | os.PathLike[str],
    *examples: Any,
    options: Options | None = None,
) -> None:
    """Write `fn`, compiled for each example, to a file that C++ runs.

    An example is a tuple of positional arguments, or the only argument. Dimensions that
    `jitmagic.mark_dynamic` has marked may vary within their bounds, all other sizes are those of
    the example. C++ passes the tensors among the arguments, in order. The result has to be made of
    tensors, in tuples, lists and dicts. Raises UsageError or CompileFailed; `path` is then
    unchanged.
    """
    if not examples:
        raise UsageError("save_cxx needs an example of the arguments for each size to compile for")
    chosen = options or make_options(fullgraph=True, dynamic=None)
    writer = Writer()
    entries = [
        compile_entry(fn, one if isinstance(one, tuple) else (one,), chosen, writer)
        for one in examples
    ]
    writer.finish(
        {
            "format": _FORMAT,
            "kind": "cxx",
            "torch": re.match(r"\d+\.\d+\.\d+", torch.__version__)[0],  # type: ignore[index]
            "device": "cpu",
            "isa": entries[0].isa,
            "instructions": instruction_sets(),
            "entries": [entry.described for entry in entries],
        },
        path,
    )
