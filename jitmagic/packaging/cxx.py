"""Saves a function or module as a file that runs without Python (extensions/deploy).

In: a callable and examples of its arguments. Out: a file with one entry for each example, which C++
loads with `jitmagic/run.hpp`. Each entry is compiled for inference. What the call reads from Python
(attributes, globals, numbers) is constant in the file, and so are the weights.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..devices import GPUS
from ..errors import UsageError
from ..options import Options, make_options
from .cxx_entry import compile_entry
from .cxx_file import CxxWriter
from .examples import calls_of, with_marks
from .targets import compiling_for_file, needed

__all__ = ["save_cxx"]

_FORMAT = 1


def save_cxx(
    fn: Callable[..., Any],
    path: str | os.PathLike[str],
    *examples: Any,
    dynamic: Any = None,
    options: Mapping[str, Any] | Options | None = None,
    target: str | None = None,
) -> None:
    """Write `fn`, compiled for each example, to a file that C++ runs.

    Examples are as for `jitmagic.save`. Dimensions in `dynamic`, or marked by
    `jitmagic.mark_dynamic`, may vary within their bounds; all other sizes are those of the example.
    `target` is as for `jitmagic.save`. C++ passes the tensors among the arguments, in order. The
    result has to be made of tensors, in tuples, lists and dicts. Raises UsageError, CannotKeep or
    CompileFailed; `path` is then unchanged.
    """
    calls = calls_of(examples)
    named: Mapping[str, Any] = dynamic if isinstance(dynamic, Mapping) else {}
    if named:
        calls, dynamic = [with_marks(fn, call, named) for call in calls], None
    chosen = make_options(options, fullgraph=True, dynamic=dynamic)
    writer = CxxWriter()
    if target in GPUS:
        raise UsageError("a program for C++ has kernels of the CPU: leave out cxx=True or target")
    with compiling_for_file(target, chosen) as processor:
        entries = [compile_entry(fn, call, chosen, writer) for call in calls]
    kernels = [name for entry in entries for name in entry.described["kernels"].values()]
    writer.finish(
        {
            "format": _FORMAT,
            "kind": "cxx",
            "torch": re.match(r"\d+\.\d+\.\d+", torch.__version__)[0],  # type: ignore[index]
            "device": "cpu",
            "isa": entries[0].isa,
            **needed(processor, kernels),
            "entries": [entry.described for entry in entries],
        },
        path,
    )
