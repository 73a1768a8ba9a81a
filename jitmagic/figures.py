"""Formats counts, times, bytes and speeds, in the same way for every report."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["count", "duration", "median", "size", "speed"]

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_EQUAL = 1.05  # smaller factors are noise: two runs of the same code differ that much


def count(number: int, noun: str) -> str:
    """Format a count: `1 graph`, `2,000 graphs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Format seconds in the unit that leaves one to three digits before the point."""
    size = abs(seconds)
    scale, unit = next((u for u in _UNITS if size >= u[0]), _UNITS[-1])
    return f"{seconds / scale:.3g} {unit}"


def median(values: Iterable[float]) -> float:
    """Return the median, as `statistics` does, whose import takes 3 ms."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def size(number: int) -> str:
    """Format bytes: `512 B`, `1.5 KiB`."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = min(max(0, (number.bit_length() - 1) // 10), len(units) - 1)
    return f"{number / (1 << 10 * power):.3g} {units[power]}"


def speed(seconds: float, rival: float, name: str = "eager") -> str:
    """Format a ratio: `3.1x faster than eager`, `1.3x slower than eager`, `as fast as eager`."""
    if seconds <= 0 or rival <= 0:
        return f"as fast as {name}"
    factor, word = max((rival / seconds, "faster"), (seconds / rival, "slower"))
    if factor < _EQUAL:
        return f"as fast as {name}"
    return f"{factor:.{1 if factor < 9.95 else 0}f}x {word} than {name}"
