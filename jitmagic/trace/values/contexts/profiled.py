"""torch.profiler.record_function: a name for a block, in the notes of a profiler.

Comes in: a call of the class while no profiler runs, which is guarded. Goes out: a block that does
nothing; a graph break inside it leaves a real one on the stack.
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
    """What `record_function(*given)` gives."""

    __slots__ = ("given",)

    def __init__(self, given: tuple[Any, ...]) -> None:
        super().__init__()
        self.given = given

    def python_type(self, machine: Machine) -> type:
        return record_function

    def truth(self, machine: Machine) -> bool:
        return True

    def enter(self, machine: Machine) -> tuple[Value, Value]:
        return _EndOfNamedBlock(self.given), self

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(record_function, tuple(map(builder.constant, self.given)))


class _EndOfNamedBlock(WithoutOperators):
    """The bound `__exit__` of a block that has been entered."""

    __slots__ = ("given",)

    def __init__(self, given: tuple[Any, ...]) -> None:
        super().__init__()
        self.given = given

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        return machine.constant(None)

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(_end_of_entered, tuple(map(builder.constant, self.given)))


def _end_of_entered(*given: Any) -> Callable[..., Any]:
    """The `__exit__` of a real block."""
    made = record_function(*given)
    made.__enter__()
    leave: Callable[..., Any] = made.__exit__
    return leave


@handles(record_function)
def _make_block(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    given = {**dict(zip(("name", "args"), args, strict=False)), **kwargs}
    if read_state(machine, _profiler_enabled).truth(machine):
        raise GraphBreak(RefusedTorchCall.of(name="record_function", why="a profiler is running"))
    texts = tuple(given[name].as_constant(machine) for name in ("name", "args") if name in given)
    return _NamedBlock(texts)
