"""Models generators that the traced code creates, as suspended frames of the machine.

Input: a call of a generator function or a generator expression. Output: its items; each `next` runs
the frame to its next YIELD_VALUE. A generator that is live at an exit cannot be rebuilt, so the
break moves before the call that created it.
"""

from __future__ import annotations

import types
from collections.abc import Callable

from ...breaks import GraphBreak, UnsupportedOperation
from ...result import Recipe
from ..base import Args, Builder, CannotRebuild, Kwargs, Machine, ObservedError, Value
from ..methods import MethodValue
from ..objects.constants import ConstantValue
from .iterators import IteratorValue

__all__ = ["GeneratorMethodValue", "GeneratorValue"]

# Sends a value to the frame and returns the next item, or None when the frame has returned.
Resume = Callable[[Value], "Value | None"]


class GeneratorValue(IteratorValue):
    """A generator; `resume` runs its frame, `result` is the return value once it has finished."""

    __slots__ = ("created_at_step", "finished", "must_close", "result", "resume", "running",
                 "started")  # fmt: skip

    def __init__(self, machine: Machine, resume: Resume, must_close: Callable[[], bool]) -> None:
        super().__init__(types.GeneratorType)
        self.resume = resume
        self.created_at_step = machine.step
        self.must_close = must_close
        self.started = False
        self.running = False
        self.finished = False
        self.result: Value = ConstantValue(None)

    def next(self, machine: Machine) -> Value | None:
        return self.send(machine, ConstantValue(None))

    def send(self, machine: Machine, value: Value) -> Value | None:
        """Run to the next yield and return the item, or None at the end."""
        if self.finished:
            return None
        if self.running:
            raise machine.error(ValueError, "generator already executing")
        self.running = self.started = True
        try:
            item = self.resume(value)
        except ObservedError as observed:
            # An exception ends a generator: later calls of next() raise StopIteration.
            self.finished = True
            # PEP 479: a StopIteration that leaves a generator becomes a RuntimeError.
            if observed.error.matches(machine, StopIteration):
                raise machine.error(RuntimeError, "generator raised StopIteration") from None
            raise
        finally:
            self.running = False
        self.finished = item is None
        return item

    def check_droppable(self) -> None:
        """Raise CannotRebuild at an exit if dropping the generator would run user code."""
        if not self.finished and self.started and self.must_close():
            raise CannotRebuild(
                "a generator with code to run when it is closed", self.created_at_step
            )

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name in ("send", "close", "__next__", "__iter__"):
            return GeneratorMethodValue(self, name)
        self.refuse(machine, f"attribute {name!r}")

    def recipe(self, builder: Builder) -> Recipe:
        raise CannotRebuild("a generator", self.created_at_step)

    def describe(self) -> str:
        return "generator"


class GeneratorMethodValue(MethodValue):
    """A bound method of a generator."""

    __slots__ = ()
    owner: GeneratorValue

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        if self.name == "__iter__":
            return self.owner
        if self.name == "close":
            # close() raises GeneratorExit at the current `yield`, which runs the `finally` blocks
            # around it. A generator that has not started has no such block yet.
            if self.owner.started and not self.owner.finished and self.owner.must_close():
                raise GraphBreak(UnsupportedOperation.of(what="close()", types="a live generator"))
            self.owner.finished = True
            return machine.constant(None)
        item = self.owner.send(machine, args[0] if args else ConstantValue(None))
        if item is None:
            raise machine.error(StopIteration)
        return item
