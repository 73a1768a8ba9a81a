"""`torch.Generator` objects passed to functions that make tensors: `torch.randn(3, generator=g)`.

With constant arguments, and a generator from before the call that is not torch's default CPU one,
the tensor is drawn before the graph runs (trace/values/contexts/random_streams.py). Nothing else in
the graph draws from that generator, so the order of the draws stays. Calls with tensor arguments
(multinomial, bernoulli), and calls that change a generator, break.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ....guards.guard import DifferentObjects, TypeIs, ValueEquals
from ....guards.source import ImportedModule, ModuleAttr, SlotAttr, Source
from ....spec import TensorSpec
from ...breaks import GraphBreak, UnsupportedArguments
from ...values.base import Args, Kwargs, Machine, Value
from ...values.contexts.random_streams import constant_argument, drawn_tensor
from ...values.objects.opaque import OpaqueValue
from ...values.tensors.tensor import record
from ...wrap import wraps
from ..registry import handles

__all__: list[str] = []

_SHARED = ModuleAttr(ImportedModule("torch"), "default_generator")


class TorchGeneratorValue(OpaqueValue):
    """A generator from before the call."""

    __slots__ = ()


@wraps(torch.Generator)
def _wrap_generator(machine: Machine, obj: torch.Generator, source: Source) -> Value:
    machine.guard(TypeIs(source, torch.Generator))
    return TorchGeneratorValue(torch.Generator, source, obj)


@dataclass(frozen=True, slots=True)
class _Draw:
    """A call of a function that makes a random tensor."""

    function: Callable[..., torch.Tensor]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def __call__(self, generator: torch.Generator) -> torch.Tensor:
        return self.function(*self.args, generator=generator, **self.kwargs)


def _draws(function: Callable[..., torch.Tensor]) -> None:
    @handles(function)
    def make(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        generator = kwargs.get("generator")
        if not isinstance(generator, TorchGeneratorValue):
            return record(machine, function, args, kwargs)
        rest = {name: value for name, value in kwargs.items() if name != "generator"}
        return _drawn(machine, function, generator, args, rest)


def _drawn(
    machine: Machine,
    function: Callable[..., torch.Tensor],
    generator: TorchGeneratorValue,
    args: Args,
    kwargs: Kwargs,
) -> Value:
    live: Any = generator.live
    what = "a generator of random numbers"
    broken = GraphBreak(UnsupportedArguments.of(name=f"torch {function.__name__}()", what=what))
    graph, source = machine.graph, generator.source
    given = tuple(constant_argument(machine, arg, broken) for arg in args)
    named = {name: constant_argument(machine, arg, broken) for name, arg in kwargs.items()}
    device = torch.device(named.get("device") or "cpu")
    if graph is not graph.root or source is None or graph.inference.is_on:
        raise broken
    same = device.type == live.device.type and device.index in (None, live.device.index)
    if live is torch.default_generator or not same or torch.is_inference_mode_enabled():
        raise broken
    try:
        example = function(*given, **{**named, "device": "meta"})
    except Exception:  # eager raises the same
        raise broken from None
    if example.requires_grad or named.get("out") is not None or named.get("pin_memory"):
        raise broken
    machine.guard(DifferentObjects((source,), (_SHARED,)))
    machine.guard(ValueEquals(SlotAttr(source, "device"), live.device))
    shape, stride = tuple(example.shape), example.stride()
    spec = TensorSpec(shape, stride, example.dtype, live.device)
    name = f"torch.{function.__name__}"
    drawn = machine.effects.draw(generator, _Draw(function, given, named), name)
    return drawn_tensor(machine, name, drawn, spec)


for _function in (torch.rand, torch.randn, torch.randint, torch.randperm):
    _draws(_function)
