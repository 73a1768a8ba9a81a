"""The torch.library of jitmagic's own operators, which lives as long as the process.

Input: nothing. Output: the torch.library.Library for `jitmagic::...`, and whether it has an
operator. A package that was purged from `sys.modules` leaves its operators behind, and functions
that it compiled may still call them; a package imported afterwards uses the same library.
"""

from __future__ import annotations

import torch

__all__ = ["LIBRARY", "is_registered"]

# On torch's namespace of these operators: the library unregisters them when it dies.
LIBRARY: torch.library.Library = vars(torch.ops.jitmagic).setdefault(
    "_library", torch.library.Library("jitmagic", "FRAGMENT")
)


def is_registered(name: str) -> bool:
    return hasattr(torch.ops.jitmagic, name)
