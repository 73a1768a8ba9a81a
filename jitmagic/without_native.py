"""Takes the place of api.py where the native extension is missing: tagged functions run as eager.

In: the arguments of the public functions; options are checked as usual. Out: the user's functions
and modules, unchanged. `because` receives the error that says why, and what to do about it; the
first tagging warns with its text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .errors import NativeMissing, warn
from .options import Options, make_options
from .platforms import build_advice

__all__ = [
    "because",
    "disable",
    "graph_break",
    "is_compiling",
    "jit",
    "load",
    "mark_dynamic",
    "mark_static",
    "mark_unbacked",
    "reset",
    "unload",
    "wait",
]

_unexplained: list[NativeMissing] = []


def because(error: NativeMissing) -> None:
    """Store the reason for the first warning."""
    _unexplained.append(error)


def _explain() -> None:
    if _unexplained:
        error = _unexplained.pop()
        warn(f"functions tagged with jitmagic run as eager here: {error}\n  {build_advice()}")


def jit(
    fn: Any = None,
    /,
    *,
    backend: Any = "native",
    mode: str = "default",
    fullgraph: bool = False,
    dynamic: bool | Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | Options | None = None,
) -> Any:
    """Return `fn`, or with keywords alone a decorator that does."""
    make_options(options, backend=backend, mode=mode, fullgraph=fullgraph, dynamic=dynamic)
    _explain()
    return _unchanged if fn is None else fn


def _unchanged(fn: Any) -> Any:
    return fn


def disable(fn: Any = None, /, recursive: bool = True, *, reason: str | None = None) -> Any:
    """Return `fn`, or with keywords alone a decorator that does."""
    return _unchanged if fn is None else fn


def mark_dynamic(
    tensor: torch.Tensor, dim: int, *, min: int | None = None, max: int | None = None
) -> None:
    """Do nothing: eager code serves every size."""


mark_unbacked = mark_dynamic


def mark_static(tensor: torch.Tensor, dim: int | None = None) -> None:
    """Do nothing, as `mark_dynamic`."""


def reset() -> None:
    """Do nothing: nothing was compiled."""


def wait(timeout: float | None = None) -> bool:
    """Return True: nothing is being built."""
    return True


def graph_break() -> None:
    """Do nothing, as in all plain Python."""


def is_compiling() -> bool:
    """Return False, as in all plain Python."""
    return False


def load(shell: Any) -> None:
    """Define %%compile, which runs the cell as it is."""

    def compile_magic(line: str, cell: str | None = None) -> None:
        _explain()
        if cell is not None:
            shell.run_cell(cell)

    shell.register_magic_function(compile_magic, "line_cell", "compile")


def unload(shell: Any) -> None:
    """Remove %%compile."""
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("compile", None)
