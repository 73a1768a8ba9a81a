"""Impure calls that are always graph breaks: output, the interpreter's state, random numbers.

Registered here, they break with a specific reason instead of the general UnknownCFunction.
"""

from __future__ import annotations

import builtins
import random
import sys
import time

from ...breaks import GraphBreak, PrintCall, Reason, StatefulCall
from ...values.base import Args, Kwargs, Machine, Value
from ...values.objects.callables import name_of
from ..registry import handles

__all__: list[str] = []

_OUTPUT: tuple[object, ...] = (builtins.print, builtins.input, builtins.open)
_CHANGING: tuple[object, ...] = (
    builtins.locals, builtins.dir, builtins.eval,
    builtins.exec, builtins.compile, builtins.__import__, sys._getframe, sys.exc_info,
    time.sleep, random.random, random.getrandbits,
)  # fmt: skip


def _register_break(function: object, reason: type[Reason]) -> None:
    @handles(function, lazy=True)
    def leave(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        raise GraphBreak(reason.of(name=name_of(function)))


for _function in _OUTPUT:
    _register_break(_function, PrintCall)
for _function in _CHANGING:
    _register_break(_function, StatefulCall)
