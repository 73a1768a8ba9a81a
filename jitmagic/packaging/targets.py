"""Chooses the processor that a file is for, and describes what its kernels need.

In: the name that `save(..., target=...)` takes, or None for this machine. Out: a block inside which
the stages compile for it, and the facts of the file that `load` compares with its machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .. import platforms
from ..devices import PROCESSORS, Processor, compiling_for, find_target
from ..errors import UsageError
from ..options import Options

__all__ = ["compiling_for_file", "lacking", "needed"]


@contextmanager
def compiling_for_file(name: str | None, options: Options) -> Iterator[Processor | None]:
    """Compile for the named processor inside the block. Raises UsageError for an unknown one, or
    if there is no compiler for it.
    """
    if name is None:
        yield None
        return
    if name not in PROCESSORS:
        raise UsageError.unknown("target", name, PROCESSORS)
    if options.tunes:
        raise UsageError(f"mode={options.mode!r} measures kernels, which cannot run here: "
                         "leave out mode or target")  # fmt: skip
    if options.cpu_tier not in ("auto", "cpp", "aten"):
        raise UsageError(f"cpu_tier={options.cpu_tier!r} compiles for this machine alone")
    processor = PROCESSORS[name]
    with compiling_for(processor):
        target = find_target(torch.device("cpu"), options)
        if target.tier == "cpp" and not target.cxx:
            raise UsageError(_no_compiler(processor))
        yield processor


def _no_compiler(processor: Processor) -> str:
    machine, (_, package) = processor.machine, processor.compiler
    if machine == platforms.machine():
        package = "g++"
    return (
        f"no C++ compiler for {machine} was found, which target={processor.name!r} needs\n"
        f"  hint: install Debian's package {package}, or name a compiler: options={{'cxx': path}}"
    )


def needed(processor: Processor | None) -> dict[str, Any]:
    """Return the facts of a machine that runs the kernels; None: those of this machine."""
    if processor is None:
        return {"machine": platforms.machine(), "instructions": platforms.instruction_sets()}
    return {"machine": processor.machine, "instructions": processor.instructions}


def lacking(document: dict[str, Any]) -> str:
    """Return the sentence that says what this machine lacks for a file; "" if nothing."""
    here = platforms.machine()
    if document["machine"] != here:
        return f"its kernels are for {document['machine']}, this machine is {here}"
    missing = {*document["instructions"]}.difference(platforms.instruction_sets())
    return f"this processor has no {', '.join(sorted(map(str, missing)))}" if missing else ""
