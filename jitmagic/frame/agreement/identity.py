"""Names frames and variants so that every process of a distributed program finds the same names.

Ranks run the same code on other data. A frame is its code; a variant of it the types and fixed
sizes of its tensors, and constants other than numbers, which may be those of a rank.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import TypeVar

from ...guards.check import is_number
from ...guards.constants import is_constant
from ...guards.guard import Guard, TensorMatch, ValueEquals
from ...guards.source import describe
from ...protocols import Protocol
from ..original import Original

__all__ = ["frame_name", "frames_named", "variant_name"]


class _Frame(Protocol):
    """A handle, as far as this module knows it."""

    original: Original


Frame = TypeVar("Frame", bound=_Frame)


def frame_name(original: Original) -> str:
    """Return the name of a frame."""
    code = original.code
    return _hash(original.qualname, code.co_code.hex(), code.co_names, code.co_firstlineno)


def frames_named(name: str, frames: Iterable[Frame]) -> Iterator[Frame]:
    """Yield those of the frames that have this name and are alive."""
    for frame in frames:
        if frame.original.is_alive and frame_name(frame.original) == name:
            yield frame


def variant_name(original: Original, guards: Iterable[Guard]) -> str:
    """Return the name of a variant with these guards."""
    return _hash(frame_name(original), *_facts(guards))


def _facts(guards: Iterable[Guard]) -> Iterator[object]:
    for guard in guards:
        if isinstance(guard, TensorMatch):
            free, shape = guard.free_sizes, guard.spec.shape
            sizes = [None if dim in free else size for dim, size in enumerate(shape)]
            yield describe(guard.source), guard.spec.dtype, sizes
        elif isinstance(guard, ValueEquals) and is_constant(guard.value):
            yield describe(guard.source), None if is_number(guard.value) else guard.value


def _hash(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
