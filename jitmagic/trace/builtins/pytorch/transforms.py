"""torch.func: transforms of functions, called in the traced code or before it.

Calls of the transforms, and live functions that they have made, become values of transformed
functions (trace/values/autograd/transformed.py); those of jvp and vjp are called at once.
"""

from __future__ import annotations

import inspect
import types
from typing import Any

import torch

from ....guards.guard import IdentityIs, TypeIs
from ....guards.source import FunctionPart, Item, Source
from ...values.autograd.transformed import TransformedValue, call_transformed
from ...values.base import Args, Kwargs, Machine, Value
from ...values.objects.functions import CellValue
from ...wrap import intercepts
from ..registry import handles

__all__: list[str] = []

_func: Any = torch.func
# Transforms that return a function, and the code that all functions of one share.
_MAKERS = (
    _func.grad, _func.grad_and_value, _func.vmap, _func.jacrev, _func.jacfwd, _func.hessian,
)  # fmt: skip
_MADE_BY = {make(lambda x: x).__code__: make for make in reversed(_MAKERS)}


def _makes_function(transform: Any) -> None:
    parameters = list(inspect.signature(transform).parameters)

    @handles(transform)
    def make(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        settings = {**dict(zip(parameters, args, strict=False)), **kwargs}
        return TransformedValue(transform, settings.pop("func"), settings)


for _transform in _MAKERS:
    _makes_function(_transform)


@handles(_func.vjp)
def _vjp(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    function, *primals = args
    return call_transformed(machine, _func.vjp, function, kwargs, primals, {}, takes_function=False)


@handles(_func.jvp)
def _jvp(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    given = {**dict(zip(("func", "primals", "tangents"), args, strict=False)), **kwargs}
    function, *both = (given.pop(name) for name in ("func", "primals", "tangents"))
    return call_transformed(machine, _func.jvp, function, given, both, {}, takes_function=False)


@intercepts(types.FunctionType)
def _made_before(machine: Machine, obj: types.FunctionType, source: Source) -> Value | None:
    """Model a function that a transform made before the call, from the contents of its closure."""
    transform = _MADE_BY.get(obj.__code__)
    if transform is None:
        return None
    machine.guard(TypeIs(source, types.FunctionType))
    machine.guard(IdentityIs(FunctionPart(source, "__code__"), obj.__code__))
    held: dict[str, Value] = {}
    parameters = inspect.signature(transform).parameters
    cells = FunctionPart(source, "__closure__")
    for n, name in enumerate(obj.__code__.co_freevars):
        cell = CellValue.at((obj.__closure__ or ())[n], Item(cells, n))
        if name in parameters and (value := cell.load(machine)) is not None:
            held[name] = value
    made = TransformedValue(transform, held.pop("func"), held)
    made.source = source
    return made
