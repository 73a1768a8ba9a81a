"""Holds everything that jitmagic takes from torch's private side, as one table.

    behaviour      differences between versions that no name shows
    versions       the range of torch versions; imports nothing of torch
    table          looks names up, records those that are missing
    modes          dispatch modes, function modes, switches of the thread
    autograd       the engine, nodes, hooks on saved tensors
    operators      operators and their registrations
    functions      functions of the namespace torch
    tensors        facts about tensors
    flags          getters of process-wide settings
    modules        torch.nn, torch.optim, torch.jit, torch.cuda
    pytree         nested containers
    distributed    collectives of torch.distributed
    torch_compile  frame evaluator and logs of torch.compile
    export         classes of an exported program, fake tensors and torch's own symbols

tests/test_compat.py refuses private names of torch in the rest of the package. With a torch that
is newer than `versions.NEWEST`, `check_names` looks up the whole table when jitmagic is imported
and reports what is missing.
"""

from __future__ import annotations

import importlib
import pkgutil

import torch

from .table import summary
from .versions import is_newer

__all__ = ["check_names"]


def check_names(*, everything: bool = False) -> str:
    """Return one line if this torch is newer than NEWEST or lacks a name, else an empty string.

    Unless asked for `everything`, only rows of the modules that are imported so far are checked
    for a known torch, because importing all of them would add to the time of `import jitmagic`.
    """
    if everything or is_newer(torch.__version__):
        for module in pkgutil.iter_modules(__path__):
            importlib.import_module(f"{__name__}.{module.name}")
    return summary()
