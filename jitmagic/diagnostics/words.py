"""Words that reports share: counts, times, places."""

from __future__ import annotations

from ..errors import UserLine

__all__ = ["count", "duration", "here", "size"]

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def count(number: int, noun: str) -> str:
    """`1 graph`, `2,000 graphs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Seconds with the unit that leaves one to three digits before the point."""
    size = abs(seconds)
    scale, unit = next((u for u in _UNITS if size >= u[0]), _UNITS[-1])
    return f"{seconds / scale:.3g} {unit}"


def size(number: int) -> str:
    """Bytes with a unit: `512 B`, `1.5 KiB`."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = min(max(0, (number.bit_length() - 1) // 10), len(units) - 1)
    return f"{number / (1 << 10 * power):.3g} {units[power]}"


def here(where: UserLine) -> str:
    """A line of the user's in one line."""
    text = f": {where.text}" if where.text else ""
    return f"{where.file}, line {where.lineno}{text}"
