"""Names differences in behaviour between versions of torch, where a call alone cannot show them."""

from __future__ import annotations

from .table import HERE

__all__ = ["CLAMP_GRADIENT_AT_NUMBER"]

CLAMP_GRADIENT_AT_NUMBER = HERE < (2, 14)
"""True if clamp passes the gradient on where an element equals a limit that is a number. Since 2.14
it does not; for a limit that is a tensor it halves the gradient, as maximum and minimum do."""
