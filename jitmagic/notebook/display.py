"""What %%compile shows by itself: one line about time, as text and HTML."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CellReport"]


@dataclass(frozen=True, slots=True)
class CellReport:
    """Wall time of the cell and how much of it was compiling, in seconds."""

    seconds: float
    compiling: float

    def __repr__(self) -> str:
        running = max(0.0, self.seconds - self.compiling)
        return (
            f"jitmagic: {self.seconds:.3f} s, of which {self.compiling:.3f} s compiling "
            f"and {running:.3f} s running"
        )

    def _repr_html_(self) -> str:
        return f"<div style='opacity:.75;font-size:12px'>{self!r}</div>"
