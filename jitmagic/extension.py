"""The door to jitmagic._runtime: the extension that executes plans and differentiates them.

It is opened when the first graph is made, not when jitmagic is imported; what cannot be opened is a
NativeMissing that says how to mend it.
"""

from __future__ import annotations

from typing import Any

import torch

from .errors import NativeMissing

__all__ = ["runtime_module"]


def runtime_module() -> Any:
    """The native module, or NativeMissing with the remedy."""
    try:
        from . import _runtime  # type: ignore[attr-defined]  # noqa: PLC0415 - absent until built
    except ImportError as error:
        raise NativeMissing("jitmagic._runtime", str(error)) from error
    built, here = _runtime.TORCH_VERSION, torch.__version__
    if built != here:
        raise NativeMissing("jitmagic._runtime", f"it was built for torch {built}, this is {here}")
    return _runtime
