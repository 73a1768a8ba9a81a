"""Suspended frames: resumes a traced generator when its next item is requested.

Takes the frame of a generator function that was called, and returns the generator Value, which runs
the frame to its next yield. `Machine.forget` releases its closures.
"""

from __future__ import annotations

from typing import Any

from .closing import closes_quietly
from .opcodes.registry import Returned, Yielded
from .state import Frame
from .values.base import Value
from .values.containers.generators import GeneratorValue

__all__ = ["suspended"]


def suspended(machine: Any, frame: Frame) -> GeneratorValue:
    """Return the generator of a frame; its part up to RETURN_GENERATOR has still to run."""

    def advance(sent: Value) -> Value | None:
        frame.push(sent)
        signal = machine.resume(frame)
        if isinstance(signal, Yielded):
            return signal.value
        assert isinstance(signal, Returned)
        generator.result = signal.value
        return None

    def must_close() -> bool:
        return frame.program.closes_at(frame.at) and not closes_quietly(machine, frame)

    generator = GeneratorValue(machine, advance, must_close)
    return generator
