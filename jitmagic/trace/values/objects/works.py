"""Models the Work of a collective with `async_op=True`, which the program waits for.

The graph has the collective at its start, and waits for the results where it first needs them
(schedule/late_waits.py). Before `wait()`, eager's results are undefined; after it they are those of
the graph. A Work that the graph does not see waited for has to be a live one: the graph ends before
the collective.
"""

from __future__ import annotations

from functools import partial
from typing import NoReturn

import torch

from ...breaks import UnsupportedArguments
from ...result import Recipe
from ..base import Args, Builder, CannotRebuild, Kwargs, Machine, Value
from ..methods import MethodValue
from .opaque import WithoutOperators

__all__ = ["WorkValue"]


class WorkValue(WithoutOperators):
    """The Work of a collective in the graph; `function` is the name of the call that started it."""

    __slots__ = ("_created_at_step", "_function", "_is_waited_for")
    always_true = True

    def __init__(self, machine: Machine, function: str) -> None:
        super().__init__()
        self._function, self._created_at_step = function, machine.step
        self._is_waited_for = False
        machine.at_exit(partial(WorkValue._check, self))

    def python_type(self, machine: Machine) -> type:
        return torch.distributed.Work

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name != "wait":
            self.refuse(machine, f"attribute {name!r}")
        return MethodValue(self, name)

    def call_method(self, machine: Machine, name: str, args: Args, kwargs: Kwargs) -> Value:
        if name != "wait" or args or kwargs:
            self.refuse(
                machine, f"{name}() with these arguments" if args or kwargs else f"{name}()"
            )
        self._is_waited_for = True
        return machine.constant(True)

    def recipe(self, builder: Builder) -> Recipe:
        self._refuse("its Work leaves the graph")

    def _check(self, builder: Builder) -> None:
        # Another rank may need a message that comes after the call before it takes part.
        if not self._is_waited_for:
            self._refuse("async_op=True, without a wait in the same graph")

    def _refuse(self, what: str) -> NoReturn:
        reason = UnsupportedArguments.of(name=self._function, what=what)
        raise CannotRebuild("a Work", self._created_at_step, reason)

    def describe(self) -> str:
        return f"Work of {self._function}()"
