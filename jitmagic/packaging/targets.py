"""Chooses the processor that a file is for, and describes what its kernels need.

In: the name that `save(..., target=...)` takes, or None for this machine. Out: a block inside which
the stages compile for it, and the facts of the file that `load` compares with its machine.

A file for a GPU is made without one: the tensors of the program and the examples are on the CPU,
and count as being on the GPU. Its entry is compiled as for a call, which it does not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch

from .. import platforms
from ..compat.modes import uninitialised_cuda
from ..devices import GPUS, PROCESSORS, Gpu, Processor, compiling_for, find_target
from ..errors import UsageError
from ..frame.handle import Handle
from ..frame.native import Entry
from ..options import Options
from ..records import Occasion, Recording
from ..torch_types import Values

__all__ = ["compiling_for_file", "entry_elsewhere", "lacking", "needed"]


@contextmanager
def compiling_for_file(name: str | None, options: Options) -> Iterator[Processor | Gpu | None]:
    """Compile for the named processor or GPU inside the block. Raises UsageError for an unknown
    one, or if there is no compiler for it.
    """
    if name is None:
        yield None
        return
    rows: dict[str, Processor | Gpu] = {**PROCESSORS, **GPUS}
    if name not in rows:
        raise UsageError.unknown("target", name, rows)
    if options.tunes:
        raise UsageError(f"mode={options.mode!r} measures kernels, which cannot run here: "
                         "leave out mode or target")  # fmt: skip
    if options.cpu_tier not in ("auto", "cpp", "aten"):
        raise UsageError(f"cpu_tier={options.cpu_tier!r} compiles for this machine alone")
    with compiling_for(row := rows[name]):
        if isinstance(row, Gpu):
            _check_gpu(row)
        else:
            target = find_target(torch.device("cpu"), options)
            if target.tier == "cpp" and not target.cxx:
                raise UsageError(_no_compiler(row))
        yield row


def _check_gpu(gpu: Gpu) -> None:
    if find_spec("triton") is None:
        raise UsageError(f"target={gpu.name!r} needs triton\n  hint: python -m pip install triton")
    if torch.is_grad_enabled():
        raise UsageError(
            f"a file with target={gpu.name!r} is for inference: torch's autograd needs the GPU\n"
            "  hint: save it under torch.no_grad()"
        )


def _no_compiler(processor: Processor) -> str:
    machine, (_, package) = processor.machine, processor.compiler
    if machine == platforms.machine():
        package = "g++"
    return (
        f"no C++ compiler for {machine} was found, which target={processor.name!r} needs\n"
        f"  hint: install Debian's package {package}, or name a compiler: options={{'cxx': path}}"
    )


def entry_elsewhere(handle: Handle, values: Values) -> Entry | None:
    """Compile for a call that another machine makes; None if the frame is not compiled."""
    snapshot = handle.original.snapshot(values)
    record = Recording(handle.name, handle.journal, handle.serial, 1, Occasion())
    with uninitialised_cuda():
        made = handle.family.compiler.compile(handle, snapshot, record)
    if not isinstance(made, Entry):
        return None
    record.end(made.notes.outcome)
    return made


def needed(processor: Processor | Gpu | None, kernels: Iterable[str]) -> dict[str, Any]:
    """Return the facts of a machine that runs the kernels, which are files of these names; None:
    those of this machine.
    """
    kernels, gpu = tuple(kernels), None
    if any(name.endswith(".cubin") for name in kernels):
        gpu = processor.name if isinstance(processor, Gpu) else _gpu_here()
    if isinstance(processor, Processor):
        machine, instructions = processor.machine, processor.instructions
    else:
        machine, instructions = platforms.machine(), platforms.instruction_sets()
    if not any(name.endswith(".so") for name in kernels):
        instructions = ()
    return {"machine": machine, "instructions": instructions, "gpu": gpu}


def lacking(document: dict[str, Any]) -> str:
    """Return the sentence that says what this machine lacks for a file; "" if nothing."""
    here = platforms.machine()
    if document["machine"] != here:
        return f"its kernels are for {document['machine']}, this machine is {here}"
    missing = {*document["instructions"]}.difference(platforms.instruction_sets())
    if missing:
        return f"this processor has no {', '.join(sorted(map(str, missing)))}"
    gpu = document["gpu"]
    if gpu is not None and (found := _gpu_here()) != gpu:
        return f"its kernels are for a GPU with {gpu}, this machine has {found or 'none'}"
    return ""


def _gpu_here() -> str:
    if not torch.cuda.is_available():
        return ""
    major, minor = torch.cuda.get_device_capability(0)
    return f"sm_{major}{minor}"
