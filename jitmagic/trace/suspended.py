"""Generators in traced code: a suspended frame that is interpreted item by item.

Takes the frame of a generator function that was called, and returns the GeneratorValue, which
interprets the frame up to its next `yield` whenever an item is requested. `Machine.forget` releases
its closures, which refer to the generator itself.
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
    """Return the generator of a frame; the caller then runs it up to RETURN_GENERATOR."""

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
