"""torch._check and similar assertions, and torch.compiler.is_compiling().

A condition that is true while tracing records nothing, one in a tensor becomes an assertion node,
and a false one is a graph break, after which plain Python raises.
"""

from __future__ import annotations

import torch

from ....compat.functions import (
    assert_async,
    check,
    check_all,
    check_index,
    check_not_implemented,
    check_type,
    check_value,
)
from ...breaks import EscapingException, GraphBreak, UnsupportedArguments
from ...restarts import TAKES_THE_COMPILED_BRANCH
from ...values.base import Machine, Value
from ...values.numbers.assertions import assert_data
from ...values.numbers.number import NumberValue
from ...values.objects.class_facts import belongs_to_torch
from ...values.tensors.tensor import TensorValue, record
from ..registry import handles

__all__: list[str] = []
_all = torch.all  # this object, even if it is replaced later

_RAISES: dict[object, type[Exception]] = {
    check: RuntimeError,
    check_index: IndexError,
    check_value: ValueError,
    check_type: TypeError,
    check_not_implemented: NotImplementedError,
}


def _register_check(check: object, error: type[Exception]) -> None:
    @handles(check)
    def _check(machine: Machine, condition: Value, *message: Value) -> None:
        """Model torch._check; only plain Python, which raises, calls the message."""
        is_checked = not machine.catches()
        if is_checked and isinstance(condition, NumberValue) and condition.kind is bool:
            assert_data(machine, condition.scalar.argument(machine))
        elif not condition.is_constant(machine) or condition.as_constant(machine) is not True:
            raise GraphBreak(EscapingException.of(error=error.__name__))


for _function, _error in _RAISES.items():
    _register_check(_function, _error)


@handles(assert_async, like=lambda input, assert_msg: None)
def _assert_async(machine: Machine, condition: Value, *message: Value) -> None:
    _assert(machine, "torch._assert_async", condition)


@handles(check_all)
def _check_tensor_all(machine: Machine, condition: Value, *message: Value) -> None:
    if isinstance(condition, TensorValue) and not machine.catches():
        condition = record(machine, _all, [condition])
    _assert(machine, "torch._check_tensor_all", condition)


def _assert(machine: Machine, name: str, condition: Value) -> None:
    """Record an assertion; only plain Python, which raises, needs its message."""
    node = condition.node if isinstance(condition, TensorValue) else None
    if node is None or machine.catches() or not assert_data(machine, node):
        raise GraphBreak(UnsupportedArguments.of(name=name, what=condition.describe()))


# Modules of torch.cond, while_loop, scan, map and associative_scan (control_flow.py).
_CONTROL_FLOW = [f"torch._higher_order_ops.{name}" for name in ("cond", "while_loop", "utils")]


@handles(torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling)
def _is_compiling(machine: Machine) -> bool:
    """Return True, but False to torch's own code.

    Libraries have a branch without data-dependent control flow for compilers, and users expect it
    to be taken. torch's own such branches are written for Dynamo and round differently (optimizers
    count steps in float32 there). After a library's branch has raised, all code gets False.
    """
    if _asking(machine) in _CONTROL_FLOW:
        return True  # the other branch calls torch.compile
    answer = machine.assumed.is_compiling and not belongs_to_torch(_asking(machine))
    if answer:
        machine.notes.marks.add(TAKES_THE_COMPILED_BRANCH)
    return answer


@handles(torch.compiler.is_exporting)
def _is_exporting(machine: Machine) -> bool:
    """Return whether the trace is for jitmagic.export, but False to torch's own code."""
    return machine.assumed.is_exporting and not belongs_to_torch(_asking(machine))


def _asking(machine: Machine) -> str:
    """Return the name of the module whose code runs; "" if it has none."""
    name = machine.frame.globals.store.live.get("__name__")
    return name if isinstance(name, str) else ""
