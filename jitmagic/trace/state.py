"""What a trace carries along: frames under interpretation, and the facts it relies on.

`Frame` is the state of one Python frame (the root or an inlined callee): slots, operand stack, position.
`GuardBook` collects the guards in the order the facts were read. `read_state` reads the thread's torch
state, which becomes the one GlobalState guard of a trace. Nothing here interprets anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from ..bytecode.instruction import Body, ExceptionRegion, Instruction
from ..errors import UserLine
from ..guards.guard import GlobalState, Guard, IdentityIs, StateFacts, TensorMatch, TypeIs, ValueEquals
from ..guards.source import Source
from .values.base import Machine, Value

__all__ = ["Frame", "GuardBook", "read_state"]


def read_state() -> StateFacts:
    """The thread's torch state, as facts."""
    return StateFacts(
        grad_enabled=torch.is_grad_enabled(),
        inference_mode=torch.is_inference_mode_enabled(),
        autocast_cpu=_autocast("cpu"),
        autocast_cuda=_autocast("cuda"),
        default_dtype=torch.get_default_dtype(),
        deterministic=torch.are_deterministic_algorithms_enabled(),
        function_modes=torch._C._len_torch_function_stack(),
        dispatch_modes=torch._C._len_torch_dispatch_stack(),
    )


def _autocast(device: str) -> torch.dtype | None:
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


class GuardBook:
    """The guards of one trace, without duplicates, in the order the facts were read."""

    def __init__(self) -> None:
        self._guards: dict[Guard, Guard] = {}

    def add(self, guard: Guard, where: UserLine | None) -> None:
        """Rely on `guard`; the first line that did is the one remembered."""
        if guard not in self._guards:
            self._guards[guard] = guard if guard.where else replace(guard, where=where)

    def finish(self, state: StateFacts) -> tuple[Guard, ...]:
        """All guards; a TypeIs implied by a sharper guard of the same source is left out."""
        sharper: set[Source] = {
            guard.source
            for guard in self._guards.values()
            if isinstance(guard, ValueEquals | IdentityIs | TensorMatch)
        }
        kept = (
            guard
            for guard in self._guards.values()
            if not (isinstance(guard, TypeIs) and guard.source in sharper)
        )
        return (GlobalState(facts=state), *kept)


@dataclass(eq=False, slots=True)
class Program:
    """A decoded body with its instructions numbered; decoded once per code object and trace."""

    body: Body
    index: dict[Instruction, int]
    regions: list[ExceptionRegion]


@dataclass(eq=False)
class Frame:
    """One Python frame. Slots hold plain locals, and cells under the names of cell variables."""

    program: Program
    slots: dict[str, Value]
    globals: Value  # a values.namespace.GlobalsValue
    function_name: str
    at: int = 0  # index of the instruction being interpreted
    stack: list[Value | None] = field(default_factory=list)  # None is a NULL
    handling: list[Value] = field(default_factory=list)  # exceptions being handled, innermost last
    keyword_names: tuple[str, ...] = ()  # 3.11, 3.12: set by KW_NAMES for the CALL that follows

    @property
    def instruction(self) -> Instruction:
        return self.program.body.instructions[self.at]

    def push(self, value: Value | None) -> None:
        self.stack.append(value)

    def pop_raw(self) -> Value | None:
        """The top of the stack as it is: maybe a NULL, maybe nobody looked at it yet."""
        return self.stack.pop()

    def pop_lazy(self) -> Value:
        """The top of the stack, unrealized: for moves."""
        value = self.stack.pop()
        assert value is not None, "a NULL where a value is expected"
        return value

    def pop(self, machine: Machine) -> Value:
        """The top of the stack, realized: for everything that looks at the value."""
        return self.pop_lazy().realize(machine)

    def pop_many(self, count: int) -> list[Value]:
        """The topmost `count` values, deepest first, unrealized."""
        if not count:
            return []
        values = self.stack[-count:]
        del self.stack[-count:]
        assert all(value is not None for value in values)
        return values  # type: ignore[return-value]

    def jump(self, target: Instruction | None) -> None:
        """Go on at `target`."""
        assert target is not None
        self.at = self.program.index[target]

    def line(self) -> UserLine:
        """The user's line of the instruction being interpreted."""
        body = self.program.body
        position = min(self.at, len(body.instructions) - 1)
        lineno = body.instructions[position].lineno or body.firstlineno
        return UserLine(body.filename, lineno, self.function_name)
