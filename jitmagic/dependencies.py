"""Checks the interpreter and the required packages, before any other module of jitmagic.

If a missing package were only noticed later, every compile would fail and every function run as
eager.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

__all__ = ["REQUIRED"]

REQUIRED = (
    "torch",
    "platformdirs",
    "rich",
    "jinja2",
    "pygments",
)  # as pyproject.toml's `dependencies`

if "t" in getattr(sys, "abiflags", ""):
    raise ImportError(
        "jitmagic needs the GIL, and this Python is a free-threaded build\n"
        "  mend it with: the ordinary build of the same version (python3.14 instead of python3.14t)"
    )

_missing = [name for name in REQUIRED if find_spec(name) is None]
if _missing:
    raise ImportError(
        f"jitmagic needs {' and '.join(_missing)}, which this Python does not have\n"
        f"  mend it with: python -m pip install {' '.join(_missing)}"
    )
