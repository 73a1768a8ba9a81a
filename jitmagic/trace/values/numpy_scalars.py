"""Imports numpy if it is installed, and lists its scalar classes.

torch works without numpy, and so does the trace: `np` is None then, and there are no such classes.
"""

from __future__ import annotations

from typing import Any

try:
    import numpy
except ImportError:
    numpy = None  # type: ignore[assignment]

__all__ = ["ARRAY_SCALARS", "np"]

np: Any = numpy
ARRAY_SCALARS: tuple[type, ...] = (
    () if numpy is None
    else (numpy.bool_, *(numpy.dtype(c).type for c in "bhilBHIL"), numpy.float32, numpy.float64)
)  # fmt: skip
"""Immutable scalar classes; torch treats all but the first (bool_) as Python numbers."""
