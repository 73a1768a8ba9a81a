"""torch.distributions: finds the formula of kl_divergence, and lazy properties of a class."""

from __future__ import annotations

import types
from typing import Any

from torch.distributions import kl, utils

from ....guards.guard import IdentityIs, LengthIs
from ....guards.source import ImportedModule, Item, ModuleAttr
from ...breaks import GraphBreak, RefusedTorchCall, UnsupportedArguments
from ...values.base import Args, Kwargs, Machine, Value
from ...values.objects.callables import BuiltinValue
from ...values.objects.class_facts import belongs_to_torch
from ...values.objects.functions import FunctionValue
from ...values.tensors.torch_namespaces import torch_object
from ..registry import handles

__all__: list[str] = []

_REGISTRY = ModuleAttr(ImportedModule("torch.distributions.kl"), "_KL_REGISTRY")
_lazy: Any = utils._lazy_property_and_property


@handles(kl.kl_divergence)
def _divergence(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    """Call the formula registered for the two classes; guards check that it still is."""
    if len(args) != 2 or kwargs:
        raise GraphBreak(UnsupportedArguments.of(name="kl_divergence", what="keywords"))
    found = kl._dispatch_kl(*(arg.python_type(machine) for arg in args))
    if not isinstance(found, types.FunctionType) or not belongs_to_torch(found.__module__):
        why = "its formula is not one of torch's"
        raise GraphBreak(RefusedTorchCall.of(name="torch.distributions.kl_divergence", why=why))
    machine.guard(LengthIs(_REGISTRY, len(kl._KL_REGISTRY)))
    for pair, formula in kl._KL_REGISTRY.items():
        if formula is found:
            machine.guard(IdentityIs(Item(_REGISTRY, pair), formula))
    return torch_object(machine, found).call(machine, args, {})


@handles(_lazy)
def _lazy_of_class(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    """Return a lazy property read from the class alone, by code that asks for its kind."""
    wrapped = args[0]
    if not isinstance(wrapped, FunctionValue) or wrapped.live is None:
        wrapped.refuse(machine, "a lazy property")
    return BuiltinValue(_lazy(wrapped.live))
