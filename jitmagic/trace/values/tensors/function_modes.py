"""Follows torch function modes that the frame enters: `with MyMode():`, a TorchFunctionMode.

Input: pushes and pops of torch's stack of modes, which the methods of torch's class do. Output: the
innermost mode for a call, whose `__torch_function__` is inlined with the mode off the stack. At an
exit inside such a block, the modes are pushed onto torch's stack.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FunctionType

from torch.overrides import get_testing_overrides

from ....compat.functions import C_MODULE
from ....compat.modes import (
    DeviceContext,
    function_mode_depth,
    is_function_mode_active,
    pop_function_mode,
    push_function_mode,
)
from ...breaks import GraphBreak, RefusedTorchCall
from ...builtins.registry import calls
from ...result import Perform
from ..base import Builder, Machine, Value
from ..contexts.default_device import default_device

__all__ = ["has_function_mode", "innermost_mode", "is_seen_by_modes"]


class _Entered:
    """The modes that the frame has entered, the innermost one last."""

    def __init__(self) -> None:
        self.modes: list[Value] = []
        self.is_used = False


def has_function_mode(machine: Machine) -> bool:
    """Return whether a torch function called now goes through a mode that the frame entered."""
    return bool(machine.notes.root.of(_Entered).modes)


def _depth(machine: Machine) -> int:
    """Return the number of modes; a default device is one, and no other was active before."""
    return int(default_device(machine) is not None) + len(machine.notes.root.of(_Entered).modes)


def is_seen_by_modes(function: object) -> bool:
    """Return whether calls of a torch function go through modes."""
    if isinstance(function, FunctionType):
        return function in get_testing_overrides()
    # Functions bound to torch._C are about the process, not about tensors.
    return getattr(function, "__self__", None) is not C_MODULE


@contextmanager
def innermost_mode(machine: Machine) -> Iterator[Value]:
    """Yield the mode that a torch function goes through now, which is off during the block."""
    modes = machine.notes.root.of(_Entered).modes
    mode = modes.pop()
    try:
        yield mode
    finally:
        modes.append(mode)


def _push(machine: Machine, mode: Value) -> None:
    if mode.python_type(machine) is DeviceContext:
        why = "it sets the default device, and was made outside of the function"
        raise GraphBreak(RefusedTorchCall.of(name=push_function_mode.__name__, why=why))
    entered = machine.notes.root.of(_Entered)
    if not entered.is_used:
        entered.is_used = True
        machine.at_exit(partial(_enter_at_exit, entered))
    entered.modes.append(mode)


def _pop(machine: Machine) -> Value:
    entered = machine.notes.root.of(_Entered)
    if not entered.modes:
        why = "the mode was entered outside of the function"
        raise GraphBreak(RefusedTorchCall.of(name=pop_function_mode.__name__, why=why))
    return entered.modes.pop()


def _enter_at_exit(entered: _Entered, builder: Builder) -> None:
    for mode in entered.modes:
        builder.effect(Perform(builder.constant(push_function_mode), (builder(mode),)))


calls(
    {
        push_function_mode: _push,
        pop_function_mode: _pop,
        function_mode_depth: _depth,
        is_function_mode_active: lambda machine: _depth(machine) > 0,
    }
)
