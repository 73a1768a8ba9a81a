"""Warns the user when a weaker tier than the machine could have generates the code.

In: the target that is missing or failed, and the one that replaces it. Out: a warning with a hint.
"""

from __future__ import annotations

from ..errors import warn
from ..options import Options
from ..target import Target

__all__ = ["warn_no_compiler", "warn_weaker_tier"]


def warn_no_compiler(target: Target, options: Options) -> None:
    """Warn that a weaker tier is used because no compiler was found."""
    named = f" (asked for: {options.cxx!r})" if options.cxx is not None else ""
    warn(
        f"{target.why}{named}; CPU code is made with {target.tier}\n"
        "  hint: install g++ or clang++, or set JITMAGIC_CXX to the path of a C++ compiler",
    )


def warn_weaker_tier(name: str, target: Target, weaker: Target, error: Exception) -> None:
    """Warn that a tier failed and the next one replaces it."""
    warn(
        f"{name}: the {target.tier} code generator failed, using {weaker.tier} instead "
        f"({weaker.why})\n{error}",
    )
