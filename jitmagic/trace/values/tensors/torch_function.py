"""Models torch functions: one graph node each, or a graph break with the reason.

Input: live torch functions (C functions, public functions written in Python, methods of the class
torch.Tensor, torch.ops operators). Output: a node through `record`, a constant if the result holds
no tensor, or the graph break of trace/builtins/pytorch/torch_rules.py. torch's inlined Python code
(torch.nn.modules) is modelled as FunctionValues (torch_namespaces.py) and not here.

A function found in a namespace of torch needs no identity guard: one guard covers the namespace.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ....compat.operators import (
    CustomOpDef,
    HigherOrderNamespace,
    HigherOrderOperator,
    OpNamespace,
    OpOverload,
    OpOverloadPacket,
    Ops,
)
from ....graph.operators.foreign import (
    is_foreign,
    overloads_of,
    packet_of,
    registrations,
    why_refused,
)
from ....graph.operators.foreign import name_of as name_of_operator
from ....guards.guard import IdentityIs, StateRead
from ....guards.source import Source
from ....late import late_names
from ....late_tables import EVERY, LateTable
from ...breaks import (
    GraphBreak,
    RefusedTorchCall,
    TensorItem,
    TorchCallFailed,
    UnsupportedArguments,
)
from ...builtins.pytorch.torch_rules import REFUSED_METHODS, is_inlined, refusal_of
from ...builtins.registry import handler_of
from ...result import Constant, Recipe
from ...wrap import intercepts, wraps
from ..base import Args, Builder, Kwargs, Machine, Value
from ..containers.sequences import TupleValue
from ..contexts.default_device import on_default_device
from ..numbers.number import node_scalar
from ..numbers.tensor_numbers import number_of
from ..objects.callables import BuiltinValue, makes_builtins, name_of
from ..objects.class_facts import attribute_of_class, guard_attribute
from ..objects.monkey_patches import TENSOR, is_library_made
from .function_subclasses import through_torch_function
from .tensor import TensorValue, record
from .tensor_members import TensorMethodValue

if TYPE_CHECKING:
    from ....graph.operators.number_results import TensorForm, tensor_form
    from ..numbers.scalar_calls import takes_number
else:
    late_names(
        globals(),
        {
            "graph.operators.number_results": "tensor_form",
            "trace.values.numbers.scalar_calls": "takes_number",
        },
    )

_TENSOR_BASE = torch.Tensor.__mro__[1]

__all__ = [
    "TensorTypeMethod",
    "TorchFunctionValue",
    "operators_of",
    "registers_inliner",
    "torch_function",
    "traces_bodies",
]


class TorchFunctionValue(BuiltinValue):
    """A torch function, guarded by identity; `refusal` is the reason why no graph can call it."""

    __slots__ = ("refusal",)
    obj: Any

    def __init__(
        self, obj: object, refusal: str | None = None, source: Source | None = None
    ) -> None:
        super().__init__(obj, source)
        self.refusal = refusal

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        # torch.set_default_device installs a TorchFunctionMode, under which a call would be left to
        # eager; the trace passes its device explicitly instead.
        kwargs = on_default_device(machine, self.obj, kwargs)
        if (users := through_torch_function(machine, self, args, kwargs)) is not None:
            return users
        handler = handler_of(self.obj)
        # Before the refusal: a handler traces functions that no graph may call as they are.
        if handler is not None:
            return handler(machine, args, kwargs)
        if self.refusal is not None:
            raise GraphBreak(RefusedTorchCall.of(name=torch_name(self.obj), why=self.refusal))
        if isinstance(self.obj, types.FunctionType):
            return _record_or_inline(machine, self.obj, args, kwargs)
        return record(machine, self.obj, args, kwargs)

    def recipe(self, builder: Builder) -> Recipe:
        return Constant(self.obj)

    def describe(self) -> str:
        return f"torch function {self.obj.__name__}"


Inliner = Callable[[Machine, types.FunctionType, Args, Kwargs], Value]
_INLINERS: LateTable[str, Inliner] = LateTable("inliners")


def registers_inliner(inliner: Inliner) -> Inliner:
    """Register the function that inlines a Python function of torch that cannot be one node."""
    _INLINERS[EVERY] = inliner
    return inliner


def _record_or_inline(
    machine: Machine, function: types.FunctionType, args: Args, kwargs: Kwargs
) -> Value:
    """Record a Python function of torch as one node, or inline it.

    It is inlined if an argument cannot be in a node (a callable, an object), if its code reads data
    (often only to validate it), or if the node would raise. It is also inlined if it takes a
    varying number and there is no rule for that: the operations inside may have one (temperature).
    """
    given = [arg.realize(machine) for arg in (*args, *kwargs.values())]
    # gumbel_softmax(tau=t) as one node recompiled for each temperature and ended in eager; inlined,
    # its operations take the varying number.
    numbers = [number for one in given if (number := node_scalar(one)) is not None]
    if not all(takes_number(function, number) for number in numbers):
        return _INLINERS[EVERY](machine, function, args, kwargs)
    metas = [value.meta for value in given if isinstance(value, TensorValue)]
    versions = [meta._version for meta in metas]
    try:
        return record(machine, function, args, kwargs)
    except GraphBreak as broken:
        if not isinstance(broken.reason, TensorItem | UnsupportedArguments | TorchCallFailed):
            raise
        # The failed call has already written to a meta tensor: tracing it again would write twice.
        if versions != [meta._version for meta in metas]:
            raise
    return _INLINERS[EVERY](machine, function, args, kwargs)


_PUBLIC = {
    "torch.functional": "torch",
    "torch._C._nn": "torch.nn.functional",
    "torch._C._linalg": "torch.linalg",
    "torch._C._fft": "torch.fft",
    "torch._C._special": "torch.special",
    "torch._C": "torch",
    "torch.random": "torch",
    "torch.serialization": "torch",
}


def torch_name(obj: Any) -> str:
    """Return the public name of a torch function."""
    module = obj.__module__
    bare = str(obj.__name__).removeprefix("linalg_").removeprefix("fft_").removeprefix("special_")
    return f"{_PUBLIC.get(module, module)}.{bare}"


class TensorTypeMethod(BuiltinValue):
    """An unbound method, read from the class: `torch.Tensor.add`."""

    __slots__ = ()
    obj: Any

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        owner = args[0].realize(machine) if args else None
        if not isinstance(owner, TensorValue):
            why = "it is called without a tensor"
            raise GraphBreak(RefusedTorchCall.of(name=name_of(self.obj), why=why))
        name = self.obj.__name__
        if attribute_of_class(torch.Tensor, name) is not self.obj:
            return record(machine, _function_for(self.obj), args, kwargs)
        # From here on, the program's object does not matter: the graph looks the method up by its
        # name.
        guard_attribute(machine, torch.Tensor, name, self.obj)
        return TensorMethodValue(owner, name).call(machine, args[1:], kwargs)


def _function_for(method: Any) -> Any:
    """Return torch.<name> for an original method that user code has replaced on the class.

    The graph calls methods by name, so a method node would call the replacement."""
    function = getattr(torch, method.__name__.strip("_"), None)
    if TENSOR.get(method.__name__) is not method or not isinstance(
        function, types.BuiltinFunctionType
    ):
        why = "user code has replaced it"
        raise GraphBreak(RefusedTorchCall.of(name=name_of(method), why=why))
    return function


def torch_function(obj: object, source: Source | None = None) -> Value | None:
    """Return the value of a torch function; None for other objects and inlined functions."""
    module = getattr(obj, "__module__", None) or ""
    if not (module == "torch" or module.startswith("torch.")):
        return None
    if isinstance(obj, types.FunctionType) and not is_library_made(obj):
        return None  # a user's wrapper: functools.wraps copied torch's `__module__`
    if isinstance(obj, types.FunctionType | types.BuiltinFunctionType):
        if handler_of(obj) is not None:
            return TorchFunctionValue(obj, None, source)
        # None lets torch_namespaces.py model the function as a FunctionValue.
        if isinstance(obj, types.FunctionType) and is_inlined(obj):
            return None
        if module == "torch._tensor":
            return TensorTypeMethod(obj, source)
        return TorchFunctionValue(obj, refusal_of(obj), source)
    return None


@intercepts(types.FunctionType, types.BuiltinFunctionType)
def _intercept_function(machine: Machine, obj: object, source: Source) -> Value | None:
    found = torch_function(obj, source)
    if found is not None:
        machine.guard(IdentityIs(source, obj))
    return found


@makes_builtins
def _tensor_method(obj: object) -> TensorTypeMethod | None:
    """Return the value of a method of torch.Tensor or of its C base class, else None."""
    in_python = isinstance(obj, types.FunctionType) and TENSOR.get(obj.__name__) is obj
    of_base = getattr(obj, "__objclass__", None) is _TENSOR_BASE
    return TensorTypeMethod(obj) if in_python or of_base else None


@intercepts(types.MethodDescriptorType, types.WrapperDescriptorType)
def _intercept_method(machine: Machine, obj: Any, source: Source) -> Value | None:
    if obj.__objclass__ is not _TENSOR_BASE:
        return None
    machine.guard(IdentityIs(source, obj))
    return TensorTypeMethod(obj, source)


class OperatorSpace(BuiltinValue):
    """torch.ops, a namespace or an operator in it; those that torch itself registers are fixed."""

    __slots__ = ()
    obj: Any

    def get_attr(self, machine: Machine, name: str) -> Value:
        try:
            found = getattr(self.obj, name)
        except AttributeError as error:
            # Another library may register the operator later, so its absence is not a fact for the
            # trace.
            if not self._is_complete():
                why = f"it has no {name!r} yet"
                raise GraphBreak(RefusedTorchCall.of(name=str(self.obj), why=why)) from None
            raise machine.error(AttributeError, *error.args) from None
        if isinstance(found, OpOverload):
            return OperatorValue(found)
        if isinstance(found, HigherOrderOperator):
            return BuiltinValue(found)
        return operators_of(found) or super().get_attr(machine, name)

    def _is_complete(self) -> bool:
        """Return whether only torch registers operators here."""
        if isinstance(self.obj, OpOverloadPacket):
            return not is_foreign(self.obj)
        return isinstance(self.obj, OpNamespace) and self.obj.name == "aten"

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        if not isinstance(self.obj, OpOverloadPacket):
            self.refuse(machine, "a call")
        return OperatorValue(self.obj).call(machine, args, kwargs)


BodyTracer = Callable[[Machine, OpOverload, Args, Kwargs], Value | None]
_BODIES: LateTable[str, list[BodyTracer]] = LateTable("tracers of bodies")


def traces_bodies(tracer: BodyTracer) -> BodyTracer:
    """Register a function that traces the body of some operators; it returns None for others."""
    _BODIES.setdefault(EVERY, []).append(tracer)
    return tracer


def _overload(op: OpOverload | OpOverloadPacket) -> OpOverload:
    overload: OpOverload = op if isinstance(op, OpOverload) else getattr(op, op.overloads()[0])
    return overload


class OperatorValue(TorchFunctionValue):
    """An operator of torch or another library, or all its overloads: one node."""

    __slots__ = ()

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name == "overloadpacket" and isinstance(self.obj, OpOverload):
            return OperatorSpace(self.obj.overloadpacket)
        return super().get_attr(machine, name)

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        # Kernels and autograd formulas of other libraries may be registered at any time, so that
        # each call compares the registrations.
        if is_foreign(self.obj):
            read = registrations(packet_of(self.obj))
            machine.guard(StateRead(read, read()))
            for trace_body in _BODIES.get(EVERY, ()):
                if (made := trace_body(machine, _overload(self.obj), args, kwargs)) is not None:
                    return made
            if (why := why_refused(self.obj)) is not None:
                raise GraphBreak(RefusedTorchCall.of(name=read.__name__, why=why))
            if (form := _tensor_form(self.obj)) is not None:
                return _call_for_numbers(machine, read.__name__, form, args, kwargs)
        elif (why := REFUSED_METHODS.get(name_of_operator(self.obj)[1])) is not None:
            raise GraphBreak(RefusedTorchCall.of(name=torch_name(self.obj), why=why))
        return super().call(machine, args, kwargs)


def _tensor_form(op: OpOverload | OpOverloadPacket) -> TensorForm | None:
    """Return the form of an operator that returns numbers, or None. Raises GraphBreak."""
    forms = [tensor_form(each) for each in overloads_of(op)]
    if len(forms) > 1 and any(forms):
        why = "it returns a number, and has several overloads"
        raise GraphBreak(RefusedTorchCall.of(name=str(op), why=why))
    return forms[0]


def _call_for_numbers(
    machine: Machine, name: str, form: TensorForm, args: Args, kwargs: Kwargs
) -> Value:
    """Record a call of an operator that returns numbers, which are then read from tensors."""
    given = [arg.realize(machine) for arg in (*args, *kwargs.values())]
    needs_grad = any(isinstance(one, TensorValue) and one.meta.requires_grad for one in given)
    if form.has_tensors and needs_grad and machine.graph.grad_enabled:
        why = "it returns numbers, and tensors that may require grad"
        raise GraphBreak(RefusedTorchCall.of(name=name, why=why))
    made = record(machine, form.op, args, kwargs)
    parts = list(made.items) if isinstance(made, TupleValue) else [made]
    for n in form.numbers:
        tensor = parts[n]
        assert isinstance(tensor, TensorValue)
        if (number := number_of(machine, tensor.node, "item")) is None:
            raise GraphBreak(TensorItem.of(what=f"{name}()"))
        parts[n] = number
    return TupleValue(parts) if isinstance(made, TupleValue) else parts[0]


def operators_of(obj: object) -> Value | None:
    """Return the value of torch.ops or a part of it; None for anything else."""
    return OperatorSpace(obj) if isinstance(obj, _SPACES) else None


_SPACES = Ops, OpNamespace, HigherOrderNamespace, OpOverloadPacket


@wraps(*_SPACES)
def _wrap_space(machine: Machine, obj: object, source: Source) -> Value:
    machine.guard(IdentityIs(source, obj))
    return OperatorSpace(obj, source)


@wraps(HigherOrderOperator, subclasses=True)
def _wrap_higher_order(machine: Machine, obj: object, source: Source) -> Value:
    """Wrap torch.ops.higher_order.cond and the like, whose Python code is torch's dispatcher."""
    machine.guard(IdentityIs(source, obj))
    return BuiltinValue(obj, source)


@wraps(OpOverload)
def _wrap_operator(machine: Machine, obj: object, source: Source) -> Value:
    machine.guard(IdentityIs(source, obj))
    return OperatorValue(obj, None, source)


@wraps(CustomOpDef)
def _wrap_definition(machine: Machine, obj: object, source: Source) -> Value:
    """Wrap the result of torch.library.custom_op, which calls its operator."""
    machine.guard(IdentityIs(source, obj))
    return DefinedOperator(obj, source)


class DefinedOperator(BuiltinValue):
    """An object made by torch.library.custom_op."""

    __slots__ = ()
    obj: Any

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        return OperatorValue(self.obj._opoverload).call(machine, args, kwargs)
