"""Models torch.profiler.record_function, which names a block for a profiler.

Input: a call of the class while no profiler runs, which is guarded. Output: a block without effect.
At a graph break inside it, a block that is already entered is built on the stack.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._C._autograd import _profiler_enabled
from torch.autograd.profiler import record_function

from ...breaks import GraphBreak, RefusedTorchCall
from ...builtins.pytorch.process_state import read_state
from ...builtins.registry import handles
from ...result import Recipe
from ..base import Args, Builder, Kwargs, Machine, Value
from ..objects.opaque import WithoutOperators

__all__: list[str] = []


class _NamedBlock(WithoutOperators):
    """A context manager `record_function(*args)`."""

    __slots__ = ("args",)

    def __init__(self, args: tuple[Any, ...]) -> None:
        super().__init__()
        self.args = args

    def python_type(self, machine: Machine) -> type:
        return record_function

    def truth(self, machine: Machine) -> bool:
        return True

    def enter(self, machine: Machine) -> tuple[Value, Value]:
        return _NamedBlockExit(self.args), self

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(record_function, tuple(map(builder.constant, self.args)))


class _NamedBlockExit(WithoutOperators):
    """The bound `__exit__` of a block that has been entered."""

    __slots__ = ("args",)

    def __init__(self, args: tuple[Any, ...]) -> None:
        super().__init__()
        self.args = args

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        return machine.constant(None)

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(_entered_block, tuple(map(builder.constant, self.args)))


def _entered_block(*args: Any) -> Callable[..., Any]:
    """Enter a `record_function` block and return its `__exit__`."""
    block = record_function(*args)
    block.__enter__()
    leave: Callable[..., Any] = block.__exit__
    return leave


@handles(record_function)
def _make_block(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    named = {**dict(zip(("name", "args"), args, strict=False)), **kwargs}
    # read_state installs a guard, so a call under a profiler recompiles and breaks here.
    if read_state(machine, _profiler_enabled).truth(machine):
        raise GraphBreak(RefusedTorchCall.of(name="record_function", why="a profiler is running"))
    texts = tuple(named[name].as_constant(machine) for name in ("name", "args") if name in named)
    return _NamedBlock(texts)
