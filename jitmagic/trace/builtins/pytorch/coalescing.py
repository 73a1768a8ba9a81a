"""Follows blocks of torch.distributed in which collectives are gathered and started as one.

Input: `with dist._coalescing_manager(): ...`. The collectives inside add themselves to the block,
as in eager. Output: at its end, a node for all of them and a copy of each result. A graph break in
the block ends the graph before it.
"""

from __future__ import annotations

from typing import NoReturn, Protocol

import torch

from ....compat.distributed import coalesced_form, coalescing_manager
from ...breaks import GraphBreak, UnsupportedArguments
from ...result import Recipe
from ...values.base import Args, Builder, CannotRebuild, Kwargs, Machine, Value
from ...values.containers.sequences import ListValue
from ...values.contexts.contexts import ContextValue, Row
from ...values.objects.opaque import WithoutOperators
from ...values.tensors.tensor import record
from .process_state import read_state

__all__ = ["GATHERED", "block_of", "default_group"]

GATHERED = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor")
"""Collectives that a block gathers; others in it start at once."""


def default_group() -> object:
    return torch.distributed.group.WORLD


class Gathered(Protocol):
    """A call in a block; `required`: the names of the tensors, of the output first."""

    machine: Machine
    name: str
    given: dict[str, Value]
    required: tuple[str, ...]

    def refuse(self, what: str) -> GraphBreak: ...

    def write(self, tensor: Value, made: Value) -> None: ...


class _Block:
    """An open block, and the collectives in it."""

    def __init__(self, machine: Machine, group: object) -> None:
        self.group, self.opened_at_step, self._notes = group, machine.step, machine.notes
        self._calls: list[Gathered] = []

    def add(self, call: Gathered, is_async: bool) -> None:
        if is_async:
            raise call.refuse("async_op=True within a block that coalesces collectives")
        if self._calls and self._calls[0].name != call.name:
            raise call.refuse(f"a block that has {self._calls[0].name}() already")
        if call.machine.notes is not self._notes:  # a loop, whose body is recorded once
            raise call.refuse("a block around the graph of a loop or branch")
        self._calls.append(call)

    def start(self, machine: Machine) -> None:
        """Add the node of all collectives, with the reduction of the first, as eager does."""
        if not self._calls:
            return
        first, constant = self._calls[0], machine.constant
        outputs = [call.given[call.required[0]] for call in self._calls]
        inputs = [call.given[call.required[-1]] for call in self._calls]
        args: list[Value] = [ListValue(inputs)]
        if "op" in first.given:
            args.append(first.given["op"])
        if first.name == "reduce_scatter_tensor":
            args.append(ListValue([constant(0) for _ in inputs]))
        made = record(machine, coalesced_form(first.name), [*args, first.given["group"]])
        for number, output in enumerate(outputs):
            first.write(output, made.get_item(machine, constant(number)))


class _Blocks(dict[object, _Block]):
    """The open blocks of a trace, by process group."""


def block_of(machine: Machine, group: object) -> _Block | None:
    """Return the open block that gathers the collectives of a group."""
    return machine.notes.root.of(_Blocks).get(group)


class _Coalescing(Row):
    decorates = False

    def make(self, machine: Machine, args: Args, kwargs: Kwargs) -> ContextValue:
        made = super().make(machine, args, kwargs)
        if made.arguments.get("device") is not None or made.arguments.get("async_ops"):
            self.refuse("a device or async_ops")
        return made

    def enter(self, machine: Machine, context: ContextValue) -> object:
        group = context.arguments.get("group")
        if group is None:
            group = read_state(machine, default_group).as_constant(machine)
        blocks = machine.notes.root.of(_Blocks)
        if group in blocks:
            self.refuse("a block in another one")
        blocks[group] = _Block(machine, group)
        return blocks[group]

    def leave(self, machine: Machine, context: ContextValue, before: object) -> None:
        assert isinstance(before, _Block)
        del machine.notes.root.of(_Blocks)[before.group]
        before.start(machine)

    def leave_by_exception(
        self, machine: Machine, context: ContextValue, before: object
    ) -> NoReturn:
        self.refuse("a block that an exception leaves")

    def result(self, machine: Machine, context: ContextValue) -> Value:
        return _Manager()

    def entered(self, builder: Builder, context: ContextValue, before: object) -> Recipe:
        assert isinstance(before, _Block)
        _refuse_break(before.opened_at_step)


def _refuse_break(step: int) -> NoReturn:
    reason = UnsupportedArguments.of(name="_coalescing_manager", what="a graph break in its block")
    raise CannotRebuild("a block that coalesces collectives", step, reason)


class _Manager(WithoutOperators):
    """The value of `with ... as`: what to wait for with `async_ops`, otherwise without a use."""

    always_true = True

    def describe(self) -> str:
        return "manager of coalesced collectives"


if torch.distributed.is_available():
    _Coalescing(coalescing_manager(), "group", "device", "async_ops")
