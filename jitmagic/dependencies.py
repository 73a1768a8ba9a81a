"""Checks the interpreter and the required packages, before any other module of jitmagic.

If a missing package were only noticed later, every compile would fail and every function run as
eager. An optional package is required where its feature is first used.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

__all__ = ["REQUIRED", "require"]

REQUIRED = (
    "torch",
    "platformdirs",
    "rich",
    "jinja2",
    "pygments",
)  # as pyproject.toml's `dependencies`


def require(user: str, *names: str) -> None:
    """Raise ImportError with the command that installs the packages that `user` needs."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise ImportError(
            f"{user} needs {' and '.join(missing)}, which this Python does not have\n"
            f"  mend it with: {sys.executable} -m pip install {' '.join(missing).lower()}"
        )


if "t" in getattr(sys, "abiflags", ""):
    raise ImportError(
        "jitmagic needs the GIL, and this Python is a free-threaded build\n"
        "  mend it with: the ordinary build of the same version (python3.14 instead of python3.14t)"
    )

require("jitmagic", *REQUIRED)
