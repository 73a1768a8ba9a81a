"""Runs a cell of `%%compile --lazy`: nothing is tagged, its tensor operations are recorded.

Input: the parts of the cell and the options on its line. Output: the parts as plain code, and a
line that says what `jitmagic.lazy()` did with the operations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from IPython.core.error import UsageError

from ..figures import count
from ..lazy_mode import Counts
from .cell import Part, Plain, Run
from .display import DimLine

__all__ = ["check_alone", "plain_parts", "recorded_line"]

_ALONGSIDE = ("lazy", "time", "quiet")


def check_alone(options: Mapping[str, object], defaults: Mapping[str, object]) -> None:
    """Raise UsageError if `--lazy` stands with an option that only applies to tagged code."""
    for name, value in options.items():
        if name not in _ALONGSIDE and value != defaults[name]:
            raise UsageError(
                f"%%compile: --{name} is an option of tagged code; --lazy tags nothing, so leave "
                f"one of the two out"
            )


def plain_parts(parts: Sequence[Part]) -> list[Part]:
    """Return the parts with every statement as code that runs unchanged."""
    plain: list[Part] = []
    for part in parts:
        codes = part.plain if isinstance(part, Run) else (part.code,)
        plain += map(Plain, codes)
    return plain


def recorded_line(before: Counts, after: Counts) -> DimLine | None:
    """Return a line about the operations that a cell has recorded, or None if there are none."""
    recorded, batches, compiled, cached, replayed = (
        new - old for old, new in zip(before, after, strict=True)
    )
    if not recorded:
        return None
    ways = {"compiled": compiled, "compiled before": cached, "run one by one": replayed}
    how = ", ".join(f"{number} {way}" for way, number in ways.items() if number)
    return DimLine(
        f"recorded {count(recorded, 'operation')}, which ran as {count(batches, 'graph')}: {how}"
        if how
        else f"recorded {count(recorded, 'operation')}, whose results nothing has read"
    )
