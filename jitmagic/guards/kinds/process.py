"""Rows for guards on the state of the process and the thread."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from ...bytecode import FrameSnapshot
from ..constants import same_constant
from ..guard import GlobalState, StateRead
from ..state import read_autocast_details, read_state, torch_functions_of_subclasses
from ..words import difference, short
from .row import Kind, Registers, Step, row

__all__: list[str] = []


@row(GlobalState, rank=3)
class _GlobalState(Kind[GlobalState]):
    def lower(self, guard: GlobalState, registers: Registers) -> tuple[Step, ...]:
        *known, rest = _values(guard)
        return (("STATE", *known), *((("AUTOCAST", *rest),) if rest is not None else ()))

    def differs(self, guard: GlobalState, frame: FrameSnapshot) -> str | None:
        facts, now = guard.facts, read_state()
        if facts.autocast_details is not None:
            now = replace(now, autocast_details=read_autocast_details())
        for fact in fields(facts):
            was, is_ = getattr(facts, fact.name), getattr(now, fact.name)
            if is_ != was:
                return f"torch's {fact.name.replace('_', ' ')} is {is_}, was {was}"
        if not torch_functions_of_subclasses():
            return "torch functions are disabled for subclasses, were not"
        return None

    def show(self, guard: GlobalState) -> str:
        facts = guard.facts
        *known, rest = (f"{f.name}={getattr(facts, f.name)}" for f in fields(facts))
        values = known if facts.autocast_details is None else [*known, rest]
        return f"torch state: {', '.join(values)}"

    def advise(self, guard: GlobalState, frame: FrameSnapshot) -> str:
        wanted, now = guard.facts, read_state()
        if now.grad_enabled != wanted.grad_enabled or now.inference_mode != wanted.inference_mode:
            return "call it always under torch.no_grad(), or never: both ways cost a variant each"
        if (now.autocast_cpu, now.autocast_cuda) != (wanted.autocast_cpu, wanted.autocast_cuda):
            return "call it always under the same torch.autocast, or put autocast inside of it"
        if now.default_dtype != wanted.default_dtype:
            return "call torch.set_default_dtype once, before the first call"
        return ""


@row(StateRead, rank=3)
class _StateRead(Kind[StateRead]):
    def lower(self, guard: StateRead, registers: Registers) -> tuple[Step, ...]:
        return (("STATE_READ", guard.reader, guard.value, int(guard.final)),)

    def differs(self, guard: StateRead, frame: FrameSnapshot) -> str | None:
        now = guard.reader()
        same = same_constant(now, guard.value)
        return difference(f"{_name(guard)}()", short(now), short(guard.value), same)

    def show(self, guard: StateRead) -> str:
        return f"{_name(guard)}() == {short(guard.value)}"


def _values(guard: GlobalState) -> tuple[Any, ...]:
    """Return the facts in the order of their fields, which the native step expects."""
    return tuple(getattr(guard.facts, fact.name) for fact in fields(guard.facts))


def _name(guard: StateRead) -> str:
    return str(getattr(guard.reader, "func", guard.reader).__name__)
