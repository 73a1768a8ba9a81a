"""Follows calls of the functions that users have registered (extend/calls.py).

Input: a `RegisteredCall` and the arguments. Output: the result of the replacement, which is traced;
a node of the captured graph; or the constant that the function returns on constant arguments.
"""

from __future__ import annotations

from ....extend.calls import RegisteredCall
from ....guards.source import HeldObject
from ...breaks import GraphBreak, TorchCallFailed, UnsupportedArguments
from ...values.autograd.transformed import call_as_node
from ...values.base import Args, Kwargs, Machine, Value
from ...values.objects.callables import name_of
from ..registry import follows

__all__: list[str] = []


@follows("replaced")
def _replaced(call: RegisteredCall, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    name = f"the replacement of {name_of(call.function)}"
    held = HeldObject(name, {name: call.replacement})
    return machine.wrap(call.replacement, held).call(machine, args, kwargs)


@follows("node")
def _node(call: RegisteredCall, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    return call_as_node(machine, call.function, args, kwargs)


@follows("constant")
def _constant(call: RegisteredCall, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    name = name_of(call.function)
    positional = [_as_constant(machine, arg, name) for arg in args]
    named = {key: _as_constant(machine, value, name) for key, value in kwargs.items()}
    try:
        made = call.function(*positional, **named)
    except Exception as error:  # plain Python raises it again, where the program may catch it
        raise GraphBreak(TorchCallFailed.of(name=name, error=repr(error))) from None
    return machine.constant(made)


def _as_constant(machine: Machine, value: Value, name: str) -> object:
    value = value.realize(machine)
    if value.is_constant(machine):
        return value.as_constant(machine)
    raise GraphBreak(UnsupportedArguments.of(name=name, what=f"a {value.describe()}"))
